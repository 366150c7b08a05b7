"""A worker's pen: it writes its own rows into the checkpoint, one write each, before it goes on.

::

    parent   Checkpoint (flock, resume, sync) ── logbook(shape, …) ──▶ pickled with the group
    worker   CheckpointLogbook.started ─▶ the candidate runs ─▶ .finished      O_APPEND: rows of several lanes don't mix

What is measured is in the page cache when the candidate is done with, whoever is killed next, and ``started`` stands
there only for what really began. No round trip to the parent is needed for either.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from aiter_tuning.contest import Block
from aiter_tuning.keys import Key
from aiter_tuning.measurement import UNMEASURED_US, Measurement
from aiter_tuning.tables.checkpoint_row import STARTED, STOPPED, RowFormat, block_phase, turn_text

_open: dict[tuple[int, int], int] = {}
"""This process's descriptor of the checkpoint, by device and inode: opened once, not for every shape."""


@dataclass(frozen=True)
class CheckpointLogbook:
    """The rows of one shape's candidates; see :class:`~aiter_tuning.task.Logbook` and, for a contest, its subclass."""

    path: str
    identity: tuple[int, int]
    """Device and inode, so that a file of the same name that came later is not written to."""
    key: Key
    shape: Mapping[str, object]
    phase: str
    names: tuple[str, ...]
    """Of the candidates, in the group's order."""
    fingerprints: tuple[str, ...]
    attempts: tuple[int, ...]
    """Attempts of earlier runs, which this run's are counted on top of."""

    @cached_property
    def _rows(self) -> RowFormat:
        return RowFormat(self.key)

    def started(self, candidate: int, attempt: int) -> None:
        """Raises OSError when the row cannot be written."""
        name, fingerprint = self.names[candidate], self.fingerprints[candidate]
        attempt += self.attempts[candidate]
        self._append(self._rows.mark(STARTED, self.shape, name, self.phase, attempt, fingerprint))

    def finished(self, candidate: int, measurement: Measurement) -> None:
        """Raises OSError when the row cannot be written."""
        name, fingerprint = self.names[candidate], self.fingerprints[candidate]
        if self.attempts[candidate]:
            measurement = replace(measurement, attempt=measurement.attempt + self.attempts[candidate])
        self._append(self._rows.finished(self.shape, name, self.phase, fingerprint, measurement))

    def turn(self, ended: tuple[int, int] | None, begins: tuple[int, int] | None) -> None:
        """One write for both; raises OSError when it cannot be made."""
        rows = b""
        for event, who in ((STOPPED, ended), (STARTED, begins)):
            if who is not None:
                candidate, attempt = who
                name, fingerprint = self.names[candidate], self.fingerprints[candidate]
                attempt += self.attempts[candidate]
                rows += self._rows.mark(event, self.shape, name, self.phase, attempt, fingerprint)
        if rows:
            self._append(rows)

    def block(self, block: Block, timed: Sequence[Measurement]) -> None:
        """A row for each turn, all in one write; raises OSError when it cannot be made."""
        rows = b""
        for place, (candidate, us, turn) in enumerate(zip(block.order, block.us, timed, strict=True), start=1):
            row = replace(
                turn,
                us=UNMEASURED_US if math.isnan(us) else us,
                attempt=turn.attempt + self.attempts[candidate],
                detail=turn_text(place, len(block.order), turn.detail),
            )
            name, fingerprint = self.names[candidate], self.fingerprints[candidate]
            rows += self._rows.finished(self.shape, name, block_phase(block.number, self.phase), fingerprint, row)
        self._append(rows)

    def _append(self, row: bytes) -> None:
        try:
            written = os.write(self._fd(), row)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise OSError(error.errno, error.strerror, self.path) from error
            _open.pop(self.identity, None)  # a candidate closed it: that is no reason to lose its verdict
            written = os.write(self._fd(), row)
        if written < len(row):
            with contextlib.suppress(OSError):
                os.write(self._fd(), b"\n")  # so that what other lanes still write is not joined to half a row
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def _fd(self) -> int:
        fd = _open.get(self.identity)
        if fd is None:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) != self.identity:
                os.close(fd)
                raise OSError(errno.ESTALE, "the checkpoint was replaced while the run went on", self.path)
            _open[self.identity] = fd
        return fd
