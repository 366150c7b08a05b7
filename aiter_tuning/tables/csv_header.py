"""The first line of a table: which columns there are, which of them somebody meant, and how rows fit under them.

A header that nearly spells a column is worse than one that lacks it: the column's default would silently take its
place. So a name that is close to a missing one is refused, as is a last name that was cut off or that a row's beginning
runs into. Names that differ from ours in case only (``m,n,k``, ``KernelName``) are what older tables have; they are
read as ours where the caller asks for that, with a warning.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aiter_tuning.tables.csv_error import CsvError

NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf)")
_NEAR = 0.8
"""How alike two column names are before one is taken for a misspelling of the other."""
_VERY_NEAR = 0.85
"""The same for results, of which other tables have similar ones (``ksplit``)."""


@dataclass(frozen=True)
class Columns:
    """What a caller expects of a header."""

    required: Sequence[str] = ()
    """Have to be there."""
    known: Sequence[str] = ()
    """May be there; a near miss is refused."""
    results: Sequence[str] = ()
    """May be there, under other names too; a cut or a very near one is refused."""
    fold_case: bool = False
    """Whether a name that differs in case only is read as the column that it means."""


@dataclass(frozen=True)
class Header:
    """The columns of one table."""

    names: tuple[str, ...]
    """Named columns in the order of the file, in our spelling."""
    positions: dict[str, int]
    """Number of each column's cell in a line, from 1."""
    width: int
    """Cells in the header's line."""
    least: int
    """Cells that a row has at least: unnamed columns at the end may be left out of it."""
    line: int
    nameless_last: bool
    """Whether the last column has no name: a row that has something there tells of a header that was cut off."""
    notes: tuple[str, ...] = field(default=())


def read_header(path: Path, line: int, cells: Sequence[str], expected: Columns) -> Header:
    """The columns that a line names.

    Raises:
        CsvError: a name is there twice, misspelled, cut off or no text, or a required one is missing.
    """
    positions: dict[str, int] = {}
    for position, name in enumerate(cells, start=1):
        if not name or name.startswith("Unnamed:"):
            continue
        if name in positions:
            raise CsvError(
                path,
                f"column {name} is there twice, first as column {positions[name]}; rename or delete one",
                line=line,
                column=position,
            )
        positions[name] = position
    notes: list[str] = []
    if expected.fold_case:
        positions = _folded(positions, (*expected.required, *expected.known, *expected.results), notes)
    _check(path, line, cells, positions, expected)
    return Header(
        names=tuple(positions),
        positions=positions,
        width=len(cells),
        least=max(positions.values(), default=len(cells)),
        line=line,
        nameless_last=len(cells) > 1 and not cells[-1],
        notes=tuple(notes),
    )


def _folded(positions: dict[str, int], ours: Iterable[str], notes: list[str]) -> dict[str, int]:
    """The same columns with ours in our case, where exactly one name can be meant and ours is not there itself."""
    folded = [name.casefold() for name in positions]
    meant = {name.casefold(): name for name in ours if name not in positions}
    renamed = {}
    for name, position in positions.items():
        own = meant.get(name.casefold())
        if own is not None and folded.count(name.casefold()) == 1:
            notes.append(f"column {name} read as {own}")
            renamed[own] = position
        else:
            renamed[name] = position
    return renamed


