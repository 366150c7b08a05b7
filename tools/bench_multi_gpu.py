#!/usr/bin/env python3
"""What several GPUs of one host bring: the same work on one lane, on two, on all, and what launching costs meanwhile.

    PYTHONPATH=. python3 tools/bench_multi_gpu.py                     all parts, on as many GPUs as there are
    PYTHONPATH=. python3 tools/bench_multi_gpu.py --part w1           one part: w1, model, jitter; may be repeated
    PYTHONPATH=. python3 tools/bench_multi_gpu.py --mp 1,4 --json FILE

w1        Workload W1's kernel and 48 configs over 8 shapes for each GPU, all of about the same size: once with a cold
          compile cache on all lanes, then with a warm one on each number of lanes.
model     The same for gemm_bf16 on some shapes of a model's file.
jitter    Host time of a launch, and device time of a kernel: one lane alone, then with every lane at work and spare
          cores compiling.

"of linear" counts from the second shape of each lane on (the first one warms its process up): the work done from
there to the end of the run, in seconds that one lane alone needed for the same shapes, over the lanes' time. Lanes
that have run out of shapes before the end count as time, too. The bar is 0.9.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from aiter_tuning.devices.device import NoDeviceError
from aiter_tuning.devices.discovery import device_notes, discover

PARTS = ("w1", "model", "jitter")
LANES = (1, 2, 4, 8)
MODEL = Path(__file__).resolve().parents[1] / "configs" / "model_configs" / "qwen3_8b_gemm_bf16_untuned.csv"
SHAPES_A_LANE = 8
MODEL_SHAPES_A_LANE = 4


def main() -> int:
    arguments = _arguments()
    try:
        devices = discover(arguments.device, max(arguments.mp) if arguments.device == "cpu" else 0)
    except (NoDeviceError, ValueError) as error:
        sys.stderr.write(f"--device {arguments.device}: {error}\n")
        return 4 if isinstance(error, NoDeviceError) else 2
    lanes = [count for count in arguments.mp if count <= len(devices)]
    if not lanes:
        sys.stderr.write(f"--mp {','.join(map(str, arguments.mp))}: there are {len(devices)} devices\n")
        return 2
    for note in device_notes(devices):
        print(f"note: {note}")
    names = ", ".join(dict.fromkeys(f"{device.gpu_model} ({device.gfx})" for device in devices))
    print(f"{len(devices)} × {names}; {len(os.sched_getaffinity(0))} host cores; lanes: {', '.join(map(str, lanes))}")
    figures: dict[str, Any] = {"devices": len(devices), "gpu_model": names, "lanes": lanes}
    for part in arguments.part or PARTS:
        print(f"\n== {part}", flush=True)
        figures[part] = _run_part(part, arguments, devices, lanes)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _run_part(part: str, arguments: argparse.Namespace, devices: Any, lanes: list[int]) -> dict[str, Any]:
    """Parts import what they need."""
    if part == "jitter":
        from gpu_bench.jitter import measure_jitter

        return measure_jitter(devices[: max(lanes)], arguments.repeats)
    from gpu_bench import scaling

    if part == "w1":
        return scaling.measure_w1(arguments, lanes)
    return scaling.measure_model(arguments, lanes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--device", default="cuda", help="cuda, hip, indices or UUIDs; cpu, interpreted, for w1")
    parser.add_argument(
        "--mp",
        metavar="N,…",
        type=_counts,
        default=LANES,
        help="numbers of lanes (default: 1,2,4,8, as far as there are GPUs)",
    )
    parser.add_argument("--shapes", type=int, help=f"of w1 (default: {SHAPES_A_LANE} for each lane)")
    parser.add_argument("--size", type=int, default=2048, help="about how large w1's shapes are (default: 2048)")
    parser.add_argument("--model", metavar="FILE", default=str(MODEL), help="shapes of a model, for gemm_bf16")
    parser.add_argument(
        "--model_shapes",
        type=int,
        help=f"so many of them, evenly spaced (default: {MODEL_SHAPES_A_LANE} for each lane)",
    )
    parser.add_argument("--repeats", type=int, default=15, help="of a measurement in jitter (default: 15)")
    parser.add_argument("--iters", type=int, help="timed calls of a candidate at most (default: the tuner's)")
    parser.add_argument("--no_cold", action="store_true", help="leave the cold run out; the cache is warmed unseen")
    return parser.parse_args()


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in text.split(","))
    except ValueError:
        counts = (0,)
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of lanes; expected for instance 1,2")
    return tuple(sorted(set(counts)))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main())
