"""Runs candidates of a family dry in a process of its own and prints what came of each, one JSON object a line.

``dry_run_process.py gfx meta|memory candidate …``: on meta tensors, or on real ones as a lane would have them.
"""

import json
import sys

import torch

from aiter_tuning.measure.compile_target import limits_of, target_of
from aiter_tuning.measure.dry_run import DryRunner
from aiter_tuning.task import ALL_INPUTS, MpTunerTask
from aiter_tuning.tuner.tasks import RunCandidate
from op_tests.families_for_tests.triton_scale import Trying

FAMILY = "op_tests.families_for_tests.triton_scale:Trying"
SHAPE = {"N": 4096}


def candidate_task(name, where):
    family = Trying()
    config = next(c.config for c in family.candidates(SHAPE, None) if c.name == name)
    func = RunCandidate(FAMILY, config)
    if where == "memory":
        return MpTunerTask(name, None, (), func, (family.inputs(SHAPE, "cpu", 0),), {}, None, (), {}, None)
    return MpTunerTask(name, make_inputs, (), func, (ALL_INPUTS,), {"num_warmup": 2}, None, (), {}, None)


def make_inputs(*, device):
    return Trying().inputs(SHAPE, device, 0)


def main():
    gfx, where, *names = sys.argv[1:]
    with DryRunner(target_of(gfx), limits_of(gfx)) as runner:
        for name in names:
            run = runner.run(candidate_task(name, where))
            print(
                json.dumps(
                    {
                        "name": name,
                        "outcome": run.outcome,
                        "detail": run.detail,
                        "hashes": [kernel.hash for kernel in run.kernels],
                        "shared": [kernel.shared_bytes for kernel in run.kernels],
                        "warps": [kernel.num_warps for kernel in run.kernels],
                        "compilations": run.compilations,
                        "devices": torch.cuda.device_count(),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
