"""What is known of each candidate before it runs: shared by those who compile ahead and the lanes that come after.

::

    compile processes ── compiling, compiled, failed … ──▶ ┌──────────────┐ ◀── take: "I am there" ── lanes
                      ◀─────────── taken: not needed ────── │ a byte each  │ ──▶ a verdict, if there is one
                                                           └──────────────┘
                                       the verdict itself: a small file beside it

Nobody waits for anybody and nobody has to be alive: a candidate of which nothing is known just runs.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
from collections import Counter
from enum import IntEnum
from typing import NamedTuple

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status


class State(IntEnum):
    """How far the compile processes are with a candidate."""

    waiting = 0
    compiling = 1
    compiled = 2
    failed = 3
    """There is a verdict."""
    no_verdict = 4
    """It could not be run dry, or its process died or took too long."""
    skipped = 5
    """A lane was there first."""


class CompileBook:
    """The table, mapped from its file; two bytes for each candidate of a run."""

    def __init__(self, path: str) -> None:
        """Opens the book that :meth:`create` made."""
        self.path = path
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self._count = len(self._memory) // 2

    @classmethod
    def create(cls, path: str, candidates: int) -> CompileBook:
        with open(path, "xb") as file:
            os.ftruncate(file.fileno(), 2 * max(1, candidates))
        return cls(path)

    # The compile processes' side

    def enter(self, slot: int, state: State) -> None:
        self._memory[slot] = state

    def fail(self, slot: int, measurement: Measurement) -> None:
        """Enters a verdict."""
        verdict = {"status": measurement.status, "detail": measurement.detail, "us": measurement.us}
        with open(self._verdict_file(slot), "w") as file:
            json.dump(verdict, file)
        self.enter(slot, State.failed)  # last: whoever reads this finds the whole file

    def is_taken(self, slot: int) -> bool:
        return self._memory[self._count + slot] != 0

    # The lanes' side

    def take(self, slot: int) -> Measurement | None:
        """A lane is about to run the candidate; its verdict, if the compiler has spoken."""
        self._memory[self._count + slot] = 1
        if self._memory[slot] != State.failed:
            return None
        with contextlib.suppress(OSError, ValueError):
            with open(self._verdict_file(slot)) as file:
                verdict = json.load(file)
            return Measurement.failed(Status(verdict["status"]), verdict["detail"], us=float(verdict["us"]))
        return None

    # Everybody's

    def state(self, slot: int) -> State:
        return State(self._memory[slot])

    def counts(self) -> Counter[State]:
        """How many candidates are in each state."""
        return Counter({State(byte): count for byte, count in Counter(self._memory[: self._count]).items()})

    def close(self) -> None:
        self._memory.close()

    def _verdict_file(self, slot: int) -> str:
        return f"{self.path}.{slot}"


class GroupBook:
    """A book as the worker that has a group open sees it."""

    def __init__(self, book: CompileBook, first: int) -> None:
        self._book = book
        self._first = first

    def take(self, index: int) -> Measurement | None:
        """See :meth:`CompileBook.take`; ``index`` is the candidate's in its group."""
        return self._book.take(self._first + index)

    def close(self) -> None:
        self._book.close()


class Slots(NamedTuple):
    """Where a group's candidates stand in the book; travels with the group."""

    path: str
    first: int

    def open(self) -> GroupBook | None:
        """The book; None if it is gone, which costs nothing but what it knew."""
        try:
            return GroupBook(CompileBook(self.path), self.first)
        except (OSError, ValueError):
            return None
