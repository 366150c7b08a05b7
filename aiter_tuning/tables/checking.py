"""Everything that is wrong with tables of one family, as far as the files themselves can tell.

::

    tuned CSVs  ─▶ each row: read, measured, for some device ─▶ keys within and across files ─▶ findings
    shape CSVs  ─▶ each row: read ─▶ repeated shapes ───────────────────────────────────────▶ findings

What only the operator knows (kernels, buckets, archs) is asked in ``tuner.catalogue``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aiter_tuning.keys import Key
from aiter_tuning.tables.cached_rows import file_stamp
from aiter_tuning.tables.csv_error import CsvError
from aiter_tuning.tables.csv_reader import CsvScan
from aiter_tuning.tables.evidence import evidence_path, read_evidence
from aiter_tuning.tables.findings import Code, Finding
from aiter_tuning.tables.merging import EvidenceFiles, Merge, Shadowed, merge_tables
from aiter_tuning.tables.shapes import ShapeFile, read_shapes
from aiter_tuning.tables.tuned_reader import EntryKind, TunedTable, cut_line, device_cells, read_tuned

_KINDS = {
    EntryKind.unmeasured: Code.unmeasured,
    EntryKind.placeless: Code.placeless,
    EntryKind.foreign: Code.other_computation,
}
_UNENDED = "the last line has no line end"
_ADVICE = {
    Code.unmeasured: "tune the shape, or delete the row",
    Code.placeless: "add it, or `aiter-tune merge --gfx ARCH` it into a new table",
    Code.other_computation: "no lookup of this family finds it",
}


class Target(NamedTuple):
    """The device that a table has to serve."""

    gfx: str
    cu_num: int | None = None

    def __str__(self) -> str:
        return self.gfx if self.cu_num is None else f"{self.gfx}/{self.cu_num}"

    def is_met(self, gfx: str, cu_num: int) -> bool:
        return gfx == self.gfx and self.cu_num in (None, cu_num)


@dataclass
class Checked:
    """What was read, and what is wrong with it so far."""

    key: Key
    findings: list[Finding] = field(default_factory=list)
    tuned: list[TunedTable] = field(default_factory=list)
    shapes: list[ShapeFile] = field(default_factory=list)
    merge: Merge = field(default_factory=lambda: merge_tables(()))
    evidence: EvidenceFiles = field(default_factory=EvidenceFiles)

    @property
    def notes(self) -> list[str]:
        """What a person should know and nobody has to mend."""
        notes = [
            note for table in self.tuned for note in table.warnings if _UNENDED not in note
        ]  # a finding of its own
        for file in self.shapes:  # where people leave the last line as they please
            ended = file.unended is None
            notes += [*file.warnings, *([] if ended else [f"{file.path}:{file.unended}: {_UNENDED}"])]
        return notes


def holds_results(path: Path) -> bool:
    """Whether a file is a tuned table rather than one of shapes: it has latencies, or says so by its name.

    Raises:
        CsvError: there is no such file, or nothing in it.
    """
    header = {name.casefold() for name in CsvScan(path, refused=lambda error: None).header}
    return "us" in header or ("tuned" in path.name.replace("untuned", ""))


def check_tables(paths: Sequence[Path], key: Key, *, target: Target | None = None) -> Checked:
    """Reads tables of one family and says what is wrong with them.

    Args:
        paths: tuned CSVs and CSVs of shapes.
        key: the family's key.
        target: a device that each tuned table must have rows for.
    """
    checked = Checked(key)

    def refused(error: CsvError) -> None:
        checked.findings.append(Finding.of(error))

    for path in paths:
        try:
            if file_stamp(path) is None and path.exists():
                checked.findings.append(Finding(Code.empty, path, "0 rows, not even a line of column names"))
            elif holds_results(path):
                checked.tuned.append(read_tuned(path, key, refused=refused))
            else:
                checked.shapes.append(read_shapes(path, key, refused=refused))
        except CsvError as error:
            refused(error)
    for table in checked.tuned:
        checked.findings += _rows(table, target)
    for file in checked.shapes:
        checked.findings += _repeated(file)
    checked.findings += _evidence(checked.tuned)
    checked.merge = merge_tables(checked.tuned, checked.evidence)
    checked.findings += (_of_shadow(shadow, key) for shadow in checked.merge.shadowed)
    return checked


def _rows(table: TunedTable, target: Target | None) -> Iterable[Finding]:
    for entry in table.entries:
        code = _KINDS.get(entry.kind)
        if code is not None:
            column = table.table.positions.get(entry.column)
            message = f"{entry.problem}; {_ADVICE[code]}"
            yield Finding(code, table.path, message, entry.line, column, {"device": device_cells(entry.cells)})
    if (line := cut_line(table.table)) is not None:
        message = f"{_UNENDED}: was the file cut off? end the line if its last cell is whole"
        yield Finding(Code.no_line_end, table.path, message, line)
    rows = [entry.row for entry in table.entries if entry.kind is EntryKind.row and entry.row is not None]
    if target is not None and not any(target.is_met(row.gfx, row.cu_num) for row in rows):
        others = sorted({f"{row.gfx}/{row.cu_num}" for row in rows})
        message = f"0 rows for {target}" + (f"; it has rows for {', '.join(others)}" if others else "")
        yield Finding(Code.empty, table.path, message, facts={"device": str(target), "devices": others})
    elif not rows:
        yield Finding(Code.empty, table.path, "0 rows that a lookup can find; tune the shapes that it is for")


def _repeated(file: ShapeFile) -> Iterable[Finding]:
    for line, first in file.repeated:
        yield Finding(
            Code.duplicate, file.path, f"the shape of line {first} again; delete one", line, facts={"first_line": first}
        )


def _evidence(tables: Iterable[TunedTable]) -> Iterable[Finding]:
    for table in tables:
        path, damaged = evidence_path(table.path), list[str]()
        try:
            read_evidence(path, warnings=damaged)
        except OSError as error:
            yield Finding(Code.bad_evidence, path, f"cannot be read ({error.strerror or error})")
        for warning in damaged:
            line, _, found = warning.removeprefix(f"{path}:").partition(": ")
            yield Finding(Code.bad_evidence, path, found.removesuffix("; skipped"), int(line))


def _of_shadow(shadow: Shadowed, key: Key) -> Finding:
    kept, left = shadow.kept, shadow.left
    within = os.path.realpath(kept.path) == os.path.realpath(left.path)
    place = f"line {kept.entry.line}" if within else str(kept)
    facts: dict[str, object] = {"kept": str(kept), "conflict": shadow.conflict}
    about = ""
    if left.entry.row is not None and kept.entry.row is not None:
        row, best = left.entry.row, kept.entry.row
        about = f"{key.label(row.shape)} on {device_cells(left.entry.cells)}: "
        facts |= {"us": row.us, "kept_us": best.us, "kernel": row.kernelName, "kept_kernel": best.kernelName}
        facts["key"] = {"gfx": row.gfx, "cu_num": row.cu_num, "gpu_model": row.gpu_model, **row.shape}
    return Finding(
        Code.duplicate if within else Code.clash,
        left.path,
        f"{about}the key of {place} again, {shadow.reason}; that row counts, delete one",
        left.entry.line,
        facts=facts,
    )
