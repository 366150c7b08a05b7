"""The second look at a decision that changes a row, and the shapes on their way to it.

::

    finals ─▶ decision ─ changes the row? ─▶ waiting ─▶ a contest of two in a fresh worker ─▶ judged again ─▶ row
                                              └ a dozen and more share one worker, since starting it costs a second

A process is part of what is measured: where the driver put its buffers, what a library chose when it was asked first.
Two kernels timed in turns inside one process share that, and a lead of 5 % there may be one of 2 % in the next. So
whatever is to replace a row is timed against it once more in a process that has done nothing else: as candidates
(:mod:`~aiter_tuning.tuner.confirmation`) or, with ``--compare``, as serving runs them
(:mod:`~aiter_tuning.tuner.comparison`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from aiter_tuning.tables.evidence import Evidence
from aiter_tuning.tables.tuned import TunedRow
from aiter_tuning.task import Group
from aiter_tuning.tuner.deciding import Decision
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.shape_contest import ShapeContest

NewRow = Callable[[], tuple[TunedRow, Evidence]]
"""Makes the row that a decision is to write, and its evidence so far."""

VERIFYING_CALLS = 32
"""What is to be served is compared with the reference so often; who is wrong in a tenth of the calls passes them in one
of thirty cases."""
_MOST = 32
_PATIENCE_S = 60.0
_START_S = 2.0
"""About what a fresh worker costs; less than this that waits is left to a lane which has one."""

T = TypeVar("T")


class Review(Protocol):
    """Looks at decisions again. Its contests have a phase of their own in the checkpoint."""

    unfinished: str
    """What is said of a shape whose review is not over."""

    def plan(self, plan: ShapePlan, decision: Decision, fingerprints: Mapping[str, str]) -> ShapeContest | None:
        """The contest that reviews a decision, as far as it is on record; None: there is nothing to review."""
        ...

    def is_fresh(self, contest: ShapeContest) -> bool:
        """Whether it needs a worker that has done nothing else."""
        ...

    def group(self, plan: ShapePlan, decision: Decision, contest: ShapeContest, new_row: NewRow) -> Group:
        """What a lane carries out.

        Raises:
            OSError: a table that the contest needs could not be written.
        """
        ...

    def judge(self, plan: ShapePlan, decision: Decision, contest: ShapeContest) -> Decision:
        """The decision now that the contest is over."""
        ...


class Waiting(Generic[T]):
    """Whatever waits for a fresh worker, until it is worth one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queue: deque[tuple[float, float, T]] = deque()
        self._under_way = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, one: T, *, expected_s: float = 0.0) -> None:
        """``expected_s``: about how long it will take."""
        self._queue.append((self._clock(), expected_s, one))

    def ended(self) -> None:
        """One that was taken is over; its lane's worker is fresh still."""
        self._under_way -= 1

    def take(self, *, idle: bool, is_fresh: bool) -> T | None:
        """The next, if its time has come.

        Args:
            idle: the lane that asks has nothing else to do.
            is_fresh: its worker is a fresh one.
        """
        if not self._queue:
            return None
        waited = self._clock() - self._queue[0][0]
        if idle and self._under_way:  # whoever has a fresh worker asks again
            idle = sum(seconds for _, seconds, _ in self._queue) >= _START_S
        if not (idle or is_fresh or len(self._queue) >= _MOST or waited >= _PATIENCE_S):
            return None
        self._under_way += 1
        return self._queue.popleft()[2]
