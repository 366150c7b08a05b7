"""Runs candidates once each on the GPU, as a lane would after its start, and prints what came of each as JSON lines.

``candidates_process.py FILE``: a JSON list of ``[family reference, shape, candidate name, config]``.
"""

import hashlib
import json
import sys

import torch
import triton

from aiter_tuning.measure import triton_ahead
from aiter_tuning.measure.compile_target import target_of
from aiter_tuning.status import classify, describe
from aiter_tuning.tuner.family_reference import load_family


class Listener:
    """What Triton's compiler was asked for."""

    def __init__(self):
        self.kernels = []

    def __call__(self, *, src, metadata, metadata_group, times, cache_hit):
        self.kernels.append({"name": src.name, "hash": metadata["hash"], "hit": bool(cache_hit)})


def _say(report):
    """Marked, since a compiler that fails prints what it was given, which may look like JSON."""
    print("@" + json.dumps(report), flush=True)


def main():
    with open(sys.argv[1]) as file:
        wanted = json.load(file)
    triton_ahead.hashing.join()
    triton.knobs.compilation.listener = listener = Listener()
    properties = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        gfx = properties.gcnArchName.split(":")[0]
    else:
        gfx = f"sm{properties.major}{properties.minor}"
    active = triton.runtime.driver.active
    target = active.get_current_target()
    _say(
        {
            "gfx": gfx,
            "max_shared": active.utils.get_device_properties(0)["max_shared_mem"],
            "target": [target.backend, target.arch, target.warp_size],
            "named": list(target_of(gfx)),
        }
    )
    for reference, shape, name, config in wanted:
        family = load_family(reference)
        inputs = family.inputs(shape, "cuda:0", 0)
        listener.kernels = []
        line = {"name": name, "shape": shape, "status": "ok", "detail": "", "sum": ""}
        try:
            result = family.run(inputs, config)
            torch.cuda.synchronize()
            line["sum"] = hashlib.sha256(result.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()
        except Exception as error:
            line["status"], line["detail"] = classify(error), describe(error)
        line["kernels"] = listener.kernels
        _say(line)


if __name__ == "__main__":
    main()
