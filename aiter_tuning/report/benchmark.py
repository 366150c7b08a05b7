"""What serving runs, as a benchmark saw it: a table for a person, JSON for a program."""

from __future__ import annotations

import json
import math
from typing import TextIO

from aiter_tuning.quantities import counted, us_digits
from aiter_tuning.report.comparison import shapes_csv
from aiter_tuning.report.table import print_table
from aiter_tuning.tuner.run_config import Benchmark


def print_benchmark(benchmark: Benchmark, stream: TextIO, *, width: int | None = None) -> None:
    """E2E latencies, what is wrong, and the shapes that fail as a file of shapes."""
    if not benchmark.shapes:
        print("No shapes to benchmark", file=stream)
        return
    print(f"Benchmark results: {benchmark.family} on {benchmark.device}, {benchmark.source}", file=stream)
    rows = [(one.label, _us(one.us), one.status.upper(), one.kernel or "(default)") for one in benchmark.shapes]
    print_table(
        ("shape", "E2E us", "status", "kernel"), rows, stream, numbers=("E2E us",), whole=("status",), width=width
    )
    for one in benchmark.shapes:
        if one.reason:
            print(f"  {one.label}: reason: {one.reason}", file=stream)
    failed = [one for one in benchmark.shapes if one.status in ("error", "mismatch")]
    counts = {
        status: sum(one.status == status for one in benchmark.shapes) for status in ("ok", "error", "mismatch", "skip")
    }
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    print(f"{counted(len(benchmark.shapes), 'shape')}: {told}", file=stream)
    if failed:
        print("shapes that fail, to be run again with -i:", file=stream)
        print(shapes_csv([one.shape for one in failed], gfx=benchmark.gfx), file=stream, end="")


def benchmark_json(benchmark: Benchmark) -> str:
    """The same as one JSON object; latencies in microseconds."""
    return json.dumps(
        {
            "family": benchmark.family,
            "device": benchmark.device,
            "source": benchmark.source,
            "interrupted": benchmark.interrupted,
            "notes": list(benchmark.notes),
            "shapes": [
                {
                    "shape": one.shape,
                    "kernel": one.kernel or None,
                    "e2e_us": one.us if one.us is not None and math.isfinite(one.us) else None,
                    "status": one.status,
                    "reason": one.reason,
                }
                for one in benchmark.shapes
            ],
        },
        indent=2,
        allow_nan=False,
    )


def _us(us: float | None) -> str:
    return "" if us is None or not math.isfinite(us) else us_digits(us)
