"""Which rows of a table still hold: a table for a person, JSON for a program."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection
from typing import TextIO

from aiter_tuning.quantities import counted, us_digits
from aiter_tuning.report.table import print_table
from aiter_tuning.tuner.verifying import Doubt, Verification, Verified

_TITLES = ("shape", "kernel", "row us", "us now", "default us", "ahead %", "verdict")
_NUMBERS = ("row us", "us now", "default us", "ahead %")


def doubts_of(row: Verified, ignored: Collection[str] = ()) -> list[tuple[Doubt, str]]:
    """Why a row does not hold, without the kinds that are left out."""
    return [doubt for doubt in row.doubts if doubt[0] not in ignored]


def print_verification(found: Verification, stream: TextIO, *, ignored: Collection[str] = ()) -> None:
    """One line for each row, what is wrong with those that do not hold, and how many there are of each."""
    print(f"{found.table}: {found.family} on {found.device}", file=stream)
    rows = [
        (
            row.label,
            row.row.kernelName,
            _us(row.row.us),
            _us(row.us),
            _us(row.default_us),
            "" if row.ahead_pct is None else f"{row.ahead_pct:.1f}",
            _verdict(row, ignored),
        )
        for row in found.rows
    ]
    if rows:
        print_table(_TITLES, rows, stream, numbers=_NUMBERS, whole=("verdict",))
    for row in found.rows:
        for doubt, text in doubts_of(row, ignored):
            print(f"  {row.label}: {doubt}: {text}", file=stream)
    counts = Counter(_verdict(row, ignored) for row in found.rows)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    print(f"{counted(len(found.rows), 'row')} for this device{': ' + told if told else ''}", file=stream)
    unexplained = sum(not row.evidence for row in found.rows)
    if unexplained:
        print(f"{unexplained} of them without evidence: only the default stands beside those", file=stream)
    if found.others:
        print(f"{found.others} for other devices were left alone", file=stream)


def verification_json(found: Verification, *, ignored: Collection[str] = ()) -> str:
    """The same as one JSON object; latencies in microseconds."""
    return json.dumps(
        {
            "table": str(found.table),
            "family": found.family,
            "device": found.device,
            "interrupted": found.interrupted,
            "other_devices": found.others,
            "notes": list(found.notes),
            "rows": [
                {
                    "shape": dict(row.row.shape),
                    "kernel": row.row.kernelName,
                    "row_us": row.row.us,
                    "us": row.us,
                    "default": row.default,
                    "default_us": row.default_us,
                    "ahead_pct": row.ahead_pct,
                    "holds": not doubts_of(row, ignored) if row.measured else None,
                    "doubts": {str(doubt): text for doubt, text in doubts_of(row, ignored)},
                    "has_evidence": row.evidence,
                }
                for row in found.rows
            ],
        },
        indent=2,
        allow_nan=False,
    )


def _verdict(row: Verified, ignored: Collection[str]) -> str:
    doubts = doubts_of(row, ignored)
    if doubts:
        return ", ".join(dict.fromkeys(str(doubt) for doubt, _ in doubts))
    return "holds" if row.measured else "not run"


def _us(us: float | None) -> str:
    return "" if us is None or not math.isfinite(us) else us_digits(us)
