"""``aiter-tune verify``: are the rows of a table still right, and still faster than what they replaced?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiter_tuning.cli.interrupt import stop_on_signal
from aiter_tuning.cli.table_family import family_of
from aiter_tuning.report.verification import doubts_of, print_verification, verification_json
from aiter_tuning.tuner.arguments import TuneArguments
from aiter_tuning.tuner.outcome import ExitCode
from aiter_tuning.tuner.verifying import Doubt, Verifier

DOUBTFUL = 1


def run(args: argparse.Namespace) -> int:
    """Measures and prints; 0: all rows hold, 1: some do not, 3: interrupted.

    Raises:
        UsageError, CsvError: it cannot be done as asked.
        NoDeviceError: there is nothing to measure on.
    """
    table = Path(args.table)
    ignored: Sequence[Doubt] = args.ignore
    family = family_of([table], args.family)
    flags: dict[str, Any] = {"device": args.device, "mp": args.mp, "rounds": args.rounds, "timer": args.timer}
    flags["errRatio"] = args.errRatio
    verifier = Verifier(family, TuneArguments.of(flags, family), table)
    with stop_on_signal(verifier.request_stop):
        found = verifier.run(lambda text: print(text, file=sys.stderr))
    if args.json:
        print(verification_json(found, ignored=ignored))
    else:
        print_verification(found, sys.stdout, ignored=ignored)
    if found.interrupted:
        return int(ExitCode.interrupted)
    return DOUBTFUL if any(doubts_of(row, ignored) for row in found.rows) else 0
