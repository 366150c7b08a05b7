"""Turns on a GPU: every entrant's timer stays open with its graph, and each turn is one of its bursts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter

from aiter_tuning.contest import Contest
from aiter_tuning.measure.gpu.device_timer import DeviceTimer
from aiter_tuning.measure.statistics import median
from aiter_tuning.measure.turns import Around, Entrant, Turn, calls_in_turn, taken
from aiter_tuning.status import is_device_fault

MOST_CALLS = 32
"""In a turn, but for what a contest asks for at least: the record of each call costs more than a short call takes."""


class DeviceTurns:
    """See :class:`~aiter_tuning.measure.turns.Turns`."""

    def __init__(self, new_timer: Callable[[], DeviceTimer], contest: Contest) -> None:
        self.unclean: tuple[int, str] | None = None
        self._new_timer = new_timer
        self._contest = contest
        self._timers: dict[int, DeviceTimer] = {}

    def prepare(self, entrants: Sequence[Entrant], turn: Around) -> Mapping[int, BaseException]:
        failures: dict[int, BaseException] = {}
        for entrant in entrants:
            failure = taken(entrant, turn, partial(self._prepare, entrant))
            if failure is not None:
                failures[entrant.index] = failure
            timer = self._timers[entrant.index]
            if timer.unclean:
                self.unclean = entrant.index, timer.unclean
            if self.unclean is not None or (failure is not None and is_device_fault(failure)):
                break
        return failures

    def block(self, order: Sequence[Entrant], turn: Around) -> Mapping[int, Turn | BaseException]:
        outcomes: dict[int, Turn | BaseException] = {}
        for entrant in order:
            outcome = outcomes[entrant.index] = taken(entrant, turn, partial(self._time, entrant))
            if isinstance(outcome, BaseException) and is_device_fault(outcome):
                break
        return outcomes

    def close(self) -> None:
        for timer in self._timers.values():
            timer.close()
        self._timers.clear()

    def _prepare(self, entrant: Entrant) -> None:
        timer = self._timers[entrant.index] = self._new_timer()
        if entrant.index in self._contest.no_graph:
            timer.do_without_graph()
        steps = entrant.steps
        timer.prepare(
            steps.call, warmup=steps.warmup, iters=self._contest.block_calls, restore=steps.restore, hurry=True
        )

    def _time(self, entrant: Entrant) -> Turn:
        began = perf_counter()
        timer, contest = self._timers[entrant.index], self._contest
        calls = calls_in_turn(timer.rough_us, contest.block_calls, contest.block_us)
        burst = timer.burst(min(calls, max(contest.block_calls, MOST_CALLS)))
        restore = entrant.steps.restore
        if restore is not None:
            restore()
        return Turn(median(burst.samples_us), burst.calls, timer.name, timer.flags, perf_counter() - began)
