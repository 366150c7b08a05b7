"""``aiter-tune lookup``: what serving finds for one shape, and why."""

from __future__ import annotations

import argparse
import json
from typing import Any

from aiter_tuning.cli.serving_flags import key_mistake, named_fields
from aiter_tuning.families import find_family
from aiter_tuning.keys import DEVICE_COLUMNS, KeyFieldError
from aiter_tuning.serving import Explanation, NearMiss, explain
from aiter_tuning.tables.evidence import Evidence
from aiter_tuning.tables.tuned_row import TunedRow
from aiter_tuning.tuner.family import Family

MISS = 1


def run(args: argparse.Namespace) -> int:
    """Prints the row, or the nearest ones; 0 if there is one, else 1.

    Raises:
        UsageError: a field means nothing.
        FamilyError: there is no such family.
    """
    fields = named_fields(args.fields)
    family = find_family(args.family)
    try:
        explanation = explain(family, tuned=args.tuned, **fields)
    except KeyFieldError as error:
        raise key_mistake(error, fields) from None
    if args.json:
        print(json.dumps(_as_json(explanation), indent=2))
    else:
        print("\n".join(_as_text(family, explanation)))
    return 0 if explanation.row is not None else MISS


def _as_text(family: Family, found: Explanation) -> list[str]:
    what = f"{found.family} {family.key.label(found.shape)} on {found.device}"
    if found.served_by != found.shape:
        what += f", served by {family.key.label(found.served_by)}"
    if found.row is None:
        nearest = [f"  nearest    {_near(family, one)}" for one in found.near] or ["  its tables hold no row at all"]
        tables = [f"  looked in  {path}{'' if path.exists() else ' (not there)'}" for path in found.tables]
        return [f"{what}: no row, its default serves", *nearest, *tables]
    row = found.row
    lines = [what, f"  kernel     {row.kernelName}, {row.us:g} us", f"  table      {found.table}"]
    lines.append(f"  evidence   {_evidence(found.evidence)}")
    if row.config:
        lines.insert(2, f"  config     {json.dumps(dict(row.config), separators=(',', ':'))}")
    if row.stale:
        lines.append(f"  stale      {row.stale}: tune it again")
    return lines


def _evidence(evidence: Evidence | None) -> str:
    if evidence is None:
        return "none: nothing says when and how it was measured"
    numbers = [
        f"{name} {value:.2f} %"
        for name, value in (("margin", evidence.margin_pct), ("bar", evidence.bar_pct), ("noise", evidence.noise_pct))
        if value is not None
    ]
    when = f" on {evidence.ended}" if evidence.ended else ""
    return f"{evidence.verdict}{when}: {evidence.reason}" + (f" ({', '.join(numbers)})" if numbers else "")


def _near(family: Family, near: NearMiss) -> str:
    row = near.row
    told = f"{family.key.label(row.shape)} {row.kernelName or row.kernelId}, {row.us:g} us, in {near.table}"
    if not near.differs:
        return f"{told}: {near.objection}"
    return f"{told}: " + ", ".join(
        f"{name} is {has} there, {asked} here" for name, (asked, has) in near.differs.items()
    )


def _as_json(found: Explanation) -> dict[str, Any]:
    return {
        "family": found.family,
        "shape": found.shape,
        "served_by": found.served_by,
        "device": dict(zip(DEVICE_COLUMNS, found.device, strict=True)),
        "row": None if found.row is None else _row(found.row),
        "table": None if found.table is None else str(found.table),
        "evidence": None if found.evidence is None else json.loads(found.evidence.to_json()),
        "nearest": [
            {
                "row": _row(one.row),
                "table": str(one.table),
                "differs": {name: {"asked": asked, "row": has} for name, (asked, has) in one.differs.items()},
                "objection": one.objection,
            }
            for one in found.near
        ],
        "tables": [str(path) for path in found.tables],
    }


def _row(row: TunedRow) -> dict[str, Any]:
    return {
        **{column: getattr(row, column) for column in DEVICE_COLUMNS},
        **row.shape,
        "kernelId": row.kernelId,
        "splitK": row.splitK,
        "us": row.us,
        "kernelName": row.kernelName,
        "tflops": row.tflops,
        "bw": row.bw,
        "errRatio": row.errRatio,
        "config": dict(row.config),
        "stale": row.stale,
    }
