"""Rows that turned out not to run in this process: an operator says so, and lookups stop finding them.

A row may name a kernel that does not compile under this Triton, or that needs more shared memory than this device has.
The operator that finds out falls back to its default and refuses the row, so that the next call does not try again.
"""

from __future__ import annotations

import json

from aiter_tuning.tables.tuned_row import TunedRow

_refused: dict[tuple[object, ...], str] = {}


def remember(family: str, row: TunedRow, reason: str) -> None:
    """From now on, this row does not serve here."""
    _refused[_named(family, row)] = reason


def refusal_of(family: str, row: TunedRow) -> str | None:
    """Why this row does not serve here; None if nobody has refused it."""
    return _refused.get(_named(family, row)) if _refused else None


def _named(family: str, row: TunedRow) -> tuple[object, ...]:
    """Its key, kernel and config: another row for the same key is judged anew."""
    return family, row.full_key, row.kernelName, json.dumps(dict(row.config), sort_keys=True)
