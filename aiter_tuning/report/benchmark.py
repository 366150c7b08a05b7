"""What serving runs, as a benchmark saw it: a table for a person, JSON for a program."""

from __future__ import annotations

import json
import math
from typing import TextIO

from aiter_tuning.report.comparison import shapes_csv
from aiter_tuning.report.progress import shape_count
from aiter_tuning.report.run_state import format_us
from aiter_tuning.report.summary import print_table
from aiter_tuning.tuner.run_config import Benchmark


def print_benchmark(benchmark: Benchmark, stream: TextIO, *, width: int | None = None) -> None:
    """E2E latencies, what is wrong, and the shapes that fail as a file of shapes."""
    from rich.table import Table
    from rich.text import Text

    if not benchmark.shapes:
        print("No shapes to benchmark", file=stream)
        return
    print(f"Benchmark results: {benchmark.family} on {benchmark.device}, {benchmark.source}", file=stream)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("shape", overflow="fold")
    table.add_column("E2E us", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("kernel", overflow="fold")
    for one in benchmark.shapes:
        us = "" if one.us is None or not math.isfinite(one.us) else format_us(one.us).removesuffix(" us")
        table.add_row(*map(Text, (one.label, us, one.status.upper(), one.kernel or "(default)")))
    print_table(table, stream, width)
    for one in benchmark.shapes:
        if one.reason:
            print(f"  {one.label}: reason: {one.reason}", file=stream)
    failed = [one for one in benchmark.shapes if one.status in ("error", "mismatch")]
    counts = {
        status: sum(one.status == status for one in benchmark.shapes) for status in ("ok", "error", "mismatch", "skip")
    }
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    print(f"{shape_count(len(benchmark.shapes))}: {told}", file=stream)
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
