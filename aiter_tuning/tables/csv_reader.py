"""Reading CSV files as people and tools leave them, and saying exactly where one is wrong.

Upstream's reader lets pandas guess: a blank row turns sizes into floats, a row with one cell too many shifts every
column, ``Null`` turns a numeric column into text, half a line survives as NaN. Here a cell is text under its column's
name until somebody who knows the column reads it, and whatever cannot be meant is refused with file:line:column::

    bytes ─► lines ─► records ─► (line, {column: cell})     CsvScan, read_rows: no pandas
                                        └──► DataFrame      read_csv: numeric where all cells are

Two kinds of files differ at their end. One that a person or a tool wrote may lack its last newline, its last row
counts (``unended`` tells which, for nobody knows whether its last cell is whole). In one that we append to
(``appended=True``) an unterminated last line is a write that never ended: it is dropped, as is a garbled line in the
middle, each with a warning. Who looks for everything that is wrong takes the complaints one by one (``refused``).
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aiter_tuning.keys import is_missing
from aiter_tuning.tables.csv_error import ConflictMarkerError, CsvError
from aiter_tuning.tables.csv_header import NUMBER, Columns, RowFit, read_header

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["ConflictMarkerError", "CsvError", "CsvRow", "CsvScan", "CsvTable", "parse_line", "read_csv", "read_rows"]

_CONFLICT = re.compile(r"(?:<{7}|>{7}|\|{7})(?:\s|$)|={7}\s*$")
_LINE_END = re.compile(r"\r\n|\n|\r")  # str.splitlines knows more line ends than the csv module
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")

Refused = Callable[[CsvError], None]
"""Takes a complaint that would otherwise end the reading."""


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
    unended: int | None = None
    """The last line, if it holds a row and lacks its line end."""

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
        results: columns that may be there, under other names too; see ``csv_header``.
        fold_case: whether names that differ in case only are read as these columns.
        refused: takes what is wrong with a row, which is then left out; None: it is raised.

    Raises:
        CsvError: on construction (no such file, empty, header) or while iterating.
    """

    path: Path
    required: Sequence[str] = ()
    known: Sequence[str] = ()
    appended: bool = False
    results: Sequence[str] = ()
    fold_case: bool = False
    refused: Refused | None = None
    warnings: list[str] = field(default_factory=list, init=False)
    header: tuple[str, ...] = field(init=False)
    positions: dict[str, int] = field(init=False)
    unended: int | None = field(default=None, init=False)
    fragments: list[int] = field(default_factory=list, init=False)
    """Refused lines of a single cell: a row beside one may have been broken in its first or last cell."""
    complaint: CsvError | None = field(default=None, init=False)
    """The first that was taken."""

    def __post_init__(self) -> None:
        self.path = Path(self.path)
        self._records = self._appended_records() if self.appended else self._whole_records()
        first = next(self._records, None)
        if first is None:
            if self.complaint is not None:  # not one line could be read: the file is anything but empty
                raise self.complaint
            raise CsvError(self.path, "the file is empty; expected a line of column names; delete it or add them")
        expected = Columns(self.required, self.known, self.results, self.fold_case)
        try:
            self._columns = read_header(self.path, first.line, first.cells, expected)
        except CsvError:
            if self.complaint is None or (self.complaint.line or 0) > first.line:
                raise
            raise self.complaint from None  # what is above it made this line the header
        self.header, self.positions, self.unended = self._columns.names, self._columns.positions, None
        self.warnings += [f"{self.path}:{first.line}: {note}" for note in self._columns.notes]

    def __iter__(self) -> Iterator[CsvRow]:
        names, places = self.header, [self.positions[name] - 1 for name in self.header]
        fit = RowFit(self.path, self._columns)
        plain = places == list(range(self._columns.width))
        for line, cells in self._records:
            try:
                cells = fit.fitted(line, cells)
            except CsvError as error:
                if self.appended:
                    self._skip(error)
                    continue
                self._refuse(error)
                if len(cells) == 1 < self._columns.least:
                    self.fragments.append(line)
                continue
            yield CsvRow(line, dict(zip(names, cells if plain else [cells[p] for p in places], strict=True)))

    def _skip(self, error: CsvError) -> None:
        self.warnings.append(f"{error}; skipped")

    def _refuse(self, error: CsvError) -> None:
        if self.refused is None:
            raise error
        self.complaint = self.complaint or error
        self.refused(error)

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
        lines = _Lines(self._text())
        reader = csv.reader(lines, skipinitialspace=True, strict=True)
        start = 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                found = f"{error}; expected cells between commas; check the quotes of this row"
                self._refuse(CsvError(self.path, found, line=start))
                lines.taken.clear()
                start = lines.number + 1
                reader = csv.reader(lines, skipinitialspace=True, strict=True)
                continue
            raw = "".join(lines.taken)
            lines.taken.clear()
            first, start = start, lines.number + 1
            if '"' in raw and _has_stray_quote(raw, cells):
                stray = "a quote inside a cell; expected cells in quotes with their own quotes doubled; check this row"
                self._refuse(CsvError(self.path, stray, line=first))
                continue
            cells = [cell.strip() for cell in cells]
            if any(cells):
                if not raw.endswith(("\n", "\r")):
                    self.unended = first
                yield _Record(first, cells)

    def _text(self) -> str:
        """The file as text; where complaints are taken, lines that cause one are blank."""
        data = self._read_bytes()
        if data.startswith(_UTF16):
            raise CsvError(self.path, "the file is UTF-16, not UTF-8 text; save the file as UTF-8", line=1)
        if self.refused is None:
            text = _decode(self.path, data)
            for number, physical in enumerate(_LINE_END.split(text), start=1):
                _refuse_conflict(self.path, physical, number)
            return text
        kept = []
        for number, raw in enumerate(data.splitlines(keepends=True), start=1):
            try:
                line = _decode(self.path, raw, number)
                _refuse_conflict(self.path, line, number)
            except CsvError as error:
                self._refuse(error)
                line = "\n"
            kept.append(line)
        return "".join(kept)

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


