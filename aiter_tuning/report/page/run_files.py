"""What runs left on disk about a tuned table, as the page needs it: from files alone, without family, device or torch.

::

    tuned.csv ───────────────────▶ rows of one device          ┐
    tuned.evidence.jsonl ────────▶ the newest decision of a key ├─▶ RunFiles
    tuned.profile.*.csv, newest ─▶ every candidate, and when    ┘
      (or the checkpoint)

Fields that are the same in all shapes are told once; a label has those that differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aiter_tuning.keys import DEVICE_COLUMNS
from aiter_tuning.report.page.timeline import Moment, Span, spans_of
from aiter_tuning.tables.checkpoint_row import FINISHED, RESULT_COLUMNS, RUN, SCREEN
from aiter_tuning.tables.csv_reader import CsvError, CsvTable, read_rows
from aiter_tuning.tables.evidence import Evidence, evidence_path, read_evidence

_EVENT_COLUMNS = ("event", *RESULT_COLUMNS, "device_uuid", "detail", "time")

Fields = Mapping[str, str]
"""A shape's fields as text."""

DeviceName = tuple[str, str, str]
"""``gfx``, ``cu_num``, ``gpu_model`` as text."""


class Row(NamedTuple):
    """A row of the table."""

    label: str
    kernel: str
    us: float
    tflops: float
    """TFLOP/s; 0: not told."""
    gb_per_s: float
    """0: not told."""


class Decided(NamedTuple):
    """The newest decision on a shape."""

    label: str
    record: Evidence


class Screened(NamedTuple):
    """A candidate and what it ended with in the screening."""

    label: str
    name: str
    status: str
    us: float
    """Microseconds; inf where it has no latency."""
    censored: bool
    """Given up as soon as it was clear that it is slower: ``us`` is a lower bound."""
    detail: str


@dataclass(frozen=True)
class RunFiles:
    """All that is known about one table on one device."""

    table: Path
    family: str
    """Empty: no evidence tells."""
    device: DeviceName
    everywhere: Fields
    """Fields that are the same in all shapes."""
    dtypes: tuple[str, ...]
    """Of the shapes, where their key has a ``dtype``."""
    rows: tuple[Row, ...]
    decisions: tuple[Decided, ...]
    candidates: tuple[Screened, ...]
    spans: tuple[Span, ...]
    record: Path | None
    """The profile or checkpoint that ``candidates`` and ``spans`` are from."""
    others: int
    """Rows for other devices."""
    warnings: tuple[str, ...]


def read_run_files(table: Path, record: Path | None = None) -> RunFiles:
    """Reads what there is about a table.

    Args:
        table: a tuned CSV.
        record: a profile or checkpoint; None: the newest that lies beside it.

    Raises:
        CsvError: a file is broken.
        OSError: it cannot be read.
    """
    warnings: list[str] = []
    found = read_rows(table, required=("us", "kernelName"))
    evidence = read_evidence(evidence_path(table), warnings=warnings)
    device = _device_of([_device(row.cells) for row in found.rows], evidence)
    cells = [row.cells for row in found.rows if _device(row.cells) == device]
    newest = {tuple(_shape_of(one).items()): one for one in evidence if _device(_texts(one.key)) == device}
    record = record or newest_record(table)
    events = None if record is None else read_rows(record, required=_EVENT_COLUMNS, appended=True)
    warnings += [] if events is None else events.warnings
    table_fields = _key_columns(found, "kernelId")
    shapes: list[Fields] = [{name: row[name] for name in table_fields} for row in cells]
    everywhere = _the_same_in_all([*shapes, *map(dict, newest)])

    def label(fields: Mapping[str, str]) -> str:
        told = [f"{name}={value}" for name, value in fields.items() if name not in everywhere]
        return " ".join(told or [f"{name}={value}" for name, value in fields.items()])

    event_fields = [] if events is None else _key_columns(events, "candidate")
    timed = [] if events is None else [row.cells for row in events.rows if row.cells["event"] != RUN]
    labels = [label({name: row[name] for name in event_fields}) for row in timed]
    return RunFiles(
        table=table,
        family=evidence[-1].family if evidence else "",
        device=device,
        everywhere=everywhere,
        dtypes=tuple(sorted({shape["dtype"] for shape in shapes if "dtype" in shape})),
        rows=tuple(_row(label(shape), row) for shape, row in zip(shapes, cells, strict=True)),
        decisions=tuple(Decided(label(dict(shape)), one) for shape, one in newest.items()),
        candidates=tuple(_screened(zip(labels, timed, strict=True))),
        spans=tuple(spans_of(_moment(one, row) for one, row in zip(labels, timed, strict=True))),
        record=record,
        others=len(found.rows) - len(cells),
        warnings=tuple(warnings),
    )


