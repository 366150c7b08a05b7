#!/usr/bin/env python3
"""What tuning on a GPU costs and how far its choices can be trusted, beside triton.autotune in the same run.

    PYTHONPATH=. python3 tools/bench_gpu.py                     all parts
    PYTHONPATH=. python3 tools/bench_gpu.py --part w1           one part: w1, faults, aa, regret; may be repeated
    PYTHONPATH=. python3 tools/bench_gpu.py --json FILE         the figures as JSON too
    PYTHONPATH=. python3 -m aiter_tuning tune tools/bench_gpu.py:W1 -i shapes.csv -o tuned.csv

Workload W1 is a bf16 Triton GEMM, 48 configs of one kernel for each of three shapes: 144 candidates.

w1        Seconds of a whole process that tunes W1, with a cold and with a warm compile cache, and of one that lets
          triton.autotune do it; what is beyond ``import torch`` and a context; where the lane's time went.
faults    A process that exits, an illegal access, a device-side assert and an endless kernel in the middle of a shape:
          what each cost, and how long until the next candidate ran.
aa        One kernel against itself, interleaved: how often would it have been promoted? And one that is about 5 %
          faster: how often is it found?
regret    Time of the config that was chosen over that of the best, timed side by side: runs of the tuner from scratch,
          and triton.autotune.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiter_tuning.devices.device import NoDeviceError
from aiter_tuning.devices.discovery import discover
from aiter_tuning.keys import Key
from aiter_tuning.tuner.family import Candidate, Config, Family, Inputs, Shape, Tolerance, Work

if TYPE_CHECKING:
    from torch import Tensor

    from aiter_tuning.devices.device import Device

SHAPES = ((64, 4096, 4096), (512, 4096, 4096), (4096, 4096, 4096))
CONFIGS: tuple[dict[str, int], ...] = tuple(
    {"block_m": m, "block_n": n, "block_k": k, "group_m": 8, "num_warps": warps, "num_stages": stages}
    for m, n, k, warps, stages in itertools.product((64, 128), (64, 128, 256), (32, 64), (4, 8), (3, 4))
)
PARTS = ("w1", "faults", "aa", "regret")
DEFAULT_CONFIG = {"block_m": 128, "block_n": 128, "block_k": 32, "group_m": 8, "num_warps": 4, "num_stages": 3}


def name_of(config: Mapping[str, Any]) -> str:
    blocks = "x".join(str(config[f"block_{side}"]) for side in "mnk")
    return f"{blocks}_w{config['num_warps']}_s{config['num_stages']}"


class W1(Family):
    """Workload W1 as an operator of one's own: the kernel is in gpu_bench/kernels.py."""

    name = "w1"
    key = Key(M=int, N=int, K=int)
    tolerance = Tolerance(rtol=1e-2, atol=1e-2, err_ratio=0.05)
    precompiles = True

    def inputs(self, shape: Shape, device: str, seed: int) -> Inputs:
        import torch

        generator = torch.Generator(device).manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, device=device, dtype=torch.bfloat16)

        m, n, k = shape["M"], shape["N"], shape["K"]
        return {"a": normal(m, k), "b": normal(k, n).mul_(k**-0.5)}

    def reference(self, inputs: Inputs) -> Tensor:
        product: Tensor = inputs["a"] @ inputs["b"]
        return product

    def default(self, shape: Shape, device: Device) -> Candidate:
        return self._candidate(DEFAULT_CONFIG)

    def candidates(self, shape: Shape, device: Device) -> Sequence[Candidate]:
        return [self._candidate(config) for config in CONFIGS]

    def run(self, inputs: Inputs, config: Config) -> Tensor:
        from gpu_bench import kernels

        return kernels.launch(inputs["a"], inputs["b"], config)

    def work(self, shape: Shape) -> Work:
        m, n, k = shape["M"], shape["N"], shape["K"]
        return Work(flops=2.0 * m * n * k, bytes=2.0 * (m * k + n * k + m * n))

    @staticmethod
    def _candidate(config: dict[str, int]) -> Candidate:
        return Candidate(name_of(config), config, kernel_id=CONFIGS.index(config))


