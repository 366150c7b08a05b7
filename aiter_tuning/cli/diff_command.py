"""``aiter-tune diff A B``: what changed from one tuned table to another."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiter_tuning.cli.table_family import family_of, named_tables
from aiter_tuning.keys import DEVICE_COLUMNS, Key
from aiter_tuning.report.table import print_hidden, print_table
from aiter_tuning.tables.difference import Change, Difference, TableDifference, difference_of
from aiter_tuning.tables.tuned_reader import TunedTable, read_tuned
from aiter_tuning.tables.tuned_row import TunedRow

EXIT_DIFFERENT = 1
_SHOWN = 60
_TITLES = ("change", "shape", "device", "before", "us", "after", "us", "gain %")


def run(args: argparse.Namespace) -> int:
    """Prints a table of changes; 0 if both say the same, 1 if not."""
    before, after = named_tables(args.before), named_tables(args.after)
    key = family_of([*before, *after], args.family).key
    found = difference_of(_read(before, key), _read(after, key))
    if args.json:
        print(json.dumps(_as_json(found), indent=2, allow_nan=False))
    else:
        for table in (found.before, found.after):
            for shadow in table.conflicts:
                print(f"note: {shadow}", file=sys.stderr)
        if found.differences:
            _print_differences(found.differences, key, verbose=args.verbose)
        print(_totals(found))
    return EXIT_DIFFERENT if found.differences else 0


def _read(paths: Sequence[Path], key: Key) -> list[TunedTable]:
    return [read_tuned(path, key) for path in paths]


def _totals(found: TableDifference) -> str:
    counts = Counter(difference.change for difference in found.differences)
    words = {
        Change.added: "added",
        Change.removed: "removed",
        Change.kernel: "with another kernel",
        Change.faster: "faster",
        Change.slower: "slower",
        Change.details: "with other details",
    }
    told = [f"{counts[change]} {word}" for change, word in words.items() if counts[change]]
    return f"{', '.join(told) or 'no difference'}; {found.same} the same"


def _print_differences(differences: Sequence[Difference], key: Key, *, verbose: bool) -> None:
    shown = differences if verbose else differences[:_SHOWN]
    rows = [
        (str(one.change), _shape(one, key), _device(one), *_cells(one.before), *_cells(one.after), _gain(one))
        for one in shown
    ]
    print_table(_TITLES, rows, sys.stdout, numbers=("us", "gain %"))
    print_hidden(len(differences) - len(shown), "difference", sys.stdout)


def _shape(one: Difference, key: Key) -> str:
    return key.label(one.shape) + (f" [{one.tag}]" if one.tag else "")


def _device(one: Difference) -> str:
    gfx, cu_num, model = one.device
    return f"{gfx}/{cu_num} {model}".rstrip()


def _gain(one: Difference) -> str:
    if one.before is not None and one.after is not None and not one.comparable:
        return "other environment"
    return "" if one.gain_pct is None else f"{one.gain_pct:+.1f}"


def _cells(row: TunedRow | None) -> tuple[str, str]:
    return ("–", "") if row is None else (row.kernelName or "?", f"{row.us:g}")


def _as_json(found: TableDifference) -> dict[str, Any]:
    return {
        "differences": [
            {
                "change": str(one.change),
                "key": {**dict(zip(DEVICE_COLUMNS, one.device, strict=True)), **one.shape},
                "tag": one.tag,
                "before": _row_json(one.before),
                "after": _row_json(one.after),
                "gain_pct": one.gain_pct,
                "comparable": one.comparable,
            }
            for one in found.differences
        ],
        "same": found.same,
    }


def _row_json(row: TunedRow | None) -> dict[str, Any] | None:
    return None if row is None else {"kernel": row.kernelName, "config": dict(row.config), "us": row.us}
