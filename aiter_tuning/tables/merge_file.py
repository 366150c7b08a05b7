"""Writing what several tuned tables say together into one file, with the evidence of its rows beside it.

::

    A.csv  B.csv  OUT.csv (if it is there) ─read─▶ merge_tables ─▶ OUT.csv
    A.evidence.jsonl …  ─ records of the rows that count ────────▶ OUT.evidence.jsonl, first

Only OUT is written, under its lock; what it held takes part, so that nothing in it is lost but to a better row. Tables
of one layout keep it. Several layouts become one: upstream's spellings ours, columns of any of them in all rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from aiter_tuning.keys import DEVICE_COLUMNS, Key, KeyFieldError
from aiter_tuning.tables.atomic import atomic_write
from aiter_tuning.tables.cached_rows import file_stamp
from aiter_tuning.tables.csv_error import CsvError
from aiter_tuning.tables.csv_reader import Refused
from aiter_tuning.tables.evidence import append_evidence, evidence_path, read_evidence
from aiter_tuning.tables.evidence_record import Evidence
from aiter_tuning.tables.lock import FileLock
from aiter_tuning.tables.merging import EvidenceFiles, Merge, Placed, merge_tables
from aiter_tuning.tables.tuned import written_table
from aiter_tuning.tables.tuned_reader import Entry, EntryKind, TunedTable, read_tuned
from aiter_tuning.tables.tuned_row import ALIASES, RESULT, TAG, is_measured, row_rank, spelled


@dataclass(frozen=True)
class MergedFile:
    """What came of a merge."""

    path: Path
    sources: tuple[Path, ...]
    """What was read, ``path`` last if it was there before."""
    merge: Merge
    written: int
    """Rows in the file, those that no lookup finds among them."""
    records: int
    """Records of evidence that were added."""
    warnings: tuple[str, ...]


class _Layout(NamedTuple):
    header: tuple[str, ...]
    own: bool
    """Whether it is the one layout that all tables have."""


def merge_into(
    out: str | os.PathLike[str],
    paths: Sequence[Path],
    key: Key,
    *,
    gfx: str | None = None,
    refused: Refused | None = None,
    sort: bool = False,
) -> MergedFile:
    """Merges tables into ``out``, which takes part if it is there.

    Args:
        out: the file to write; may be one of ``paths``.
        paths: the tables to read.
        key: the family's key.
        gfx: the arch of rows that name none; without it they are kept as they are and never found.
        refused: takes what is wrong with a row, which is then left out; None: it is raised.
        sort: whether to order the file by device and shape.

    Raises:
        CsvError: a table cannot be read; nothing is written.
        OSError: the file cannot be written, or another writer holds the lock too long; it is as it was.
    """
    target = Path(out)
    others = [path for path in paths if os.path.realpath(path) != os.path.realpath(target)]
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise CsvError(missing, "no such file; expected a CSV file; check the path")

    def read(path: Path) -> TunedTable:
        table = read_tuned(path, key, refused=refused)
        return table if gfx is None else _with_gfx(table, gfx)

    def read_target() -> list[TunedTable]:
        """Nothing where it is not there yet, or was only touched; one that is named to be read has to be a table."""
        return [read(target)] if file_stamp(target) is not None or len(others) < len(paths) else []

    tables = [read(path) for path in others]
    evidence = EvidenceFiles()
    # The evidence of a row is on file before the row, as where rows are tuned; under a lock of its own.
    records = _records(merge_tables([*tables, *read_target()], evidence), target, evidence)
    append_evidence(target, records)
    with FileLock.beside(target):
        tables += read_target()
        merge = merge_tables(tables, evidence)
        header, rows = _written(tables, [*merge.kept, *merge.others], key, sort=sort)
        atomic_write(target, written_table(header, rows))
    return MergedFile(
        target,
        tuple(table.path for table in tables),
        merge,
        len(rows),
        len(records),
        (*(warning for table in tables for warning in table.warnings), *merge.evidence_warnings),
    )


def _written(
    tables: Sequence[TunedTable], placed: Iterable[Placed], key: Key, *, sort: bool
) -> tuple[tuple[str, ...], list[Mapping[str, str]]]:
    """The columns of the merged file, and its rows, each once."""
    layout = _layout(tables, key)
    headers = {table.path: table.header for table in tables}
    ordered = sorted(placed, key=lambda one: row_rank(one.entry.own_key, key)) if sort else placed
    rows = [_cells(one, layout, key, headers) for one in ordered]
    distinct = {tuple(cells.get(name, "") for name in layout.header): cells for cells in rows}
    return layout.header, list(distinct.values())


def _with_gfx(table: TunedTable, gfx: str) -> TunedTable:
    """The table with rows that name no arch as rows of this one."""

    def placed(entry: Entry) -> Entry:
        if entry.kind is not EntryKind.placeless or entry.column != "gfx" or entry.row is None:
            return entry
        row = replace(entry.row, gfx=gfx)
        measured = is_measured(row.us)
        return Entry(
            entry.line,
            {**entry.cells, "gfx": gfx},
            EntryKind.row if measured else EntryKind.unmeasured,
            row.full_key,
            row if measured else None,
            "" if measured else f"us is {entry.cells['us'] or 'blank'}, not a measured latency",
            "us",
        )

    return replace(table, entries=tuple(map(placed, table.entries)))


def _records(merge: Merge, target: Path, evidence: EvidenceFiles) -> list[Evidence]:
    """Records that explain rows which count, and which the target's evidence lacks."""
    there = {record.to_json() for record in read_evidence(evidence_path(target), warnings=[])}
    found = (evidence.of(placed) for placed in merge.kept)
    records = {record.to_json(): record for record in found if record is not None}
    new = [record for text, record in records.items() if text not in there]
    return sorted(new, key=lambda record: record.ended)


def _layout(tables: Iterable[TunedTable], key: Key) -> _Layout:
    headers = list(dict.fromkeys(table.header for table in tables))
    named = [name for header in headers for name in header]
    if len(headers) == 1 and "gfx" in named:
        return _Layout(headers[0], own=True)
    ours = {alias: name for name, alias in ALIASES.items()}
    columns = dict.fromkeys(ours.get(name, name) for name in named)
    first = [name for name in (*DEVICE_COLUMNS, *key.columns) if name in columns or name == "gfx"]
    last = [*(name for name in RESULT if name in columns), *([TAG] if TAG in columns else [])]
    between = [name for name in columns if name not in first and name not in last]
    return _Layout((*first, *between, *last), own=False)


def _cells(placed: Placed, layout: _Layout, key: Key, headers: Mapping[Path, tuple[str, ...]]) -> Mapping[str, str]:
    """A row's cells under the file's columns."""
    entry = placed.entry
    if layout.own:
        return entry.cells
    cells = {name: entry.cells.get(spelled(headers[placed.path], name), "") for name in layout.header}
    try:  # a column that its own file lacks holds the field's default
        cells |= {name: cell for name, cell in key.format(entry.cells).items() if name in cells and not cells[name]}
    except KeyFieldError:  # a variant that this family cannot read stays as it is
        pass
    return cells
