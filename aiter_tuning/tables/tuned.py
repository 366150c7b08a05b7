"""The tuned table: which kernel serves which shape on which device, one row each.

::

    rows(), find()    file ─► TunedRow            cached until the file changes; never writes
    update(rows)      lock ─► read again ─► merge by full key ─► atomic write
                                             └ stays(current, new): may what is there now be replaced?

A row holds a measured latency or does not exist: ``update`` refuses others, and reading leaves them out with a warning
(upstream's files hold rows of zeros that were never measured). Upstream's spellings are understood (``solidx`` for
``kernelId``, ``err_ratio`` for ``errRatio``, no ``gpu_model``), and a file that has them keeps them when it is
updated, as it keeps rows and columns that are none of the family's business.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.keys import Key, KeyValue, Shape, full_key, is_missing
from aiter_tuning.tables.atomic import atomic_write, remove_leftovers
from aiter_tuning.tables.csv_reader import CsvError, CsvTable, read_rows
from aiter_tuning.tables.csv_writer import csv_line
from aiter_tuning.tables.lock import FileLock
from aiter_tuning.tables.shapes import parse_shape
from aiter_tuning.tables.unknown_columns import UnknownColumns

DEVICE = ("gfx", "cu_num", "gpu_model")
RESULT = ("kernelId", "splitK", "us", "kernelName", "tflops", "bw", "errRatio", "config")
ALIASES = {"kernelId": "solidx", "errRatio": "err_ratio"}
"""Our column, and what upstream's bf16 files call it."""


@dataclass(frozen=True)
class TunedRow:
    """One row of a tuned table."""

    gfx: str
    cu_num: int
    gpu_model: str
    """Empty in upstream's files: such a row serves every model."""
    shape: Mapping[str, KeyValue]
    kernelId: int  # noqa: N815 - the fields are the file's columns
    splitK: int  # noqa: N815
    us: float
    """Measured latency, microseconds; finite and above 0."""
    kernelName: str  # noqa: N815
    """Stable and unique within the family."""
    tflops: float = 0.0
    """TFLOP/s."""
    bw: float = 0.0
    """GB/s."""
    errRatio: float = 0.0  # noqa: N815
    """Fraction of wrong elements."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What is launched; JSON values only."""
    stale: str = field(default="", compare=False)
    """Filled in by a lookup, no column: why the latency may not hold any more; the row serves all the same."""

    @property
    def full_key(self) -> tuple[Any, ...]:
        return full_key(self.gfx, self.cu_num, self.gpu_model, self.shape)


class _Placed(NamedTuple):
    """A row of the file, and what it is to this family."""

    line: int
    cells: dict[str, str]
    key: tuple[Any, ...] | None = None
    """Its full key; None if it is not this family's to find or to replace."""
    row: TunedRow | None = None
    """None if it holds no measured latency: nobody finds it, a measured one may replace it."""


