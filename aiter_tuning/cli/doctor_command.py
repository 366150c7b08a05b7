"""``aiter-tune doctor``: would tuning on this machine, now, tell the truth?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aiter_tuning.report.doctor.facts import Verdict
from aiter_tuning.report.doctor.findings import findings_of, worst
from aiter_tuning.report.doctor.gather import gather
from aiter_tuning.report.doctor.page import findings_json, print_findings
from aiter_tuning.tuner.arguments import UsageError

EXIT_WOULD_MISLEAD = 1


def run(args: argparse.Namespace) -> int:
    """Prints the findings; 1 if tuning here would mislead.

    Raises:
        UsageError: ``--device`` or ``--directory`` means nothing.
    """
    directory = Path(args.directory)
    if not directory.is_dir():
        raise UsageError(f"--directory {directory}: no such directory; expected where tuned CSVs are to be written")
    try:
        facts = gather(args.device, directory)
    except ValueError as error:
        raise UsageError(f"--device {args.device}: {error}") from None
    findings = findings_of(facts)
    if args.json:
        print(findings_json(facts, findings))
    else:
        print_findings(findings, sys.stdout)
    return EXIT_WOULD_MISLEAD if worst(findings) is Verdict.bad else 0
