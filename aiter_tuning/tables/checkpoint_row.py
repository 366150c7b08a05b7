"""One row of a checkpoint, as text and back: pure functions, no files.

::

    event     run        once, first: detail holds the run's fingerprint, field by field, as JSON
              started    on file before the candidate runs
              finished   its verdict; ends ``started``
              stopped    ends ``started`` without a verdict: a person ended the run, or its turn in a contest is over

A row is one line, whatever a candidate wrote into its exception, because a torn write is told from a whole one by its
line end.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from aiter_tuning.keys import Key
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status, one_line
from aiter_tuning.tables.csv_writer import quoted

RUN, STARTED, FINISHED, STOPPED = "run", "started", "finished", "stopped"
EVENTS = frozenset({RUN, STARTED, FINISHED, STOPPED})
SCREEN = "screen"
"""The phase in which every candidate is measured once."""
FINALS = "finals"
"""The phase of a contest: whose turn it is (``started``, ``stopped``) and what became of each entrant."""
DECISION = "decision"
"""The phase of a shape's decision: its winner, once nothing is left to measure."""
CONFIRMATION = "confirmation"
"""The phase of a contest in another process between what runs today and the candidate that is to replace it."""
COMPARISON = "comparison"
"""The same of a contest between what serving runs today and what a new row would have it run."""
_BLOCK_PHASES = {FINALS: "finalist:", CONFIRMATION: "confirmed:", COMPARISON: "compared:"}
RESULT_COLUMNS = ("candidate", "phase", "attempt", "status", "us", "censored", "err_ratio", "samples", "timer")
RECORD_COLUMNS = ("flags", "device_uuid", "detail", "fingerprint", "time")
_AFTER_KEY = (*RESULT_COLUMNS, *RECORD_COLUMNS)
DIGITS = 6
"""Decimals of a latency: picoseconds, so that a resumed run chooses as an undisturbed one would."""

_MOST_SHAPES = 1024
_TURN = re.compile(r"turn (\d+) of (\d+)(?:: |$)")


class Event(NamedTuple):
    """One row about a candidate."""

    event: str
    candidate: str
    phase: str
    attempt: int
    fingerprint: str
    measurement: Measurement | None
    """Only of ``finished``."""


def block_phase(number: int, contest: str = FINALS) -> str:
    """The phase of the turns in a block of a contest, which has a phase of its own: ``finalist:3``."""
    return f"{_BLOCK_PHASES[contest]}{number}"


def block_number(phase: str, contest: str = FINALS) -> int | None:
    """Which block of a contest a phase belongs to; None if it is none of its blocks."""
    number = phase.removeprefix(_BLOCK_PHASES[contest])
    return int(number) if number != phase and number.isascii() and number.isdigit() else None


def turn_text(place: int, turns: int, detail: str) -> str:
    """The detail of a turn's row; tells how many rows its block has."""
    return f"turn {place} of {turns}" + (f": {detail}" if detail else "")


def turn_place(detail: str) -> tuple[int, int] | None:
    """Place and number of turns in a detail made by :func:`turn_text`."""
    found = _TURN.match(detail)
    return (int(found[1]), int(found[2])) if found else None


class RowFormat:
    """Writes and reads the rows of one key."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.columns = ("event", *key.columns, *_AFTER_KEY)
        self._first = 1 + len(key.columns)
        self._shapes: dict[tuple[tuple[str, object], ...], str] = {}
        self._second, self._second_text = 0, ""

    def header(self) -> bytes:
        return (",".join(self.columns) + "\n").encode()

    def run(self, digest: str, fields: Mapping[str, str]) -> bytes:
        detail = _cell(json.dumps(dict(fields), sort_keys=True))  # json.dumps escapes line ends
        blanks = "," * (len(self.columns) - 4)
        return f"{RUN}{blanks},{detail},{digest},{self._now()}\n".encode()

    def mark(
        self, event: str, shape: Mapping[str, object], candidate: str, phase: str, attempt: int, fingerprint: str
    ) -> bytes:
        """A ``started`` or ``stopped`` row."""
        return (
            f"{event},{self._shape(shape)},{_name(candidate)},{_name(phase)},{attempt},,,,,,,,,,"
            f"{_name(fingerprint)},{self._now()}\n"
        ).encode()

    def finished(
        self, shape: Mapping[str, object], candidate: str, phase: str, fingerprint: str, m: Measurement
    ) -> bytes:
        detail = _cell(one_line(m.detail)) if m.detail else ""
        flags = _cell(";".join(m.flags)) if m.flags else ""
        return (
            f"{FINISHED},{self._shape(shape)},{_name(candidate)},{_name(phase)},{m.attempt},{m.status},"
            f"{round(m.us, DIGITS)},{m.censored},{round(m.err_ratio, DIGITS)},{m.samples},{_cell(m.timer)},{flags},"
            f"{_cell(m.device)},{detail},{_name(fingerprint)},{self._now()}\n"
        ).encode(errors="backslashreplace")

    def _shape(self, shape: Mapping[str, object]) -> str:
        """The key's cells, joined; formatting them anew for each row would cost more than all the rest."""
        items = tuple(shape.items())
        cells = self._shapes.get(items)
        if cells is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            cells = self._shapes[items] = ",".join(map(_cell, self.key.format(shape).values()))
        return cells

    def _now(self) -> str:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._second_text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{int((now - second) * 1000):03d}Z"

    def shape_cells(self, cells: Sequence[str]) -> tuple[str, ...]:
        return tuple(cells[1 : self._first])

    def parse(self, cells: Sequence[str]) -> Event:
        """The event in a row's cells.

        Raises:
            ValueError: a cell does not hold what its column needs.
        """
        event = cells[0]
        candidate, phase, attempt, status, us, censored, err_ratio, samples, timer, flags, device, detail, print_, _ = (
            cells[self._first :]
        )
        measurement = None
        if event == FINISHED:
            measurement = Measurement(
                status=Status(status),
                us=float(us),
                err_ratio=float(err_ratio),
                detail=detail,
                attempt=int(attempt),
                censored=censored == "True",
                samples=int(samples),
                timer=timer,
                flags=tuple(flags.split(";")) if flags else (),
                device=device,
            )
        return Event(event, candidate, phase, int(attempt), print_, measurement)


def run_fields(columns: Sequence[str], cells: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """Digest and fields in a ``run`` row, whatever its key; None if it is no whole one."""
    row = dict(zip(columns, cells, strict=False))
    try:
        fields = json.loads(row.get("detail", ""))
    except json.JSONDecodeError:
        return None
    if row.get("event") != RUN or not isinstance(fields, dict) or not row.get("fingerprint"):
        return None
    return row["fingerprint"], {str(name): str(value) for name, value in fields.items()}


@lru_cache(maxsize=4096)
def _cell(text: str) -> str:
    """``text`` as one cell; what cannot be printed is escaped, so that a row stays one line."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return quoted(text)


@lru_cache(maxsize=4096)
def _name(text: str) -> str:
    """A name as one cell that reads back as the same name.

    Raises:
        ValueError: it is blank, begins or ends with a blank, or cannot be printed.
    """
    if not text or not text.isprintable() or text.strip() != text:
        raise ValueError(f"{text!r} cannot name a candidate, phase or fingerprint; expected printable text on one line")
    return _cell(text)
