"""Reading a tuned table with one family's key: what each of its rows is to that family.

::

    CsvTable ─▶ Entry: row          measured, this family's: served
                       unmeasured   us is 0, -1, inf, blank: never served, replaced by a measured one
                       tagged       a variant (``_tag``) that nobody looks up
                       placeless    it names no gfx or no cu_num: matched on no device
                       foreign      a flag or dtype that this family does not compute

Rows of the last three kinds are kept when the file is written, and never found.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.keys import DEVICE_COLUMNS, Key, is_missing
from aiter_tuning.tables.csv_reader import CsvError, CsvTable, Refused, read_rows
from aiter_tuning.tables.shapes import parse_shape
from aiter_tuning.tables.tuned_row import RESULT_COLUMNS, TAG, TunedRow, cell_text, is_measured, parse_row
from aiter_tuning.tables.unknown_columns import UnknownColumns

_HARMLESS_LAST = frozenset({"tflops", "bw", "errRatio", "err_ratio", "libtype", "config", TAG})
"""Last columns of which half a cell decides nothing, or is no JSON."""


class EntryKind(StrEnum):
    """What a row of a file is to a family; see the module."""

    row = "row"
    unmeasured = "unmeasured"
    tagged = "tagged"
    placeless = "placeless"
    foreign = "foreign"


class Entry(NamedTuple):
    """A row of a file, and what it is to this family."""

    line: int
    cells: dict[str, str]
    kind: EntryKind
    key: tuple[Any, ...] | None = None
    """Its full key, where it has one that this family can read."""
    row: TunedRow | None = None
    """None where no latency was measured."""
    problem: str = ""
    """Why it is not served, for a person; empty for rows and tagged ones."""
    column: str = ""
    """Which column tells so."""

    @property
    def own_key(self) -> tuple[Any, ...] | None:
        """Its key if it is this family's to find or to replace."""
        return self.key if self.kind in (EntryKind.row, EntryKind.unmeasured) else None

    @property
    def tag(self) -> str:
        cell = self.cells.get(TAG, "")
        return "" if is_missing(cell) else cell


@dataclass(frozen=True)
class TunedTable:
    """A tuned table as it was at one moment."""

    path: Path
    table: CsvTable
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...]
    """What a person should know, one line each; those about single entries are in them."""

    @property
    def header(self) -> tuple[str, ...]:
        return self.table.header

    def place(self, entry: Entry) -> str:
        return f"{self.path}:{entry.line}"

    def notices(self) -> list[str]:
        """The warnings, and a line for each entry that is not served although somebody may think so."""
        left_out = (f"{self.place(entry)}: {entry.problem}; left out" for entry in self.entries if entry.problem)
        return [*self.warnings, *left_out]


def read_tuned(path: str | os.PathLike[str], key: Key, *, refused: Refused | None = None) -> TunedTable:
    """A tuned table of the family that ``key`` belongs to.

    Args:
        path: the CSV file.
        key: the family's key.
        refused: takes what is wrong with a row, which is then left out; None: it is raised.

    Raises:
        CsvError: the file cannot be read as a tuned table of this family.
    """
    table = read_rows(
        path,
        required=("cu_num", *key.required, "us"),
        known=(*key.columns, *DEVICE_COLUMNS),
        results=RESULT_COLUMNS,
        fold_case=True,
        refused=refused,
    )
    unknown = UnknownColumns(table.header, [row.cells for row in table.rows], key)
    entries = []
    for line, cells in table.rows:
        try:
            entries.append(_understood(table, line, cells, key, unknown))
        except CsvError as error:
            if refused is None:
                raise
            refused(error)
    return TunedTable(table.path, table, tuple(entries), tuple(_warnings(table, unknown)))


def _warnings(table: CsvTable, unknown: UnknownColumns) -> list[str]:
    warnings = list(table.warnings)
    if (sentence := unknown.warning()) is not None:
        warnings.append(f"{table.path}: {sentence}")
    if (line := cut_line(table)) is not None:
        warnings.append(
            f"{table.path}:{line}: the last line has no line end; if the file was cut off, "
            f"{table.header[-1]} is not whole; end the line if it is"
        )
    return warnings


def cut_line(table: CsvTable) -> int | None:
    """The last line, if it lacks its end and half of its last cell would pass for a whole one."""
    harmless = not table.header or table.header[-1] in _HARMLESS_LAST
    return None if harmless else table.unended


def _understood(table: CsvTable, line: int, cells: dict[str, str], key: Key, unknown: UnknownColumns) -> Entry:
    if not is_missing(cells.get(TAG)):
        return _tagged(table, line, cells, key)
    shape = parse_shape(table, line, cells, key)
    objection = unknown.objection(cells, shape)
    if objection is not None:
        return Entry(line, cells, EntryKind.foreign, None, None, objection[1].partition(",")[0], objection[0])
    row = parse_row(table, line, cells, shape)
    for column, absent, what in (
        ("gfx", is_missing(cells.get("gfx")), "for which gfx it is"),
        ("cu_num", row.cu_num < 1, "for how many compute units it is"),
    ):
        if absent:
            problem = f"the row does not say {what}"
            return Entry(line, cells, EntryKind.placeless, None, row, problem, column)
    if not is_measured(row.us):
        problem = f"us is {cells['us'] or 'blank'}, not a measured latency"
        return Entry(line, cells, EntryKind.unmeasured, row.full_key, None, problem, "us")
    return Entry(line, cells, EntryKind.row, row.full_key, row)


def _tagged(table: CsvTable, line: int, cells: dict[str, str], key: Key) -> Entry:
    """A variant: nobody looks it up, so that whatever it holds is no error."""
    try:
        row = parse_row(table, line, cells, parse_shape(table, line, cells, key))
    except CsvError:
        return Entry(line, cells, EntryKind.tagged)
    return Entry(line, cells, EntryKind.tagged, row.full_key, row if is_measured(row.us) else None)


def device_cells(cells: Mapping[str, str]) -> str:
    """For which device a row is, for a person: ``gfx942/304``, with the model where it is named."""
    model = cell_text(cells, "gpu_model")
    return f"{cells.get('gfx') or '?'}/{cells.get('cu_num') or '?'}" + (f" {model}" if model else "")
