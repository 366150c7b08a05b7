"""What earlier runs put on record, found by shape without keeping it in memory.

A checkpoint may hold a hundred thousand rows, and a resumed run asks for one shape's after the other. What is kept
per row is where it starts and how long it is; its text is read again when its shape is asked for::

    file ─ one pass ─► shape ─► [(source, offset, length), …] ─ pread ─► events of that shape
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from aiter_tuning.keys import KeyFieldError, KeyValue
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint_row import (
    EVENTS,
    FINALS,
    RUN,
    STARTED,
    Event,
    RowFormat,
    block_number,
    turn_place,
)
from aiter_tuning.tables.csv_reader import CsvError, parse_line


class BlockRows(NamedTuple):
    """A block of a contest, as it is on record."""

    number: int
    us: Mapping[str, float]
    """Microseconds by candidate, in the order of their turns; NaN where it could not be timed."""
    device_uuid: str


class Record:
    """The rows of one or more checkpoint files, oldest source first."""

    def __init__(self, rows: RowFormat) -> None:
        self._rows = rows
        self._sources: list[tuple[Path, int, bool]] = []
        self._places: dict[tuple[KeyValue, ...], array[int]] = {}
        self._asked: tuple[tuple[KeyValue, ...], list[tuple[Event, bool]]] | None = None
        """The events of the shape that was asked for last: several questions come in a row."""
        self.warnings: list[str] = []
        """Rows that could not be read."""

    def add(self, path: Path, fd: int, *, running: bool = False) -> None:
        """Takes in a file that is open for reading, whose header was checked; ``fd`` has to stay open.

        Args:
            path: its name, for warnings.
            fd: its descriptor.
            running: another process is writing it: what it has started is no suspect.
        """
        source = len(self._sources)
        self._sources.append((path, fd, running))
        shapes: dict[tuple[str, ...], tuple[KeyValue, ...]] = {}
        offset = 0
        with os.fdopen(os.dup(fd), "rb") as file:
            file.seek(0)
            for line, raw in enumerate(file, start=1):
                if line > 1 and raw.endswith(b"\n"):
                    self._take(path, line, raw, shapes, (source, offset, len(raw)))
                offset += len(raw)

    def _take(
        self,
        path: Path,
        line: int,
        raw: bytes,
        shapes: dict[tuple[str, ...], tuple[KeyValue, ...]],
        place: tuple[int, int, int],
    ) -> None:
        try:
            cells = parse_line(path, raw, line)
            if len(cells) != len(self._rows.columns) or cells[0] not in EVENTS:
                raise CsvError(path, f"{raw[:60]!r} is no row of this checkpoint", line=line)
            if cells[0] == RUN:
                return
            spelling = self._rows.shape_cells(cells)
            if spelling not in shapes:
                parsed = self._rows.key.parse(dict(zip(self._rows.key.columns, spelling, strict=True)))
                shapes[spelling] = tuple(parsed.values())
            self._places.setdefault(shapes[spelling], array("q")).extend(place)
        except KeyFieldError as error:
            self.warnings.append(f"{path}:{line}: {error}; skipped")
        except CsvError as error:
            self.warnings.append(f"{error}; skipped")

    def close(self) -> None:
        """Forgets everything; the descriptors are the caller's."""
        self._sources.clear()
        self._places.clear()
        self._asked = None

    def finished(
        self, shape: Mapping[str, object], fingerprints: Mapping[str, str], phase: str
    ) -> dict[str, Measurement]:
        """The newest result of each candidate whose fingerprint on record is the given one, oldest first."""
        results: dict[str, Measurement] = {}
        for event, _ in self._events(shape, phase):
            if event.measurement is None or fingerprints.get(event.candidate) != event.fingerprint:
                continue
            if event.measurement.status.is_terminal:
                results.pop(event.candidate, None)
                results[event.candidate] = event.measurement
        return results

    def suspects(
        self, shape: Mapping[str, object], fingerprints: Mapping[str, str] | None, phase: str
    ) -> dict[str, int]:
        """How often each candidate was started since it last came to an end, where it was at all."""
        counts: dict[str, int] = {}
        for event, running in self._events(shape, phase):
            if fingerprints is not None and fingerprints.get(event.candidate) != event.fingerprint:
                continue
            if event.event != STARTED:
                counts.pop(event.candidate, None)
            elif not running:
                counts[event.candidate] = counts.get(event.candidate, 0) + 1
        return counts

    def attempts(self, shape: Mapping[str, object], phase: str) -> dict[str, int]:
        """The highest attempt on record of each candidate, whatever its fingerprint was."""
        highest: dict[str, int] = {}
        for event, _ in self._events(shape, phase):
            highest[event.candidate] = max(event.attempt, highest.get(event.candidate, 0))
        return highest

    def blocks(
        self, shape: Mapping[str, object], fingerprints: Mapping[str, str], contest: str = FINALS
    ) -> list[BlockRows]:
        """The whole blocks of one of the shape's contests, in order, as they count.

        A block replaces the one of its number that came before it and voids all later ones. One that lacks turns is no
        block, nor one with a turn of a candidate under another fingerprint than the given one: both end the row.
        """
        blocks: list[BlockRows] = []
        us: dict[str, float] = {}
        for event, _ in self._shape_events(shape):
            number, turn = block_number(event.phase, contest), event.measurement
            if number is None or turn is None:
                continue
            place = turn_place(turn.detail)
            if place is None:
                continue
            if place[0] == 1:
                us = {}
                blocks = [block for block in blocks if block.number < number]
            known = fingerprints.get(event.candidate) == event.fingerprint
            if known and len(us) == place[0] - 1:
                us[event.candidate] = turn.us if turn.status is Status.ok else math.nan
            if len(us) == place[1] and number == len(blocks) + 1:
                blocks.append(BlockRows(number, us, turn.device))
        return blocks

    def _events(self, shape: Mapping[str, object], phase: str) -> Iterator[tuple[Event, bool]]:
        """The events of one shape and phase, each with whether another process is still writing its file."""
        yield from (asked for asked in self._shape_events(shape) if asked[0].phase == phase)

    def _shape_events(self, shape: Mapping[str, object]) -> Iterator[tuple[Event, bool]]:
        """The same of all phases."""
        if not self._places:
            return
        values = self._rows.key.values(shape)
        if self._asked is None or self._asked[0] != values:
            self._asked = values, list(self._read(self._places.get(values, array("q"))))
        yield from self._asked[1]

    def _read(self, places: array[int]) -> Iterator[tuple[Event, bool]]:
        for i in range(0, len(places), 3):
            path, fd, running = self._sources[places[i]]
            raw = os.pread(fd, places[i + 2], places[i + 1])
            try:
                yield self._rows.parse(parse_line(path, raw, 0)), running
            except ValueError as error:
                self.warnings.append(f"{path}: {raw[:60]!r} is no row of this checkpoint ({error}); skipped")
