"""Reading CSV files as people and tools leave them, and saying exactly where one is wrong.

Upstream's reader lets pandas guess: a blank row turns sizes into floats, a row with one cell too many shifts every
column, ``Null`` turns a numeric column into text, half a line survives as NaN. Here a cell is text under its column's
name until somebody who knows the column reads it, and whatever cannot be meant is refused with file:line:column::

    bytes ─► lines ─► records ─► (line, {column: cell})     CsvScan, read_rows: no pandas
                                        └──► DataFrame      read_csv: numeric where all cells are

Two kinds of files differ at their end. One that a person or a tool wrote may lack its last newline, its last row
counts. In one that we append to (``appended=True``) an unterminated last line is a write that never ended: it is
dropped, as is a garbled line in the middle, each with a warning.
"""

from __future__ import annotations

import csv
import difflib
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aiter_tuning.keys import is_missing

if TYPE_CHECKING:
    import pandas as pd

_CONFLICT = re.compile(r"(?:<{7}|>{7}|\|{7})(?:\s|$)|={7}\s*$")
_LINE_END = re.compile(r"\r\n|\n|\r")  # str.splitlines knows more line ends than the csv module
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf)")
_NEAR = 0.8
"""How alike two column names are before one is taken for a misspelling of the other."""


class CsvError(ValueError):
    """A file that cannot be read as it is.

    ``str()`` is ``file:line:column: what was found; what was expected; what to do``. ``line`` counts from 1 and
    ``column`` is the number of the cell in its line, from 1; both are None where they do not apply.
    """

    def __init__(
        self, path: str | os.PathLike[str], found: str, *, line: int | None = None, column: int | None = None
    ) -> None:
        super().__init__(path, found)
        self.path = os.fspath(path)
        self.found = found
        self.line = line
        self.column = column

    def __str__(self) -> str:
        place = [self.path, *(str(number) for number in (self.line, self.column) if number is not None)]
        return f"{':'.join(place)}: {self.found}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.path, self.found, self.line, self.column))


def _rebuild(path: str, found: str, line: int | None, column: int | None) -> CsvError:
    return CsvError(path, found, line=line, column=column)


class CsvRow(NamedTuple):
    """One row and where it starts."""

    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class CsvTable:
    """A whole file: every row that says something, cells stripped."""

    path: Path
    header: tuple[str, ...]
    """Named columns, in the order of the file."""
    rows: list[CsvRow]
    positions: dict[str, int]
    """Number of each column's cell in a line, from 1, for error messages."""
    warnings: list[str]

    def error(self, line: int, column: str, found: str) -> CsvError:
        """A complaint about one cell of this file."""
        return CsvError(self.path, found, line=line, column=self.positions.get(column))


class _Record(NamedTuple):
    line: int
    cells: list[str]