class _Lines:
    """A text's lines with their ends, and those that the csv module took since somebody looked."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends = _LINE_END.finditer(text)
        self._position = 0
        self.number = 0
        self.taken: list[str] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._position >= len(self._text):
            raise StopIteration
        end = next(self._ends, None)
        stop = end.end() if end is not None else len(self._text)
        line = self._text[self._position : stop]
        self._position = stop
        self.number += 1
        self.taken.append(line)
        return line


def _has_stray_quote(raw: str, cells: list[str]) -> bool:
    """Whether a record holds a quote that no CSV writer leaves: one inside a cell that is not in quotes."""
    quotes, inside = raw.count('"'), sum(cell.count('"') for cell in cells)
    return quotes % 2 == 1 or (inside > 0 and quotes < 2 * inside + 2)


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
        raise ConflictMarkerError(
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


def read_rows(
    path: str | os.PathLike[str],
    *,
    required: Sequence[str] = (),
    known: Sequence[str] = (),
    appended: bool = False,
    results: Sequence[str] = (),
    fold_case: bool = False,
    refused: Refused | None = None,
) -> CsvTable:
    """All rows of a CSV file as text; blank rows and unnamed columns are left out. Arguments as for :class:`CsvScan`.

    A file with a header and nothing else has no rows; that is no error.

    Raises:
        CsvError: the file is missing, empty or broken.
    """
    scan = CsvScan(Path(path), required, known, appended, results, fold_case, refused)
    rows = list(scan)
    if refused is not None and scan.fragments:
        rows = _without_broken(scan, rows, refused)
    return CsvTable(scan.path, scan.header, rows, scan.positions, scan.warnings, scan.unended)


def _without_broken(scan: CsvScan, rows: list[CsvRow], refused: Refused) -> list[CsvRow]:
    """The rows that no line of a single cell can be a part of; the others are complained about."""
    kept = []
    for number, row in enumerate(rows):
        ends = rows[number + 1].line if number + 1 < len(rows) else row.line + 2
        beside = next((f for f in scan.fragments if f == row.line - 1 or row.line < f < ends), None)
        if beside is None:
            kept.append(row)
            continue
        found = f"the row is beside line {beside}, which is a single cell and may be a part of it; mend both"
        refused(CsvError(scan.path, found, line=row.line))
    return kept


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
    if all(NUMBER.fullmatch(value) for value in present):
        return pd.Series([None if v is None else float(v) for v in values], dtype="float64")
    if {"True", "False"}.issuperset(present):
        return pd.Series([None if v is None else v == "True" for v in values], dtype="bool" if whole else "boolean")
    return pd.Series(values)
