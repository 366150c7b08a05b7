#!/usr/bin/env python3
"""What a lookup costs: microseconds of a hit and a miss, by keywords and bound, and the first ones of a process.

    PYTHONPATH=. python3 tools/bench_lookup.py                   text
    PYTHONPATH=. python3 tools/bench_lookup.py --json FILE       the figures as JSON too
    PYTHONPATH=. python3 tools/bench_lookup.py --rows 20000      a larger table

Each figure is the best of several batches: other work on the machine only ever adds. Exit code 1 where one is beyond
its bar: 5 us by keywords, 2 us bound, 5 us for a recorded miss. Takes a few seconds, needs neither torch nor a GPU.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiter_tuning.families import find_family
from aiter_tuning.serving import bind, lookup, record_misses
from aiter_tuning.tables.tuned import TunedCsv, TunedRow

FAMILY = "gemm_cpu"
BATCHES, CALLS = 15, 4000
BARS_US = {
    "hit by keywords": 5.0,
    "hit, bound, by keywords": 2.0,
    "hit, bound, by position": 2.0,
    "repeated miss, recorded": 5.0,
}


def best_us(call: Callable[[], object]) -> float:
    """Microseconds a call in the quickest batch."""
    return min(_batch(call) for _ in range(BATCHES))


def _batch(call: Callable[[], object]) -> float:
    began = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    return (time.perf_counter_ns() - began) / CALLS / 1e3


def write_table(path: Path, rows: int) -> None:
    """A table of this CPU with so many shapes."""
    here = bind(FAMILY).device
    shapes = [{"M": m, "N": 64, "K": 64, "dtype": "fp32", "bias": False} for m in range(1, rows + 1)]
    made = [TunedRow(*here, shape, 0, 0, 5.0, "linear", config={"kernel": "linear"}) for shape in shapes]
    TunedCsv(path, find_family(FAMILY).key).update(made)


def measure(directory: Path, rows: int) -> dict[str, float]:
    """The figures by name, microseconds."""
    table = directory / "tuned.csv"
    write_table(table, rows)
    tuned = bind(FAMILY, table)
    key: dict[str, Any] = {"M": 7, "N": 64, "K": 64, "dtype": "fp32", "bias": False}
    began = time.perf_counter()
    assert tuned(**key) is not None
    figures = {f"first lookup, reads {rows} rows": (time.perf_counter() - began) * 1e6}
    began = time.perf_counter()
    for m in range(8, min(rows, 508)):
        tuned(m, 64, 64)
    figures["first hit of a further key"] = (time.perf_counter() - began) * 1e6 / (min(rows, 508) - 8)
    figures["hit by keywords"] = best_us(lambda: lookup(FAMILY, tuned=table, M=7, N=64, K=64, dtype="fp32", bias=False))
    figures["hit, bound, by keywords"] = best_us(lambda: tuned(M=7, N=64, K=64, dtype="fp32", bias=False))
    figures["hit, bound, by position"] = best_us(lambda: tuned(7, 64, 64, "fp32", False))
    figures["repeated miss"] = best_us(lambda: tuned(7, 64, 65, "fp32", False))
    figures["repeated miss, recorded"] = recorded_us(directory, table)
    return figures


def recorded_us(directory: Path, table: Path, processes: int = 4) -> float:
    """Microseconds of a repeated miss in the slowest of several processes that record into one directory."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        return max(pool.starmap(_record, [(str(directory / "misses"), str(table))] * processes))


def _record(directory: str, table: str) -> float:
    record_misses(directory)
    tuned = bind(FAMILY, table)
    cost = best_us(lambda: tuned(7, 64, 65, "fp32", False))
    record_misses(None)
    return cost


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=2000, help="rows of the table (default: 2000)")
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON too")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), args.rows)
    late = False
    for name, us in figures.items():
        bar = BARS_US.get(name)
        beyond = bar is not None and us > bar
        late |= beyond
        print(
            f"{name:34} {us:10.2f} us" + ("" if bar is None else f"   bar {bar:g} us{', BEYOND IT' if beyond else ''}")
        )
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=2) + "\n")
    print("torch was not imported" if "torch" not in sys.modules else "torch WAS imported")
    return int(late or "torch" in sys.modules)


if __name__ == "__main__":
    sys.exit(main())
