"""``aiter-tune tune``: one family's run with a person watching."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from aiter_tuning.cli import run_config_command
from aiter_tuning.cli.interrupt import stop_on_signal
from aiter_tuning.families import find_family
from aiter_tuning.report.comparison import comparison_text, print_comparison, report_path
from aiter_tuning.report.progress import progress_on
from aiter_tuning.report.summary import overview_json, print_overview, print_summary, summary_json
from aiter_tuning.tuner.outcome import RunSummary
from aiter_tuning.tuner.tuner import TunerCommon


def run(args: argparse.Namespace) -> int:
    """Tunes, shows progress on stderr and the summary on stdout."""
    if args.run_config:
        return run_config_command.run(args)
    tuner = TunerCommon(find_family(args.family))
    if args.dry_run:
        overview = tuner.overview(args)
        for note in overview.notes:
            print(note, file=sys.stderr)
        if args.json:
            print(overview_json(overview))
        else:
            print_overview(overview, sys.stdout, verbose=args.verbose)
        return 0
    with progress_on(sys.stderr, verbose=args.verbose) as progress, stop_on_signal(tuner.request_stop):
        summary = tuner.run(args, progress)
    report = _write_report(summary) if summary.compared and summary.shapes else None
    with contextlib.suppress(BrokenPipeError):  # the exit code tells what came of the run, not of the reader
        if args.json:
            print(summary_json(summary))
        else:
            print_summary(summary, sys.stdout, verbose=args.verbose)
            if summary.compared:
                print_comparison(summary, sys.stdout, verbose=args.verbose, gfx=summary.gfx)
            if report is not None:
                print(f"report: {report}")
        sys.stdout.flush()
    return int(summary.exit_code)


def _write_report(summary: RunSummary) -> Path | None:
    """The report of a comparison as a file; its decisions do not depend on whether there is room for it."""
    path = report_path(Path(summary.tune_file), os.getpid())
    try:
        path.write_text(comparison_text(summary, gfx=summary.gfx))
    except OSError as error:
        print(f"{path}: the report could not be written: {error.strerror or error}", file=sys.stderr)
        return None
    return path
