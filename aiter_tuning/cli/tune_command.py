"""``aiter-tune tune``: one family's run with a person watching."""

from __future__ import annotations

import argparse
import contextlib
import sys

from aiter_tuning.cli.interrupt import stop_on_signal
from aiter_tuning.families import find_family
from aiter_tuning.report.progress import progress_on
from aiter_tuning.report.summary import overview_json, print_overview, print_summary, summary_json
from aiter_tuning.tuner.tuner import TunerCommon


def run(args: argparse.Namespace) -> int:
    """Tunes, shows progress on stderr and the summary on stdout."""
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
    with contextlib.suppress(BrokenPipeError):  # the exit code tells what came of the run, not of the reader
        if args.json:
            print(summary_json(summary))
        else:
            print_summary(summary, sys.stdout, verbose=args.verbose)
        sys.stdout.flush()
    return int(summary.exit_code)