@dataclass
class CsvScan:
    """A file read row by row; the header is checked when the scan is made, rows while they are iterated.

    Args:
        path: the file.
        required: columns that must be there; a near miss in spelling is named.
        known: columns that may be there; a header that nearly spells a missing one of them is refused, because the
            column's default would silently take its place.
        appended: whether the file is one that we append to (see the module).

    Raises:
        CsvError: on construction (no such file, empty, header) or while iterating.
    """

    path: Path
    required: Sequence[str] = ()
    known: Sequence[str] = ()
    appended: bool = False
    warnings: list[str] = field(default_factory=list, init=False)
    header: tuple[str, ...] = field(init=False)
    positions: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.path = Path(self.path)
        self._records = self._appended_records() if self.appended else self._whole_records()
        first = next(self._records, None)
        if first is None:
            raise CsvError(self.path, "the file is empty; expected a line of column names; delete it or add them")
        self._read_header(first)

    def __iter__(self) -> Iterator[CsvRow]:
        width, names, places = self._width, self.header, [self.positions[name] - 1 for name in self.header]
        plain = places == list(range(width))
        for line, cells in self._records:
            if not any(cells):
                continue
            try:
                if len(cells) != width:
                    cells = self._fit(line, cells)
            except CsvError as error:
                if not self.appended:
                    raise
                self._skip(error)
                continue
            yield CsvRow(line, dict(zip(names, cells if plain else [cells[p] for p in places], strict=True)))

    def _skip(self, error: CsvError) -> None:
        self.warnings.append(f"{error}; skipped")

    def _fit(self, line: int, cells: list[str]) -> list[str]:
        """The row with exactly as many cells as the header: without blank ones beyond it.

        Raises:
            CsvError: it is too short, or too long and the cells too many say something.
        """
        if len(cells) < self._least:
            missing = next(name for name, position in self.positions.items() if position > len(cells))
            raise CsvError(
                self.path,
                f"the row has {len(cells)} cells and the header {self._width} columns, {missing} is the first without "
                "a cell; complete the row or delete it",
                line=line,
                column=len(cells) + 1,
            )
        surplus = next((i for i in range(self._width, len(cells)) if cells[i]), None)
        if surplus is not None:
            raise CsvError(
                self.path,
                f"the row has {len(cells)} cells and the header {self._width} columns; {cells[surplus]!r} belongs to "
                "none; delete it, or name its column",
                line=line,
                column=surplus + 1,
            )
        return cells[: self._width] + [""] * (self._width - len(cells))

    # Header

    def _read_header(self, record: _Record) -> None:
        line, cells = record
        self._width = self._least = len(cells)
        self.positions = {}
        for position, name in enumerate(cells, start=1):
            if not name or name.startswith("Unnamed:"):
                continue
            if name in self.positions:
                raise CsvError(
                    self.path,
                    f"column {name} is there twice, first as column {self.positions[name]}; rename or delete one",
                    line=line,
                    column=position,
                )
            self.positions[name] = position
        self.header = tuple(self.positions)
        if self.positions:  # unnamed columns at the end may be left out of a row
            self._least = max(self.positions.values())
        self._check_columns(line, cells)

    def _check_columns(self, line: int, cells: list[str]) -> None:
        missing = [name for name in self.required if name not in self.positions]
        if missing and all(_NUMBER.fullmatch(cell) for cell in cells):
            raise CsvError(
                self.path,
                f"the first line holds numbers; expected column names, among them {', '.join(self.required)}; "
                "add a line with them",
                line=line,
                column=1,
            )
        if missing and len(cells) == 1 and (separator := re.search(r"[;\t|]", cells[0])):
            raise CsvError(
                self.path,
                f"columns are separated by {separator.group()!r}; expected commas; save the file comma-separated",
                line=line,
                column=1,
            )
        absent = [*missing, *(name for name in self.known if name not in self.positions and name not in missing)]
        expected = {*self.required, *self.known}
        for found in self.header:
            meant = None if found in expected else _near_miss(found, absent)
            if meant is not None:
                raise CsvError(
                    self.path,
                    f"unknown column {found!r}; expected {meant!r}, which is missing; rename it if that is meant",
                    line=line,
                    column=self.positions[found],
                )
        if missing:
            have = ", ".join(self.header[:12]) + (", …" if len(self.header) > 12 else "")
            raise CsvError(
                self.path,
                f"no column {', '.join(missing)}; the file has {have or 'none'}; add what is missing",
                line=line,
            )

    # Records

    def _read_bytes(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> CsvError:
        if isinstance(error, FileNotFoundError):
            return CsvError(self.path, "no such file; expected a CSV file; check the path")
        return CsvError(self.path, f"cannot be read ({error.strerror or error}); expected a CSV file")

    def _whole_records(self) -> Iterator[_Record]:
        """Records of a file that was written by others: quoted cells may span lines."""
        text = _decode(self.path, self._read_bytes())
        for number, physical in enumerate(_LINE_END.split(text), start=1):
            _refuse_conflict(self.path, physical, number)
        reader = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
        start = 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise CsvError(
                    self.path, f"{error}; expected cells between commas; check the quotes of this row", line=start
                ) from None
            cells = [cell.strip() for cell in cells]
            if any(cells):
                yield _Record(start, cells)
            start = reader.line_num + 1

    def _appended_records(self) -> Iterator[_Record]:
        """Records of a file that we append to: one line each, read as a stream, broken ones skipped."""
        try:
            file = self.path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error
        with file:
            for number, raw in enumerate(file, start=1):
                if not raw.endswith(b"\n"):
                    cut = f"the last line has no end ({len(raw)} bytes), its write was cut off; dropped"
                    self.warnings.append(f"{self.path}:{number}: {cut}")
                    return
                try:
                    cells = parse_line(self.path, raw, number)
                except CsvError as error:
                    if number == 1:
                        raise
                    self._skip(error)
                    continue
                if any(cells):
                    yield _Record(number, cells)


def _decode(path: Path, data: bytes, line: int = 1) -> str:
    try:
        text = data.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise CsvError(
            path,
            f"byte 0x{data[error.start]:02x} is not UTF-8 text; save the file as UTF-8",
            line=line + data.count(b"\n", 0, error.start),
        ) from None
    if "\0" in text:
        raise CsvError(
            path,
            "a zero byte; expected text (zeros are what a power cut can leave); restore or delete the line",
            line=line + text.count("\n", 0, text.index("\0")),
        )
    return text


def _refuse_conflict(path: Path, text: str, line: int) -> None:
    if text[:1] in ("<", ">", "=", "|") and _CONFLICT.match(text):
        raise CsvError(
            path,
            f"a conflict marker, {text.strip()[:40]!r}; expected a row; resolve the merge conflict",
            line=line,
            column=1,
        )


def parse_line(path: Path, raw: bytes, line: int) -> list[str]:
    """The cells of one line of a file that we append to, where no cell spans lines.

    Raises:
        CsvError: it is no UTF-8, holds a zero byte or a conflict marker, or its quotes do not close.
    """
    text = _decode(path, raw, line)
    _refuse_conflict(path, text, line)
    try:
        return [cell.strip() for cell in next(csv.reader([text], strict=True), [])]
    except csv.Error as error:
        raise CsvError(path, f"{error}; expected cells between commas", line=line) from None


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _near_miss(found: str, absent: Sequence[str]) -> str | None:
    """Which absent column ``found`` probably misspells: by case or punctuation, or by a slip in a longer name."""
    for name in absent:
        if _plain(name) == _plain(found):
            return name
    if len(found) < 3 or found[-1].isdigit():  # us1, us2 and the like count things, they misspell nothing
        return None
    close = difflib.get_close_matches(found, [name for name in absent if len(name) > 2], n=1, cutoff=_NEAR)
    return close[0] if close else None


def read_rows(
    path: str | os.PathLike[str], *, required: Sequence[str] = (), known: Sequence[str] = (), appended: bool = False
) -> CsvTable:
    """All rows of a CSV file as text; blank rows and unnamed columns are left out. Arguments as for :class:`CsvScan`.

    A file with a header and nothing else has no rows; that is no error.

    Raises:
        CsvError: the file is missing, empty or broken.
    """
    scan = CsvScan(Path(path), required, known, appended)
    rows = list(scan)
    return CsvTable(scan.path, scan.header, rows, scan.positions, scan.warnings)


def read_csv(
    path: str | os.PathLike[str], *, required: Sequence[str] = (), known: Sequence[str] = (), appended: bool = False
) -> pd.DataFrame:
    """A CSV file as a DataFrame, read by the rules of :func:`read_rows`.

    Blank cells and ``Null`` are NA. A column is numeric where all its cells are (``int64``, ``Int64`` with NA, else
    ``float64``; ``inf`` is a number), boolean where all are True or False, else text.

    Raises:
        CsvError: the file is missing, empty or broken; str() is ``file:line:column: …``.
    """
    import pandas as pd

    table = read_rows(path, required=required, known=known, appended=appended)
    columns = {name: _column([row.cells[name] for row in table.rows]) for name in table.header}
    return pd.DataFrame(columns, columns=list(table.header))


def _column(cells: list[str]) -> pd.Series:
    import pandas as pd

    values = [None if is_missing(cell) else cell for cell in cells]
    present = [value for value in values if value is not None]
    whole = len(present) == len(values)
    if not present:
        return pd.Series(values, dtype="float64" if values else "object")
    if all(_WHOLE.fullmatch(value) for value in present):
        return pd.Series([None if v is None else int(v) for v in values], dtype="int64" if whole else "Int64")
    if all(_NUMBER.fullmatch(value) for value in present):
        return pd.Series([None if v is None else float(v) for v in values], dtype="float64")
    if {"True", "False"}.issuperset(present):
        return pd.Series([None if v is None else v == "True" for v in values], dtype="bool" if whole else "boolean")
    return pd.Series(values)
