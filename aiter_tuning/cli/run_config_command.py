"""``aiter-tune tune FAMILY --run_config [CSV]``: a benchmark of what serving runs; nothing is tuned or written."""

from __future__ import annotations

import argparse
import sys

from aiter_tuning.cli.interrupt import stop_on_signal
from aiter_tuning.families import find_family
from aiter_tuning.report.benchmark import benchmark_json, print_benchmark
from aiter_tuning.tuner.arguments import TuneArguments, UsageError
from aiter_tuning.tuner.outcome import ExitCode
from aiter_tuning.tuner.run_config import RunConfig

_TUNES = ("compare", "update_improved", "dry_run", "all", "fresh", "retry")
"""Flags that say something about a tuning."""


def run(args: argparse.Namespace) -> int:
    """Prints the benchmark; 0: all right, 1: something fails or is wrong, 3: interrupted.

    Raises:
        UsageError, CsvError: it cannot be done as asked.
        NoDeviceError: there is nothing to measure on.
    """
    idle = [f"--{name}" for name in _TUNES if getattr(args, name, None)]
    if idle:
        raise UsageError(
            f"--run_config tunes nothing, which {' and '.join(idle)} would be about; give one or the other"
        )
    family = find_family(args.family)
    tables = None if args.run_config is True else str(args.run_config)
    bench = RunConfig(family, TuneArguments.of(args, family), tables)
    if args.run_config is True and args.tune_file is not None:
        raise UsageError(
            f"--run_config without a table times whatever serving finds by itself, not {args.tune_file}; "
            f"write --run_config {args.tune_file}"
        )
    with stop_on_signal(bench.request_stop):
        benchmark = bench.run(lambda text: print(text, file=sys.stderr))
    if args.json:
        print(benchmark_json(benchmark))
    else:
        print_benchmark(benchmark, sys.stdout)
    if benchmark.interrupted:
        return int(ExitCode.interrupted)
    return int(ExitCode.done if benchmark.is_ok else ExitCode.no_correct_candidate)