def _check(path: Path, line: int, cells: Sequence[str], positions: dict[str, int], expected: Columns) -> None:
    missing = [name for name in expected.required if name not in positions]
    if missing and all(NUMBER.fullmatch(cell) for cell in cells):
        raise CsvError(
            path,
            f"the first line holds numbers; expected column names, among them {', '.join(expected.required)}; "
            "add a line with them",
            line=line,
            column=1,
        )
    if len(cells) == 1 and (separator := re.search(r"[;\t|]", cells[0])):
        raise CsvError(
            path,
            f"columns are separated by {separator.group()!r}; expected commas; save the file comma-separated",
            line=line,
            column=1,
        )
    for name, position in positions.items():
        if not name.isprintable():
            found = f"column name {name!r} holds what cannot be printed; expected one line of text; rename the column"
            raise CsvError(path, found, line=line, column=position)
    absent = [*missing, *(name for name in expected.known if name not in positions and name not in missing)]
    results = [name for name in expected.results if name not in positions]
    ours = {*expected.required, *expected.known, *expected.results}
    for found, position in positions.items():
        meant = None if found in ours else _near_miss(found, absent) or _near_miss(found, results, _VERY_NEAR)
        if meant is None and found not in ours and position == len(cells):
            meant = _cut_off(found, [*absent, *results]) or _run_into(found, [*absent, *results], positions)
        if meant is not None:
            raise CsvError(
                path,
                f"unknown column {found!r}; expected {meant!r}, which is missing; rename it if that is meant",
                line=line,
                column=position,
            )
    if missing:
        have = ", ".join(list(positions)[:12]) + (", …" if len(positions) > 12 else "")
        raise CsvError(
            path,
            f"no column{'s' if len(missing) > 1 else ''} {', '.join(missing)}; the file has {have or 'none'}; "
            "add what is missing",
            line=line,
        )


class RowFit:
    """Makes rows as wide as their header, or says why one cannot be."""

    def __init__(self, path: Path, columns: Header) -> None:
        self._path = path
        self._columns = columns
        self._cells: int | None = None
        """How many cells the first row has; blank ones beyond the header are an editor's if every row has them."""

    def fitted(self, line: int, cells: list[str]) -> list[str]:
        """The row with exactly as many cells as the header: without blank ones beyond it.

        Raises:
            CsvError: it is too short, or too long and the cells too many say something or are not in every row.
        """
        columns, width = self._columns, self._columns.width
        if self._cells is None:
            self._cells = len(cells)
        if len(cells) == width == self._cells and not columns.nameless_last:
            return cells
        if len(cells) < columns.least:
            missing = next(name for name, position in columns.positions.items() if position > len(cells))
            raise CsvError(
                self._path,
                f"the row has {len(cells)} cells and the header {width} columns, {missing} is the first without "
                "a cell; complete the row or delete it",
                line=line,
                column=len(cells) + 1,
            )
        surplus = next((i for i in range(width, len(cells)) if cells[i]), None)
        if surplus is not None:
            raise CsvError(
                self._path,
                f"the row has {len(cells)} cells and the header {width} columns; {cells[surplus]!r} belongs to "
                "none; delete it, or name its column",
                line=line,
                column=surplus + 1,
            )
        if (
            len(cells) != self._cells and max(len(cells), self._cells) > width
        ):  # a comma too many may have moved the cells behind it
            raise CsvError(
                self._path,
                f"the row has {len(cells)} cells, the first row {self._cells} and the header {width}; a comma too many "
                "moves what is behind it; delete it where it is",
                line=line,
                column=width + 1,
            )
        if columns.nameless_last and len(cells) >= width and cells[width - 1]:
            raise CsvError(
                self._path,
                f"{cells[width - 1]!r} is in a column without a name, the last one; expected nothing there; name the "
                f"column in line {columns.line} or delete the cell",
                line=line,
                column=width,
            )
        return cells[:width] + [""] * (width - len(cells))


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _near_miss(found: str, absent: Sequence[str], cutoff: float = _NEAR) -> str | None:
    """Which absent column ``found`` probably misspells: by case or punctuation, or by a slip in a longer name."""
    for name in absent:
        if _plain(name) == _plain(found):
            return name
    if len(found) < 3 or found[-1].isdigit():  # us1, us2 and the like count things, they misspell nothing
        return None
    close = difflib.get_close_matches(found, [name for name in absent if len(name) > 2], n=1, cutoff=cutoff)
    return close[0] if close else None


def _cut_off(found: str, absent: Sequence[str]) -> str | None:
    """Which absent column's name starts with ``found``, the last name of a header."""
    return next((name for name in absent if len(name) > len(found) and name.startswith(found)), None)


def _run_into(found: str, absent: Sequence[str], names: Iterable[str]) -> str | None:
    """Which absent column's name the last one, ``found``, starts with, a row's beginning behind it by a lost line end.

    Names that start alike (``us1,us2``) count things.
    """
    for name in absent:
        alike = sum(other.startswith(name) for other in names)
        if len(name) > 3 and alike == 1 and found.startswith(name) and found[len(name) :].isalnum():
            return name
    return None
