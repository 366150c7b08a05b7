"""A file of shapes, typed and keyed: what a run is asked to tune.

Tuned tables serve as files of shapes too; what they say about devices and kernels is left out, and rows that differ
in nothing else are one shape. A column ``calls`` says how often serving asks for a shape: rows of one shape are added
up. It is what the recorder of misses writes, whose files may end in a line that was cut off: in a file that has the
column a broken line costs itself and a warning.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from aiter_tuning.keys import CALLS_COLUMN, Key, KeyFieldError, KeyValue, Shape, is_missing
from aiter_tuning.tables.csv_reader import CsvError, CsvTable, Refused, read_rows
from aiter_tuning.tables.unknown_columns import UnknownColumns


@dataclass(frozen=True)
class ShapeFile:
    """The distinct shapes of a file."""

    path: Path
    shapes: tuple[Shape, ...]
    """In the order of their first row."""
    rows: int
    """How many rows the file has; blank ones do not count."""
    warnings: tuple[str, ...]
    """What a person should know, one line each."""
    lines: tuple[int, ...] = ()
    """Where each shape is first."""
    repeated: tuple[tuple[int, int], ...] = ()
    """Lines that repeat a shape, each with the line of the first."""
    unended: int | None = None
    """The last line, if it lacks its line end: its last cell may have been cut off."""
    calls: tuple[float, ...] = ()
    """How often each shape is asked for; empty if the file does not tell. Rows that repeat a shape are no duplicates
    then, but further calls."""

    @property
    def duplicates(self) -> int:
        """Rows that repeat a shape."""
        return self.rows - len(self.shapes)


def parse_shape(table: CsvTable, line: int, cells: dict[str, str], key: Key) -> Shape:
    """The shape of one row.

    Raises:
        CsvError: a cell does not fit its field; names file, line and column.
    """
    try:
        return key.parse(cells)
    except KeyFieldError as error:
        raise table.error(line, error.column, f"{error}; correct the cell") from None


def read_shapes(path: str | os.PathLike[str], key: Key, *, refused: Refused | None = None) -> ShapeFile:
    """The shapes in a CSV file; fields with a default may lack their column.

    Args:
        path: the CSV file.
        key: the family's key.
        refused: takes what is wrong with a row, which is then left out; None: it is raised.

    Raises:
        CsvError: the file is missing, empty or broken, a cell does not fit its field, or an unknown column's value
            makes a row mean something else than this family computes (a true flag, another dtype).
    """
    table = _read(path, key, refused)
    if not set(key.columns) & set(table.header):  # no shape is guessed from defaults alone
        raise CsvError(table.path, f"no column of a shape; expected {', '.join(key.columns)}; add them", line=1)
    unknown = UnknownColumns(table.header, [row.cells for row in table.rows], key)
    counted = CALLS_COLUMN in table.header
    found: dict[tuple[KeyValue, ...], _Found] = {}
    repeated: list[tuple[int, int]] = []
    for line, cells in table.rows:
        try:
            shape = _checked(table, line, cells, key, unknown)
            calls = _calls(table, line, cells) if counted else 0
        except CsvError as error:
            if refused is None:
                raise
            refused(error)
            continue
        first = found.setdefault(tuple(shape.values()), _Found(shape, line))
        first.calls += calls
        if first.line != line and not counted:
            repeated.append((line, first.line))
    warning = unknown.warning()
    return ShapeFile(
        table.path,
        shapes=tuple(one.shape for one in found.values()),
        rows=len(found) + len(repeated),
        warnings=(*table.warnings, *([f"{table.path}: {warning}"] if warning else [])),
        lines=tuple(one.line for one in found.values()),
        repeated=tuple(repeated),
        unended=table.unended,
        calls=tuple(one.calls for one in found.values()) if counted else (),
    )


@dataclass
class _Found:
    """A shape, where it is first, and how often it is asked for."""

    shape: Shape
    line: int
    calls: float = 0


def _checked(table: CsvTable, line: int, cells: dict[str, str], key: Key, unknown: UnknownColumns) -> Shape:
    """The shape of a row that means what this family computes."""
    shape = parse_shape(table, line, cells, key)
    objection = unknown.objection(cells, shape)
    if objection is not None:
        raise table.error(line, *objection)
    return shape


def _read(path: str | os.PathLike[str], key: Key, refused: Refused | None) -> CsvTable:
    try:
        return read_rows(path, required=key.required, known=key.columns, fold_case=True, refused=refused)
    except CsvError:
        if refused is not None:
            raise
        broken: list[CsvError] = []
        table = read_rows(path, required=key.required, known=key.columns, fold_case=True, refused=broken.append)
        if CALLS_COLUMN not in table.header:
            raise
        table.warnings.extend(f"{error}; skipped" for error in broken)
        return table


def _calls(table: CsvTable, line: int, cells: dict[str, str]) -> float:
    """How often a row says that its shape is asked for; once where it does not say."""
    cell = cells[CALLS_COLUMN]
    if is_missing(cell):
        return 1
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise table.error(line, CALLS_COLUMN, f"calls is {cell!r}; expected a number of 0 or more; correct the cell")
    return int(number) if number.is_integer() else number
