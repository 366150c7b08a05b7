"""``aiter-tune merge``: several tuned tables into one file, or what that would come to."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from aiter_tuning.cli.table_family import family_of, named_tables
from aiter_tuning.quantities import counted
from aiter_tuning.report.table import print_hidden
from aiter_tuning.tables.merge_file import MergedFile, merge_into
from aiter_tuning.tables.merging import Shadowed
from aiter_tuning.tuner.arguments import check_writable

_SHOWN = 40


def run(args: argparse.Namespace) -> int:
    """Writes the merged table and reports rows that do not count, conflicts first."""
    paths, out = named_tables(args.tables), Path(args.output)
    family = family_of(paths, args.family)
    check_writable(out, "-o")
    merged = merge_into(out, paths, family.key, gfx=args.gfx, sort=args.sort)
    if args.json:
        print(json.dumps(_as_json(merged), indent=2, allow_nan=False))
    else:
        _print(merged, verbose=args.verbose)
    return 0


def _print(merged: MergedFile, *, verbose: bool) -> None:
    merge = merged.merge
    for warning in merged.warnings:
        print(f"note: {warning}", file=sys.stderr)
    for one in (*merge.unmeasured, *(other for other in merge.others if other.entry.problem)):
        print(f"note: {one}: {one.entry.problem}", file=sys.stderr)
    conflicts = merge.conflicts
    shown = conflicts if verbose else conflicts[:_SHOWN]
    for conflict in shown:
        print(f"conflict: {conflict}")
    print_hidden(len(conflicts) - len(shown), "conflict", sys.stdout)
    if verbose:
        for shadow in merge.shadowed:
            if not shadow.conflict:
                print(f"shadowed: {shadow}")
    rows, files = counted(merged.written, "row"), counted(len(merged.sources), "file")
    told = counted(len(conflicts), "conflict")
    left = f"{len(merge.shadowed)} do not count ({told}), {len(merge.unmeasured)} never measured"
    print(f"{merged.path}: {rows} of {files}; left out: {left}; {merged.records} records of evidence added")


def _as_json(merged: MergedFile) -> dict[str, object]:
    return {
        "file": str(merged.path),
        "sources": [str(path) for path in merged.sources],
        "rows": merged.written,
        "records": merged.records,
        "shadowed": [_shadow_json(shadow) for shadow in merged.merge.shadowed],
        "unmeasured": [str(one) for one in merged.merge.unmeasured],
        "unfindable": [str(one) for one in merged.merge.others],
        "warnings": list(merged.warnings),
    }


def _shadow_json(shadow: Shadowed) -> dict[str, object]:
    kept, left = shadow.kept.entry.row, shadow.left.entry.row
    return {
        "kept": str(shadow.kept),
        "left": str(shadow.left),
        "kept_us": kept.us if kept is not None else None,
        "us": left.us if left is not None else None,
        "reason": shadow.reason,
        "conflict": shadow.conflict,
    }