def main() -> int:
    arguments = _arguments()
    if arguments.autotune:
        return _autotune(arguments)
    parts = arguments.part or list(PARTS)
    try:
        discover(arguments.device)
    except (NoDeviceError, ValueError) as error:
        sys.stderr.write(f"--device {arguments.device}: {error}\n")
        return 4 if isinstance(error, NoDeviceError) else 2
    if len(parts) == 1:
        figures = {parts[0]: _run_part(parts[0], arguments)}
    else:
        # Each in a process of its own: what one leaves on the GPU is gone before the next one measures.
        figures = {}
        for part in parts:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "figures.json"
                own = [*_passed_on(arguments), "--part", part, "--json", str(file)]
                done = subprocess.run([sys.executable, __file__, *own])
                if done.returncode:
                    return done.returncode
                figures |= json.loads(file.read_text())
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--device",
        default="cuda",
        help="cuda, hip, an index (what times in its own process takes the first); cpu, interpreted, for w1",
    )
    parser.add_argument(
        "--shapes",
        metavar="MxNxK,…",
        type=_shapes,
        default=SHAPES,
        help="instead of W1's (default: 64x4096x4096,512x4096x4096,4096x4096x4096)",
    )
    parser.add_argument("--runs", type=int, default=5, help="fresh runs of the tuner in regret (default: 5)")
    parser.add_argument("--repeat", type=int, default=1, help="how often w1 is timed (default: 1)")
    parser.add_argument("--comparisons", type=int, default=334, help="of a kernel with itself, a shape (default: 334)")
    parser.add_argument("--blocks", type=int, default=60, help="interleaved blocks of the ground truth (default: 60)")
    parser.add_argument("--iters", type=int, help="timed calls of a candidate at most (default: the tuner's)")
    parser.add_argument("--no_autotune", action="store_true", help="leave triton.autotune out")
    parser.add_argument("--autotune", metavar="FILE", help=argparse.SUPPRESS)
    return parser.parse_args()


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    try:
        shapes = tuple(tuple(int(size) for size in shape.split("x")) for shape in text.split(","))
    except ValueError:
        shapes = ((),)
    if any(len(shape) != 3 or min(shape) < 1 for shape in shapes):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of shapes; expected for instance 64x4096x4096")
    return shapes


def _passed_on(arguments: argparse.Namespace) -> list[str]:
    shapes = ",".join("x".join(map(str, shape)) for shape in arguments.shapes)
    words = ["--device", arguments.device, "--shapes", shapes]
    for name in ("runs", "repeat", "comparisons", "blocks"):
        words += [f"--{name}", str(getattr(arguments, name))]
    if arguments.iters is not None:
        words += ["--iters", str(arguments.iters)]
    return words + (["--no_autotune"] if arguments.no_autotune else [])


def _run_part(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Parts import what they need; only w1 needs no GPU in this process."""
    print(f"\n== {part}", flush=True)
    if part == "w1":
        from gpu_bench.whole_process import time_whole_processes

        return time_whole_processes(arguments)
    if part == "faults":
        from gpu_bench.recovery import time_recovery

        return time_recovery(arguments)
    if part == "aa":
        from gpu_bench.against_itself import compare_with_itself

        return compare_with_itself(arguments)
    from gpu_bench.trust import measure_regret

    return measure_regret(arguments)


def _autotune(arguments: argparse.Namespace) -> int:
    """The process in which triton.autotune chooses: what somebody without a tuner would run."""
    import torch
    from gpu_bench.kernels import autotuned, launch_autotuned

    tuner, chosen = autotuned(CONFIGS), []
    for m, n, k in arguments.shapes:
        inputs = W1().inputs({"M": m, "N": n, "K": k}, "cuda", 0)
        chosen.append(name_of(launch_autotuned(tuner, inputs["a"], inputs["b"])))
    torch.cuda.synchronize()
    Path(arguments.autotune).write_text(json.dumps(chosen))
    return 0


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main())
