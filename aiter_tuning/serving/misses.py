"""Shapes that serving asked for and nobody has tuned, recorded so that they can be.

::

    a miss, first time ─▶ one appended row, calls 1 ──┐
    a miss again       ─▶ a counter in memory         ├─▶ DIR/<family>_untuned.csv ─▶ aiter-tune tune FAMILY -i …
    now and then, exit ─▶ one appended row, calls +n ─┘    read_shapes adds up the calls of a shape

A counter is written once it has doubled, after ten seconds, and when the process ends; a process that is killed loses
what it counted since. Recording never raises: what cannot be written is said once, kept, and tried again later.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from aiter_tuning.keys import CALLS_COLUMN, Shape
from aiter_tuning.serving.recording_file import append_lines
from aiter_tuning.tables.csv_writer import csv_line

logger = logging.getLogger("aiter_tuning")

VARIABLE = "AITER_TUNE_RECORD"
WRITE_EVERY_S = 10.0
RETRY_AFTER_S = 60.0
MOST_SHAPES = 100_000
"""Of one process; a server that sees more distinct ones needs a bucket, not a longer list."""
_OFF = frozenset({"", "0", "false"})
_ROWS_AT_A_TIME = 1000
"""A serving thread waits for them."""


class _Count:
    """How often one shape was missed in this process."""

    __slots__ = ("cells", "family", "pending", "written")

    def __init__(self, family: str, cells: tuple[str, ...]) -> None:
        self.family = family
        self.cells = cells
        self.written = 0
        self.pending = 0


_Book: TypeAlias = dict[tuple[str, tuple[Any, ...]], _Count]
"""The counts of one process by family and shape; a new one where a process begins anew."""


class MissRecorder:
    """Counts misses of one process and appends them to the files of one directory."""

    def __init__(self, directory: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.directory = Path(os.path.abspath(directory))
        self._clock = clock
        self._complaints: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Counts from zero; in a forked child, where what is pending is its parent's to write."""
        self._lock = threading.Lock()
        self.book: _Book = {}
        self._headers: dict[str, str] = {}
        self._due = self._clock() + WRITE_EVERY_S
        self._not_before = 0.0

    def count_of(self, family: str, shape: Mapping[str, Any]) -> _Count | None:
        """Where misses of a shape are counted; None: there are too many shapes already.

        Args:
            family: its operator's name, which names the file.
            shape: typed fields of its key, in order.
        """
        name = family, tuple(shape.values())
        with self._lock:
            count = self.book.get(name)
            if count is None:
                if len(self.book) >= MOST_SHAPES:
                    self._complain(f"{self.directory}: {MOST_SHAPES} distinct shapes recorded; further ones are not")
                    return None
                count = self.book[name] = _Count(family, tuple(map(str, shape.values())))
                self._headers.setdefault(family, csv_line((*shape, CALLS_COLUMN)))
            return count

    def add(self, count: _Count) -> None:
        """Counts one miss."""
        with self._lock:
            count.pending += 1
            if count.pending > count.written:
                if self._clock() >= self._not_before:
                    self._write(count.family, [count])
            elif self._clock() >= self._due:
                self._write_pending()

    def flush(self) -> None:
        """Writes all that was counted and not written yet."""
        with self._lock:
            while self._write_pending():
                pass

    def _write_pending(self) -> bool:
        """Writes what is pending, a part of it at a time; returns whether there is more that can be written."""
        self._due = self._clock() + WRITE_EVERY_S
        waiting = [count for count in self.book.values() if count.pending]
        now = waiting[:_ROWS_AT_A_TIME]
        for family in dict.fromkeys(count.family for count in now):
            if not self._write(family, [count for count in now if count.family == family]):
                return False
        return len(waiting) > len(now)

    def _write(self, family: str, counts: list[_Count]) -> bool:
        path = self.directory / f"{family}_untuned.csv"
        lines = [csv_line((*count.cells, str(count.pending))) for count in counts]
        try:
            append_lines(path, self._headers[family], lines)
        except (OSError, ValueError) as error:
            self._not_before = self._due = self._clock() + RETRY_AFTER_S
            what = error.strerror if isinstance(error, OSError) and error.strerror else error
            self._complain(f"{path}: misses cannot be recorded: {what}")
            return False
        for count in counts:
            count.written += count.pending
            count.pending = 0
        return True

    def _complain(self, text: str) -> None:
        if text not in self._complaints:
            self._complaints.add(text)
            logger.warning("%s", text)


_recorder: MissRecorder | None = None
_by_hand = False
"""Whether ``record_misses`` was called: the environment counts no more then."""
_ends_by_itself = False
"""Whether the end of this process writes what is pending without multiprocessing's help."""


def record_misses(directory: str | os.PathLike[str] | None) -> None:
    """From now on, misses of this process are recorded in ``directory``; None: no more, whatever the environment says.

    Without a call the variable ``AITER_TUNE_RECORD`` names the directory, for child processes as well.
    """
    global _by_hand
    _by_hand = True
    _use(None if directory is None else os.fspath(directory))


def follow_environment() -> None:
    """Starts or stops recording as the environment says, unless somebody has said otherwise by hand."""
    if not _by_hand:
        value = os.environ.get(VARIABLE, "").strip()
        with contextlib.suppress(FileNotFoundError):  # a relative path, and the working directory is gone
            _use(None if value.lower() in _OFF else value)


class Miss:
    """The answer that there is no row for a shape; counts how often it is given where misses are recorded."""

    __slots__ = ("_book", "_count", "_family", "_shape")

    def __init__(self, family: str, shape: Shape) -> None:
        self._family = family
        self._shape = shape
        self._book: _Book | None = None
        self._count: _Count | None = None

    def count(self) -> None:
        """Counts one."""
        recorder = _recorder
        if recorder is None:
            return
        if self._book is not recorder.book:  # another recorder, or a forked process
            if not _ends_by_itself:
                _write_at_the_end_of_this_process()
            self._count, self._book = recorder.count_of(self._family, self._shape), recorder.book
        if self._count is not None:
            recorder.add(self._count)


def _use(directory: str | None) -> None:
    global _recorder
    current = None if _recorder is None else _recorder.directory
    if current == (None if directory is None else Path(os.path.abspath(directory))):
        return
    _flush()
    _recorder = None if directory is None else MissRecorder(directory)


def _flush() -> None:
    if _recorder is not None:
        _recorder.flush()


def _write_at_the_end_of_this_process() -> None:
    """A child that multiprocessing forked ends without atexit's functions; it has a list of its own."""
    global _ends_by_itself
    _ends_by_itself = True
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, _flush, exitpriority=0)


def _after_fork() -> None:
    global _ends_by_itself
    _ends_by_itself = False
    if _recorder is not None:
        _recorder.begin()


atexit.register(_flush)
os.register_at_fork(after_in_child=_after_fork)