class TunedCsv:
    """A tuned table on disk, read with one family's key. The file need not exist.

    Args:
        path: the CSV file.
        key: the family's key.
        lock_timeout: seconds that ``update`` waits for another writer.
    """

    def __init__(self, path: str | os.PathLike[str], key: Key, *, lock_timeout: float | None = 60.0) -> None:
        self.path = Path(path)
        self.key = key
        self.lock_timeout = lock_timeout
        self.warnings: list[str] = []
        """What the last reading found that a person should know."""
        self._stamp: tuple[int, ...] | None = None
        self._index: dict[tuple[Any, ...], TunedRow] = {}

    # Reading

    def rows(self) -> list[TunedRow]:
        """Every row with a measured latency, the fastest one where a key is there more than once.

        Raises:
            CsvError: the file is there and cannot be read as a tuned table of this family.
        """
        self._refresh()
        return list(self._index.values())

    def find(self, gfx: str, cu_num: int, gpu_model: str, shape: Mapping[str, object]) -> TunedRow | None:
        """The row for this shape on this device, or else one that names no model; None if there is neither.

        Raises:
            CsvError: as for :meth:`rows`.
            KeyFieldError: a field of the shape is missing or has a value that it cannot have.
        """
        self._refresh()
        parsed = self.key.parse(shape)
        exact = self._index.get(full_key(gfx, cu_num, gpu_model, parsed))
        return exact or self._index.get(full_key(gfx, cu_num, "", parsed))

    def _refresh(self) -> None:
        stamp = self._stat()
        if stamp == self._stamp and stamp is not None:
            return
        self._index, self.warnings = {}, []
        if stamp is not None:
            table = self._read()
            self._index = self._fastest(table, self._place(table))
        self._stamp = stamp

    def _stat(self) -> tuple[int, ...] | None:
        """What changes whenever the file does; None if there is none, or an empty one (``touch``)."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        if found.st_size == 0:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> CsvTable:
        table = read_rows(self.path, required=("cu_num", *self.key.required, "us"), known=self.key.columns)
        self.warnings = list(table.warnings)
        return table

    def _place(self, table: CsvTable) -> list[_Placed]:
        unknown = UnknownColumns(table.header, [row.cells for row in table.rows], self.key)
        if (warning := unknown.warning()) is not None:
            self.warnings.append(f"{self.path}: {warning}")
        return [self._understand(table, line, cells, unknown) for line, cells in table.rows]

    def _understand(self, table: CsvTable, line: int, cells: dict[str, str], unknown: UnknownColumns) -> _Placed:
        placed = _Placed(line, cells)
        if not is_missing(cells.get("_tag")):  # upstream's variants of a row, which its own lookup leaves out too
            return placed
        shape = parse_shape(table, line, cells, self.key)
        objection = unknown.objection(cells, shape)
        if objection is not None:
            problem = objection[1].partition(",")[0]
        elif is_missing(cells.get("gfx")):
            problem = "the row does not say for which gfx it is"
        else:
            row = self._typed(table, line, cells, shape)
            if _measured(row.us):
                return placed._replace(key=row.full_key, row=row)
            placed = placed._replace(key=row.full_key)
            problem = f"us is {cells['us'] or 'blank'}, not a measured latency"
        self.warnings.append(f"{self.path}:{line}: {problem}; left out")
        return placed

    def _typed(self, table: CsvTable, line: int, cells: dict[str, str], shape: Shape) -> TunedRow:
        def whole(column: str) -> int:
            number = _number(table, line, cells, column, 0.0)
            if not number.is_integer():
                raise table.error(line, column, f"{column} is {cells[column]!r}; expected a whole number; correct it")
            return int(number)

        return TunedRow(
            gfx=cells["gfx"],
            cu_num=whole("cu_num"),
            gpu_model=_text(cells, "gpu_model"),
            shape=shape,
            kernelId=whole(_named(table.header, "kernelId")),
            splitK=whole("splitK"),
            us=_number(table, line, cells, "us", math.nan),
            kernelName=_text(cells, "kernelName"),
            tflops=_number(table, line, cells, "tflops", 0.0),
            bw=_number(table, line, cells, "bw", 0.0),
            errRatio=_number(table, line, cells, _named(table.header, "errRatio"), 0.0),
            config=_config(table, line, cells),
        )

    def _fastest(self, table: CsvTable, placed: list[_Placed]) -> dict[tuple[Any, ...], TunedRow]:
        best: dict[tuple[Any, ...], TunedRow] = {}
        lines: dict[tuple[Any, ...], int] = {}
        for line, _, key, row in placed:
            if key is None or row is None:
                continue
            other = best.get(key)
            if other is not None:
                kept, left = (line, lines[key]) if row.us < other.us else (lines[key], line)
                self.warnings.append(f"{self.path}:{left}: the key of line {kept} again, and slower; left out")
                if kept != line:
                    continue
            best[key], lines[key] = row, line
        return best

    # Writing

    def update(
        self,
        rows: Iterable[TunedRow],
        *,
        sort: bool = False,
        stays: Callable[[TunedRow, TunedRow], bool] | None = None,
    ) -> int:
        """Puts rows into the file: one with the same full key is replaced, everything else stays; returns how many.

        Args:
            rows: what to write; of several with one key the last counts.
            sort: whether to order the whole file by device and shape (N before M, as upstream does).
            stays: asked under the lock with the measured row that a key has in the file now, whoever wrote it, and the
                new one; True: the file's row stays. None: a new row replaces any.

        Raises:
            ValueError: a row holds no measured latency or cannot be written; the file is untouched.
            CsvError: the file that is there cannot be read.
            OSError: the file cannot be written (it is then as it was), or another writer holds the lock too long.
        """
        checked = [self._checked(row) for row in rows]
        new = {row.full_key: row for row in checked}
        if not new:
            return 0
        with FileLock.beside(self.path, timeout=self.lock_timeout):
            remove_leftovers(self.path)
            header, placed = self._current()
            if stays is not None:
                for current in _fastest_of(placed, new):
                    if stays(current, new[current.full_key]):
                        del new[current.full_key]
                if not new:
                    return 0
            header = self._widened(header)
            merged: list[tuple[dict[str, str], tuple[Any, ...] | None]] = []
            waiting = dict(new)
            for _, cells, key, _ in placed:
                if key is None or key not in new:
                    merged.append((cells, key))
                elif key in waiting:  # the first of its key is replaced where it stands, further ones go
                    merged.append((self._cells(header, waiting.pop(key), cells), key))
            merged += [(self._cells(header, row, {}), key) for key, row in waiting.items()]
            if sort:
                merged.sort(key=lambda pair: self._rank(pair[1]))
            atomic_write(self.path, _written(header, [cells for cells, _ in merged]))
        self._stamp = None
        return len(new)

    def _current(self) -> tuple[tuple[str, ...], list[_Placed]]:
        if self._stat() is None:
            return (), []
        table = self._read()
        return table.header, self._place(table)

    def _widened(self, header: tuple[str, ...]) -> tuple[str, ...]:
        """The file's columns, in its order, with those of ours that it lacks."""
        if not header:
            return (*DEVICE, *self.key.columns, *RESULT)
        columns = list(header)
        if "gpu_model" not in columns and "cu_num" in columns:
            columns.insert(columns.index("cu_num") + 1, "gpu_model")
        ours = (*DEVICE, *self.key.columns, *(_named(columns, name) for name in RESULT))
        return (*columns, *(name for name in ours if name not in columns))

    def _cells(self, header: tuple[str, ...], row: TunedRow, old: Mapping[str, str]) -> dict[str, str]:
        """The row's cells over those of the row that it replaces; ``libtype`` told of the old kernel and goes."""
        return {
            **{name: "" if name == "libtype" else value for name, value in old.items()},
            "gfx": row.gfx,
            "cu_num": str(row.cu_num),
            "gpu_model": row.gpu_model,
            **self.key.format(row.shape),
            _named(header, "kernelId"): str(row.kernelId),
            "splitK": str(row.splitK),
            "us": _us(row.us),
            "kernelName": row.kernelName,
            "tflops": str(round(row.tflops, 2)),
            "bw": str(round(row.bw, 2)),
            _named(header, "errRatio"): str(round(row.errRatio, 4)),
            "config": json.dumps(row.config, separators=(",", ":"), sort_keys=True) if row.config else "",
        }

    def _checked(self, row: TunedRow) -> TunedRow:
        """The row with a parsed shape.

        Raises:
            ValueError: it must not get into a tuned table.
        """
        shape = self.key.parse(row.shape)
        where = f"tuned row {self.key.label(shape)} {row.kernelName}"
        if not _measured(row.us):
            raise ValueError(f"{where}: us is {row.us}; expected a measured latency, finite and above 0")
        for name, value in (("tflops", row.tflops), ("bw", row.bw), ("errRatio", row.errRatio)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{where}: {name} is {value}; expected a finite number of 0 or more")
        for name, text in (("gfx", row.gfx), ("kernelName", row.kernelName)):
            if not text.strip() or not text.isprintable():
                raise ValueError(f"{where}: {name} is {text!r}; expected one line of text")
        if not row.gpu_model.isprintable():
            raise ValueError(f"{where}: gpu_model is {row.gpu_model!r}; expected one line of text")
        try:
            config = json.loads(json.dumps(dict(row.config), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: config cannot be written as JSON ({error})") from None
        return replace(row, shape=shape, config=config, gpu_model=" ".join(row.gpu_model.split()))

    def _rank(self, key: tuple[Any, ...] | None) -> tuple[Any, ...]:
        if key is None:  # not ours: behind what is
            return (1,)
        columns = list(self.key.columns)
        if "M" in columns and "N" in columns:
            m, n = columns.index("M"), columns.index("N")
            columns[m], columns[n] = columns[n], columns[m]
        gfx, cu_num, gpu_model, *fields = key
        shape = dict(fields)
        return (0, gfx, cu_num, gpu_model, *(shape[name] for name in columns))


def _fastest_of(placed: Iterable[_Placed], keys: Container[tuple[Any, ...]]) -> list[TunedRow]:
    """What a lookup finds for these keys."""
    best: dict[tuple[Any, ...], TunedRow] = {}
    for one in placed:
        if one.key is None or one.row is None or one.key not in keys:
            continue
        other = best.get(one.key)
        if other is None or one.row.us < other.us:
            best[one.key] = one.row
    return list(best.values())


def _measured(us: float) -> bool:
    return math.isfinite(us) and us > 0


def _named(header: Iterable[str], column: str) -> str:
    """What a file calls one of our columns."""
    alias = ALIASES.get(column)
    names = tuple(header)
    return alias if alias is not None and alias in names and column not in names else column


def _us(us: float) -> str:
    """Four decimals, as upstream; a latency too short for them keeps its digits, for 0 is no latency."""
    rounded = round(us, 4)
    return str(rounded if rounded > 0 else us)


def _text(cells: Mapping[str, str], column: str) -> str:
    """A cell of text; only what pandas writers leave for nothing is nothing, a kernel may well be called ``nan``."""
    cell = cells.get(column, "")
    return "" if cell.lower() == "null" else cell


def _number(table: CsvTable, line: int, cells: Mapping[str, str], column: str, default: float) -> float:
    """A cell as a number; ``0.6%`` is 0.006.

    Raises:
        CsvError: it is none.
    """
    cell = cells.get(column, "")
    if is_missing(cell):
        return default
    try:
        return float(cell[:-1]) / 100 if cell.endswith("%") else float(cell)
    except ValueError:
        raise table.error(line, column, f"{column} is {cell!r}; expected a number; correct the cell") from None


def _config(table: CsvTable, line: int, cells: Mapping[str, str]) -> dict[str, Any]:
    cell = _text(cells, "config")
    if not cell:
        return {}
    try:
        config = json.loads(cell)
    except json.JSONDecodeError as error:
        found: CsvError = table.error(line, "config", f"config is no JSON ({error}); correct the cell")
        raise found from None
    if not isinstance(config, dict):
        raise table.error(line, "config", f"config is {cell[:40]!r}; expected a JSON object; correct the cell")
    return config


def _written(header: tuple[str, ...], rows: list[dict[str, str]]) -> str:
    return csv_line(header) + "".join(csv_line(row.get(name, "") for name in header) for row in rows)
