"""Rows whose latency was measured under other software than this run's: how they are told, and that they are due first.

::

    the row's evidence: versions ─┐
    here: driver, torch, triton ──┴▶ why it is stale ─▶ RowState ─▶ the order of shapes, --dry_run, one note

A stale row serves; what it says of its kernel's rank may not hold any more. A version that either side does not know
says nothing, and a row without evidence is taken for one of ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from aiter_tuning.quantities import counted

if TYPE_CHECKING:
    from aiter_tuning.tables.evidence_record import Evidence
    from aiter_tuning.tables.tuned_row import TunedRow

VERSIONS = ("driver", "torch", "triton")
"""What makes an environment, besides the device, which is part of a row's key."""


class RowState(IntEnum):
    """What a shape has, in the order in which shapes are tuned."""

    none = 0
    """No row, or none that serving can use."""
    stale = 1
    fresh = 2
    """As far as anybody knows."""


def changed_versions(measured: Mapping[str, Any], here: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Versions that both sides know and that differ, by name: then and now."""
    return {
        name: (str(measured[name]), here[name])
        for name in VERSIONS
        if measured.get(name) and here.get(name) and str(measured[name]) != here[name]
    }


def staleness_of(record: Evidence | None, here: Mapping[str, str]) -> str:
    """``measured under triton 3.4.0, now 3.6.0``; empty where nothing says that a row is stale.

    Args:
        record: the row's evidence, if there is any.
        here: the versions of this run.
    """
    changed = changed_versions({} if record is None else record.versions, here)
    if not changed:
        return ""
    then = " and ".join(f"{name} {measured}" for name, (measured, _) in changed.items())
    return f"measured under {then}, now {' and '.join(now for _, now in changed.values())}"


def marked(row: TunedRow, record: Evidence | None, here: Mapping[str, str]) -> TunedRow:
    """The row with its ``stale`` filled in."""
    stale = staleness_of(record, here)
    return replace(row, stale=stale) if stale != row.stale else row


def is_provisional(record: Evidence | None) -> bool:
    """Whether a row was written because a budget ended, before its shape was decided.

    Args:
        record: the row's evidence, if there is any.
    """
    return record is not None and record.published and not record.complete


def stale_note(reasons: Sequence[str], rows: int, *, without: int = 0, retunes: bool) -> str | None:
    """What a person should know about the stale rows of a run's shapes; None if there are none.

    Args:
        reasons: why each of them is stale.
        rows: how many shapes have a row that serving can use.
        without: how many have none.
        retunes: whether the run tunes shapes that have rows.
    """
    if not reasons:
        return None
    counts = Counter(reasons).most_common()
    why = counts[0][0] if len(counts) == 1 else "; ".join(f"{count} {reason}" for reason, count in counts)
    text = f"{len(reasons)} of {counted(rows, 'row')} {'is' if len(reasons) == 1 else 'are'} stale ({why})"
    if not retunes:
        stays = "stays as it is" if len(reasons) == 1 else "stay as they are"
        first = "" if len(reasons) == rows else ", stale ones first"
        return f"{text} and {stays}: --all tunes shapes again that have a row{first}"
    if len(reasons) == rows:
        return text
    return f"{text}: tuned first" + (", after the shapes without a row" if without else "")
