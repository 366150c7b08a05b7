"""Turns: how the entrants of a contest are timed one after another, again and again, in one process.

::

    contest ── prepare(entrants) ──▶ Turns      warm up, copies, graphs: kept open until the contest ends
            ── block(order) ───────▶            a c b ──▶ one Turn each, or what it raised

``turn(entrant)`` surrounds everything that runs an entrant's code, so that whoever is running is known outside. A CPU's
turns are here; a GPU's, whose timers share copies and activity sessions, are in
:mod:`~aiter_tuning.measure.gpu.device_turns`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol, TypeVar

from aiter_tuning.measure.candidate import Checked, Steps
from aiter_tuning.measure.inputs import Inputs
from aiter_tuning.measure.sampling import SHORTEST_READING_US
from aiter_tuning.measure.statistics import median
from aiter_tuning.measure.timer import Timer
from aiter_tuning.status import is_device_fault

MOST_READINGS = 100
"""In a turn; beyond that calls share a reading, which a median does not mind."""


@dataclass(slots=True, eq=False)
class Entrant:
    """A candidate that was right in its first call, and what has been seen of it since."""

    index: int
    steps: Steps
    inputs: Inputs
    checked: Checked
    setup_s: float
    flags: dict[str, None] = field(default_factory=dict)
    """Circumstances of its turns; a dictionary for its order."""
    timer: str = ""
    calls: int = 0
    """Timed here."""
    timing_s: float = 0.0


class Turn(NamedTuple):
    """What an entrant's turn gave."""

    us: float
    """Median of its samples; a clock's mistake is passed on as it is."""
    calls: int
    timer: str
    flags: tuple[str, ...] = ()
    """What the timer has to say."""
    seconds: float = 0.0


Around = Callable[[Entrant], AbstractContextManager[None]]
"""Entered before an entrant's code runs, left behind it."""
Outcome = TypeVar("Outcome")


class Turns(Protocol):
    """Times entrants in turns. A device fault ends what was begun: nobody comes after it."""

    unclean: tuple[int, str] | None
    """Entrant that leaves the process in doubt, without being to blame, and why. Nothing is to be timed here then."""

    def prepare(self, entrants: Sequence[Entrant], turn: Around) -> Mapping[int, BaseException]:
        """Gets all of them ready; returns what went wrong, by entrant."""
        ...

    def block(self, order: Sequence[Entrant], turn: Around) -> Mapping[int, Turn | BaseException]:
        """Times each once, in this order; what an entrant raised stands in its place."""
        ...

    def close(self) -> None:
        """Lets go of copies and graphs."""
        ...


def taken(entrant: Entrant, turn: Around, work: Callable[[], Outcome]) -> Outcome | BaseException:
    """What ``work`` returns or raises in the entrant's turn."""
    with turn(entrant):
        try:
            return work()
        except BaseException as error:  # a candidate may raise SystemExit or a class of its own
            return error


def calls_in_turn(us: float, block_calls: int, block_us: float) -> int:
    """How often a candidate that takes ``us`` is called in its turn; see :class:`~aiter_tuning.contest.Contest`."""
    if block_us <= 0 or not (us > 0 and math.isfinite(us)):
        return block_calls
    return max(block_calls, math.ceil(block_us / us))


class WallTurns:
    """Turns by a clock that reads some calls at a time."""

    def __init__(self, timer: Timer, block_calls: int, block_us: float) -> None:
        self.unclean: tuple[int, str] | None = None
        self._timer = timer
        self._block_calls = block_calls
        self._block_us = block_us
        self._us: dict[int, float] = {}

    def prepare(self, entrants: Sequence[Entrant], turn: Around) -> Mapping[int, BaseException]:
        failures: dict[int, BaseException] = {}
        for entrant in entrants:
            us = taken(entrant, turn, partial(self._warm_up, entrant))
            if isinstance(us, BaseException):
                failures[entrant.index] = us
            else:
                self._us[entrant.index] = us
        return failures

    def block(self, order: Sequence[Entrant], turn: Around) -> Mapping[int, Turn | BaseException]:
        outcomes: dict[int, Turn | BaseException] = {}
        for entrant in order:
            outcome = outcomes[entrant.index] = taken(entrant, turn, partial(self._time, entrant))
            if isinstance(outcome, BaseException) and is_device_fault(outcome):
                break
        return outcomes

    def close(self) -> None:
        self._us.clear()

    def _warm_up(self, entrant: Entrant) -> float:
        us = math.nan
        for _ in range(max(1, entrant.steps.warmup)):
            us = self._read(entrant, 1)
        return us

    def _time(self, entrant: Entrant) -> Turn:
        began = perf_counter()
        restored = entrant.steps.restore is not None
        us = self._us[entrant.index]
        left = calls = calls_in_turn(us, self._block_calls, self._block_us)
        short = math.ceil(SHORTEST_READING_US / us) if us > 0 else 1
        batch = 1 if restored else min(calls, max(short, math.ceil(calls / MOST_READINGS)))
        readings: list[float] = []
        while left:
            now = min(batch, left)
            readings.append(self._read(entrant, now))
            left -= now
        us = median(readings)
        if us > 0 and math.isfinite(us):
            self._us[entrant.index] = us
        return Turn(us, calls, self._timer.name, (), perf_counter() - began)

    def _read(self, entrant: Entrant, calls: int) -> float:
        restore = entrant.steps.restore
        us = self._timer.read(entrant.steps.call, calls)
        if restore is not None:
            restore()  # at once: whoever comes next may share the inputs
        return us
