"""Why a lookup finds what it finds: the row and what is known of it, or the rows that come near and what differs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiter_tuning.devices.identity import Identity
from aiter_tuning.keys import DEVICE_COLUMNS, Shape
from aiter_tuning.serving.bound import bind
from aiter_tuning.serving.operators import FamilyLike
from aiter_tuning.serving.places import Tables
from aiter_tuning.serving.table_set import Found
from aiter_tuning.tables.evidence import Evidence
from aiter_tuning.tables.tuned_row import TunedRow

MOST_NEAR = 5


@dataclass(frozen=True)
class NearMiss:
    """A row that a lookup does not take, and why."""

    row: TunedRow
    table: Path
    differs: Mapping[str, tuple[Any, Any]]
    """Fields of the key: what was asked for, and what the row has; empty if the key fits."""
    objection: str = ""
    """Why it does not serve although its key fits."""


@dataclass(frozen=True)
class Explanation:
    """What a lookup finds."""

    family: str
    shape: Shape
    served_by: Shape
    """The shape whose row serves this one; the same where the family declares no bucket."""
    device: Identity
    row: TunedRow | None
    table: Path | None = None
    """Where the row is."""
    evidence: Evidence | None = None
    """Why the row is there; None: nothing says so."""
    near: tuple[NearMiss, ...] = ()
    """Without a row: those that come nearest, the nearest first."""
    tables: tuple[Path, ...] = ()
    """What was looked into."""


def explain(family: FamilyLike, *, tuned: Tables = None, **key: Any) -> Explanation:
    """What a lookup with these arguments finds, and why; arguments and errors are those of ``lookup``."""
    answers = bind(family, tuned).answers
    answers.look_now()
    asked = answers.ask((), key)
    found = next(answers.usable(asked), None)
    common = (answers.operator.name, asked.shape, asked.served_by, asked.device)
    if found is not None:
        evidence = found.table.evidence_of(found.row)
        return Explanation(*common, found.row, found.table.path, evidence, tables=answers.tables.paths)
    wanted = {**dict(zip(DEVICE_COLUMNS, asked.device, strict=True)), **asked.served_by}
    near = sorted(_misses(wanted, answers.tables.rows()), key=lambda pair: _distance(pair[1]))[:MOST_NEAR]
    return Explanation(
        *common,
        None,
        near=tuple(
            NearMiss(one.row, one.table.path, differs, "" if differs else answers.objection(one) or "")
            for one, differs in near
        ),
        tables=answers.tables.paths,
    )


def _misses(wanted: Mapping[str, Any], rows: Iterable[Found]) -> Iterable[tuple[Found, dict[str, tuple[Any, Any]]]]:
    for found in rows:
        row = found.row
        model = row.gpu_model or wanted["gpu_model"]  # a row that names none serves every model
        has = {"gfx": row.gfx, "cu_num": row.cu_num, "gpu_model": model, **row.shape}
        yield found, {name: (value, has[name]) for name, value in wanted.items() if has[name] != value}


def _distance(differs: Mapping[str, tuple[Any, Any]]) -> tuple[float, float]:
    """Fewest fields first, and among those the nearest sizes: the very size with another dtype, say, is the nearest."""
    sizes = [pair for pair in differs.values() if all(type(value) is int and value > 0 for value in pair)]
    return len(differs), sum(abs(math.log(asked / has)) for asked, has in sizes)
