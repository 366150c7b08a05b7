"""``aiter-tune check``: what is wrong with tables, before serving finds out."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from aiter_tuning.cli.table_family import families_of, named_tables
from aiter_tuning.quantities import counted
from aiter_tuning.serving.versions import installed
from aiter_tuning.tables.checking import Checked, Target, check_tables
from aiter_tuning.tables.findings import Finding, lines_of
from aiter_tuning.tables.merge_file import merge_into
from aiter_tuning.tuner.arguments import UsageError, check_writable
from aiter_tuning.tuner.catalogue import check_catalogue, untuned_sibling
from aiter_tuning.tuner.family import Family

EXIT_FINDINGS = 1


def run(args: argparse.Namespace) -> int:
    """Prints the findings, with their places; 1 if there are any."""
    paths = named_tables(args.tables)
    target = _target(args.target)
    if args.fix is not None:
        _check_fix(paths, Path(args.fix))
    findings: list[Finding] = []
    notes: list[str] = []
    for family, files in families_of(paths, args.family).values():
        checked, found = _check(family, files, target)
        findings += found
        notes += checked.notes
    findings = [finding for finding in findings if finding.code not in args.ignore]
    fixed = _fix(paths[0], Path(args.fix), args.family) if args.fix is not None else None
    if args.json:
        counts = Counter(str(finding.code) for finding in findings)
        report = {
            "files": [str(path) for path in paths],
            "findings": [finding.as_json() for finding in findings],
            "counts": dict(sorted(counts.items())),
            "notes": notes,
        }
        print(json.dumps(report, indent=2, allow_nan=False, default=str))
    else:
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        for line in lines_of(findings):
            print(line)
        print(_totals(findings, len(paths)))
    if fixed is not None:
        print(fixed, file=sys.stderr)
    return EXIT_FINDINGS if findings else 0


def _check(family: Family, files: Sequence[Path], target: Target | None) -> tuple[Checked, list[Finding]]:
    checked = check_tables(files, family.key, target=target)
    siblings = {sibling.resolve(): sibling for table in checked.tuned if (sibling := untuned_sibling(table))}
    unread = [path for real, path in siblings.items() if real not in {file.resolve() for file in files}]
    if unread:
        checked = check_tables([*files, *unread], family.key, target=target)
    versions = {name: installed(name) or "unknown" for name in ("torch", "triton")}
    found = check_catalogue(family, checked, versions=versions, target=target)
    return checked, sorted([*checked.findings, *found], key=lambda one: (str(one.path), one.line or 0))


def _target(text: str | None) -> Target | None:
    if text is None:
        return None
    gfx, _, cu_num = text.partition("/")
    if not gfx or (cu_num and not cu_num.isdecimal()):
        raise UsageError(f"--for {text}: expected an arch and a number of compute units, e.g. gfx942/304")
    return Target(gfx, int(cu_num) if cu_num else None)


def _totals(findings: Sequence[Finding], files: int) -> str:
    where = counted(files, "file")
    if not findings:
        return f"nothing found in {where}"
    counts = Counter(str(finding.code) for finding in findings)
    kinds = ", ".join(f"{count} {code}" for code, count in counts.most_common())
    return f"{counted(len(findings), 'finding')} in {where}: {kinds}"


def _check_fix(paths: Sequence[Path], out: Path) -> None:
    if len(paths) != 1:
        raise UsageError(f"--fix mends one table, {len(paths)} are named; `aiter-tune merge` makes one of several")
    if out.exists():
        raise UsageError(f"--fix {out}: is there already; expected the name of a new file")
    check_writable(out, "--fix")


def _fix(path: Path, out: Path, named: str | None) -> str:
    """Writes what of a table can be served, without rows that cannot be read, were never measured or do not count."""
    ((family, _),) = families_of([path], named).values()
    broken: list[object] = []
    merged = merge_into(out, [path], family.key, refused=broken.append)
    merge = merged.merge
    return (
        f"{out}: {merged.written} rows; left out: {len(broken)} that cannot be read, "
        f"{len(merge.unmeasured)} never measured, {len(merge.shadowed)} that do not count"
    )
