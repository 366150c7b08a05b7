"""One row of a tuned table: as a value, as the cells of a file, and what must never become one.

::

    cells of a row  ──parse_row──▶  TunedRow  ──row_cells──▶  cells, in the spelling of the file they go to
                                       └ checked_row: may it be written?

A row holds a measured latency or does not exist. Upstream's spellings are understood: ``solidx`` for ``kernelId``,
``err_ratio`` for ``errRatio``, a percentage (``0.6%``) for a fraction, ``Null`` for nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aiter_tuning.keys import DEVICE_COLUMNS, Key, KeyValue, Shape, full_key, is_missing
from aiter_tuning.tables.csv_reader import CsvError, CsvTable

RESULT = ("kernelId", "splitK", "us", "kernelName", "tflops", "bw", "errRatio", "config")
ALIASES = {"kernelId": "solidx", "errRatio": "err_ratio"}
"""Our column, and what upstream's bf16 files call it."""
TAG = "_tag"
"""Upstream's mark of a variant of a row, which its own lookup leaves out."""
RESULT_COLUMNS = (*RESULT, *ALIASES.values(), "libtype", TAG)
"""What a tuned row says about the kernel that was chosen, in any spelling; no part of a shape."""

_ARCH = re.compile(r"(?:[A-Za-z][\w.:+-]*)?", re.ASCII)
"""``sm90``, ``gfx942:sramecc+:xnack-``, ``x86-64-v4``; nothing in older tables."""
_NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf(?:inity)?)", re.IGNORECASE)


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
    """Filled in by a lookup or a run, no column: why the latency may not hold any more; the row serves all the same."""

    @property
    def full_key(self) -> tuple[Any, ...]:
        return full_key(self.gfx, self.cu_num, self.gpu_model, self.shape)


def is_measured(us: float) -> bool:
    """Whether a number is a latency that somebody measured."""
    return math.isfinite(us) and us > 0


def spelled(header: Iterable[str], column: str) -> str:
    """What a file calls one of our columns."""
    alias = ALIASES.get(column)
    names = tuple(header)
    return alias if alias is not None and alias in names and column not in names else column


# From a file


def parse_row(table: CsvTable, line: int, cells: Mapping[str, str], shape: Shape) -> TunedRow:
    """The row that cells hold; its ``us`` may be no latency.

    Raises:
        CsvError: a cell does not fit its column.
    """

    def whole(column: str) -> int:
        number = _number(table, line, cells, column, 0.0)
        if not number.is_integer():
            raise table.error(line, column, f"{column} is {cells[column]!r}; expected a whole number; correct it")
        return int(number)

    def text(column: str) -> str:
        found = cell_text(cells, column)
        if not found.isprintable():
            raise table.error(line, column, f"{column} is {found[:40]!r}; expected one line of text; correct the cell")
        return found

    if not _ARCH.fullmatch(cell_text(cells, "gfx")):
        raise table.error(
            line, "gfx", f"gfx is {cells['gfx'][:40]!r}; expected an arch such as gfx942; correct the cell"
        )
    return TunedRow(
        gfx=text("gfx"),
        cu_num=whole("cu_num"),
        gpu_model=text("gpu_model"),
        shape=shape,
        kernelId=whole(spelled(table.header, "kernelId")),
        splitK=whole("splitK"),
        us=_number(table, line, cells, "us", math.nan),
        kernelName=text("kernelName"),
        tflops=_number(table, line, cells, "tflops", 0.0),
        bw=_number(table, line, cells, "bw", 0.0),
        errRatio=_number(table, line, cells, spelled(table.header, "errRatio"), 0.0),
        config=_config(table, line, cells),
    )


def cell_text(cells: Mapping[str, str], column: str) -> str:
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
    digits, percent = cell.removesuffix("%").rstrip(), cell.endswith("%")
    if not _NUMBER.fullmatch(digits):
        raise table.error(line, column, f"{column} is {cell!r}; expected a number; correct the cell")
    return float(digits) / 100 if percent else float(digits)


def _config(table: CsvTable, line: int, cells: Mapping[str, str]) -> dict[str, Any]:
    cell = cell_text(cells, "config")
    if not cell:
        if line == table.unended and "config" in table.positions:  # ours always end their lines
            raise table.error(
                line, "config", "config is blank and the line has no end: the file was cut off; restore the row"
            )
        return {}
    if not cell.isprintable():
        raise table.error(
            line, "config", f"config is {cell[:40]!r}; expected JSON in one line of text; correct the cell"
        )
    try:
        config = json.loads(cell)
    except (json.JSONDecodeError, RecursionError) as error:
        found: CsvError = table.error(line, "config", f"config is no JSON ({error}); correct the cell")
        raise found from None
    if not isinstance(config, dict):
        raise table.error(line, "config", f"config is {cell[:40]!r}; expected a JSON object; correct the cell")
    return config


# To a file


def checked_row(row: TunedRow, key: Key) -> TunedRow:
    """The row with a parsed shape.

    Raises:
        ValueError: it must not get into a tuned table.
    """
    shape = key.parse(row.shape)
    where = f"tuned row {key.label(shape)} {row.kernelName}"
    if not is_measured(row.us):
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


def widened(header: tuple[str, ...], key: Key) -> tuple[str, ...]:
    """A file's columns, in its order, with those of ours that it lacks; all of ours for a new file."""
    if not header:
        return (*DEVICE_COLUMNS, *key.columns, *RESULT)
    columns = list(header)
    if "gpu_model" not in columns and "cu_num" in columns:
        columns.insert(columns.index("cu_num") + 1, "gpu_model")
    ours = (*DEVICE_COLUMNS, *key.columns, *(spelled(columns, name) for name in RESULT))
    return (*columns, *(name for name in ours if name not in columns))


def row_cells(header: tuple[str, ...], row: TunedRow, key: Key, old: Mapping[str, str]) -> dict[str, str]:
    """The row's cells over those of the row that it replaces; ``libtype`` told of the old kernel and goes."""
    return {
        **{name: "" if name == "libtype" else value for name, value in old.items()},
        "gfx": row.gfx,
        "cu_num": str(row.cu_num),
        "gpu_model": row.gpu_model,
        **key.format(row.shape),
        spelled(header, "kernelId"): str(row.kernelId),
        "splitK": str(row.splitK),
        "us": _us(row.us),
        "kernelName": row.kernelName,
        "tflops": str(round(row.tflops, 2)),
        "bw": str(round(row.bw, 2)),
        spelled(header, "errRatio"): str(round(row.errRatio, 4)),
        "config": json.dumps(row.config, separators=(",", ":"), sort_keys=True) if row.config else "",
    }


def _us(us: float) -> str:
    """Four decimals, as upstream; a latency too short for them keeps its digits, for 0 is no latency."""
    rounded = round(us, 4)
    return str(rounded if rounded > 0 else us)


def row_rank(full: tuple[Any, ...] | None, key: Key) -> tuple[Any, ...]:
    """What a sorted table is ordered by: device and shape, N before M as upstream does; others' rows come last."""
    if full is None:
        return (1,)
    columns = list(key.columns)
    if "M" in columns and "N" in columns:
        m, n = columns.index("M"), columns.index("N")
        columns[m], columns[n] = columns[n], columns[m]
    gfx, cu_num, gpu_model, *fields = full
    shape = dict(fields)
    return (0, gfx, cu_num, gpu_model, *(shape[name] for name in columns))
