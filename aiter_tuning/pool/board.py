"""Where a worker says what it is doing, without a system call: a few bytes of memory shared with the parent.

The parent looks only when it has to know: when a clock may have run out, or when the worker is dead (the memory
outlives it). A message for every step would wake the parent three times for each candidate and cost more than a short
one takes.

A post is framed by two counters; a reader that finds them unequal met a post in progress, or one that death cut short.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection
from time import monotonic
from typing import NamedTuple

PHASES = ("idle", "opening", "inputs", "reference", "compiling", "measuring", "finals")
IDLE, OPENING, INPUTS, REFERENCE, COMPILING, MEASURING, FINALS = range(len(PHASES))

STANDBY = 1
"""Circumstance: another process imports on the lane's cores."""
CIRCUMSTANCES = {STANDBY: "standby", 2: "throttled", 4: "foreign", 8: "shared"}
"""Flags that the parent lays upon what is measured meanwhile, by bit; see :mod:`aiter_tuning.devices.monitor`."""

_FRAME = struct.Struct("<QiidddQ")  # counter, phase, candidate, since, started, opened, counter
_AROUND = struct.Struct("<III")  # bits, changes, bits of the last change
_AROUND_AT = 128
_SIZE = 256
_TRIES = 100


class Posted(NamedTuple):
    """The last post."""

    posts: int
    """How many so far; tells news from what was known before."""
    phase: str
    candidate: int
    """Its index in the group, -1 for none."""
    since: float
    """When that began, on the monotonic clock that all processes of a host share."""
    started: float
    """When the candidate itself was first called, or its turn in a contest began; 0 until then."""
    opened: float
    """When the group was taken."""


class Board:
    """The shared memory; the parent makes it, the worker maps the same descriptor."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _SIZE)
        self._count = 0
        self._started = 0.0
        self._opened = 0.0

    @classmethod
    def create(cls) -> tuple[Board, int]:
        """A new board, and the descriptor that a worker inherits; the caller closes it."""
        fd = os.memfd_create("aiter_tuning.board", os.MFD_CLOEXEC)
        os.ftruncate(fd, _SIZE)
        return cls(fd), fd

    @classmethod
    def inherit(cls, fd: int) -> Board:
        """The board behind an inherited descriptor, which is closed."""
        board = cls(fd)
        os.close(fd)
        return board

    def post(self, phase: int, candidate: int = -1) -> None:
        """The worker's side: what it does from now on."""
        now = monotonic()  # by name: a candidate may have put another one in its module
        if phase in (COMPILING, FINALS):
            self._started = now
        elif phase == OPENING:
            self._opened = now
        self._count += 1
        count = self._count
        _FRAME.pack_into(self._memory, 0, count, phase, candidate, now, self._started, self._opened, count)

    def read(self) -> Posted:
        """The parent's side: the last whole post."""
        for _ in range(_TRIES):
            first, phase, candidate, since, started, opened, last = _FRAME.unpack_from(self._memory, 0)
            if first == last and 0 <= phase < len(PHASES):
                return Posted(first, PHASES[phase], candidate, since, started, opened)
        return Posted(0, PHASES[IDLE], -1, 0.0, 0.0, 0.0)

    def surround(self, bits: int) -> None:
        """The parent's side: the circumstances from now on."""
        before, changes, _ = _AROUND.unpack_from(self._memory, _AROUND_AT)
        if bits != before:
            _AROUND.pack_into(self._memory, _AROUND_AT, bits, changes + 1, bits | before)

    def circumstances(self) -> tuple[int, int, int]:
        """The worker's side: bits now, how often they changed, and the bits around the last change."""
        bits, changes, around = _AROUND.unpack_from(self._memory, _AROUND_AT)
        return bits, changes, around

    def close(self) -> None:
        self._memory.close()


def bits_of(flags: Collection[str]) -> int:
    """The circumstances of these names."""
    return sum(bit for bit, name in CIRCUMSTANCES.items() if name in flags)


def flags_between(before: tuple[int, int, int], after: tuple[int, int, int]) -> tuple[str, ...]:
    """The flags of everything that held at some time between two looks."""
    bits = before[0] | after[0] | (after[2] if before[1] != after[1] else 0)
    return tuple(name for bit, name in CIRCUMSTANCES.items() if bits & bit) if bits else ()