def newest_record(table: Path) -> Path | None:
    """The profile of the last completed run on a table, or the checkpoint of one that is not over."""
    beside = [*table.parent.glob(f"{table.stem}.profile.*.csv"), *table.parent.glob(f"{table.stem}.checkpoint*.csv")]
    return max(beside, key=lambda path: path.stat().st_mtime_ns, default=None)


def _device_of(rows: Sequence[DeviceName], evidence: Sequence[Evidence]) -> DeviceName:
    """The one that most is known about."""
    known = Counter([*rows, *(_device(_texts(one.key)) for one in evidence)])
    return max(known, key=lambda name: known[name], default=("", "", ""))


def _device(cells: Mapping[str, str]) -> DeviceName:
    gfx, cu_num, gpu_model = (cells.get(column, "") for column in DEVICE_COLUMNS)
    return gfx, cu_num, gpu_model


def _texts(key: Mapping[str, object]) -> dict[str, str]:
    return {name: " ".join(str(value).split()) for name, value in key.items()}


def _shape_of(record: Evidence) -> dict[str, str]:
    return {name: value for name, value in _texts(record.key).items() if name not in DEVICE_COLUMNS}


def _key_columns(file: CsvTable, end: str) -> list[str]:
    """The shape's columns: those before ``end``, without the device's and the event.

    Raises:
        CsvError: there is no such column.
    """
    if end not in file.header:
        raise CsvError(file.path, f"there is no column {end}: it is no table and no record of aiter_tuning's")
    before = file.header[: file.header.index(end)]
    return [name for name in before if name not in (*DEVICE_COLUMNS, "event")]


def _the_same_in_all(shapes: Sequence[Fields]) -> dict[str, str]:
    """Fields with one value; none for a single shape, whose label needs them."""
    distinct = {tuple(sorted(shape.items())) for shape in shapes}
    if len(distinct) < 2:
        return {}
    first = dict(next(iter(distinct)))
    return {name: value for name, value in first.items() if all(shape.get(name) == value for shape in shapes)}


def _row(label: str, cells: Mapping[str, str]) -> Row:
    us, tflops, gb_per_s = (_number(cells.get(column, "")) for column in ("us", "tflops", "bw"))
    return Row(label, cells.get("kernelName", ""), us, tflops, gb_per_s)


def _number(text: str) -> float:
    """A cell's number; 0 where it is none."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


def _screened(events: Iterable[tuple[str, Mapping[str, str]]]) -> Iterable[Screened]:
    """The newest result of each candidate, in the order in which they were measured."""
    newest: dict[tuple[str, str], Screened] = {}
    for label, row in events:
        if row["event"] == FINISHED and row["phase"] == SCREEN:
            us = _number(row["us"])
            timed = us if us > 0 and row["status"] == "ok" else math.inf
            censored = row["censored"] == "True"
            one = Screened(label, row["candidate"], row["status"], timed, censored, row["detail"])
            newest[label, one.name] = one
    return newest.values()


def _moment(label: str, row: Mapping[str, str]) -> Moment:
    return Moment(label, row["phase"], row["event"], row["device_uuid"], row["time"])
