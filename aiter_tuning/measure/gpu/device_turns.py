"""Turns on a GPU: every entrant's timer stays open with its graph, and a block is one session of activity records.

::

    start ─▶ c: launch, wait ─▶ a: launch, wait ─▶ b: launch, wait ─▶ collect once ─▶ records in the order of the turns
                                                                                       c c c c │ a a │ b b b

One session for all: starting and collecting cost more than most turns. Each entrant's work is waited for
before the next begins: whoever hangs or breaks the device is the one whose turn it is. Whose a record is, is found by
counting: how many an entrant leaves for each launch is known from getting ready, and a sum that does not come out means
that some were lost.

All entrants are timed alike. They share copies of their inputs, as far as their inputs are the same and nobody writes
them; if one cannot be timed with a cold cache, with records or with a graph where the others' events would be read
around graphs, none is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch

from aiter_tuning.contest import Contest
from aiter_tuning.measure.gpu.activity import ActivityLostError, ActivitySource
from aiter_tuning.measure.gpu.device_timer import DeviceTimer
from aiter_tuning.measure.gpu.ring import MOST_COPIES, Ring, RingPlan, SharedRing, bytes_of
from aiter_tuning.measure.statistics import median
from aiter_tuning.measure.turns import Around, Entrant, Turn, calls_in_turn, taken
from aiter_tuning.status import is_device_fault

MOST_RECORDED_CALLS = 16
"""In a turn, but for what a contest asks for at least: another block tells more than a longer one."""
MOST_CALLS = 256
"""The same where events are read."""
_RECORDED_COPIES = MOST_RECORDED_CALLS
"""A pass over the ring is the least that can be launched, so that a large ring makes long turns; where so many copies
do not fill the cache it is overwritten before each launch."""
_SESSIONS = 2
"""How often a block is timed again because records were lost, before events are read instead."""
_HOT = RingPlan(1, 0, False)


class _Launched(NamedTuple):
    entrant: Entrant
    launches: int
    seconds: float


class DeviceTurns:
    """See :class:`~aiter_tuning.measure.turns.Turns`."""

    def __init__(self, new_timer: Callable[[], DeviceTimer], contest: Contest) -> None:
        """Args: what makes a timer; how many calls make a turn."""
        self.unclean: tuple[int, str] | None = None
        self._new_timer = new_timer
        self._contest = contest
        self._timers: dict[int, DeviceTimer] = {}
        self._us: dict[int, float] = {}
        """Latency of each, roughly."""

    def prepare(self, entrants: Sequence[Entrant], turn: Around) -> Mapping[int, BaseException]:
        failures: dict[int, BaseException] = {}
        self._timers = {entrant.index: self._new_timer() for entrant in entrants}
        rings = self._rings(entrants)
        for entrant in entrants:
            failure = taken(entrant, turn, partial(self._prepare, entrant, rings[entrant.index]))
            timer = self._timers[entrant.index]
            if failure is not None:
                failures[entrant.index] = failure
                self._timers.pop(entrant.index).close()
            if timer.unclean:
                self.unclean = entrant.index, timer.unclean
            if self.unclean is not None or (failure is not None and is_device_fault(failure)):
                return failures
        self._make_alike()
        return failures

    def block(self, order: Sequence[Entrant], turn: Around) -> Mapping[int, Turn | BaseException]:
        outcomes: dict[int, Turn | BaseException] = {}
        lost = 0
        while left := [entrant for entrant in order if entrant.index not in outcomes]:
            source = self._common_source(left)
            if source is None:
                turns = self._one_by_one(left, turn)
                if self._make_alike():  # some of them were read by another clock than the others
                    turns = {index: turn for index, turn in turns.items() if isinstance(turn, BaseException)}
                outcomes.update(turns)
            else:
                try:
                    outcomes.update(self._together(source, left, turn))
                except ActivityLostError:
                    lost += 1
                    if lost >= _SESSIONS:
                        for timer in self._timers.values():
                            timer.read_events_from_now_on()
                        self._make_alike()
            if any(isinstance(outcome, BaseException) and is_device_fault(outcome) for outcome in outcomes.values()):
                break
        return outcomes

    def close(self) -> None:
        for timer in self._timers.values():
            timer.close()
        self._timers.clear()

    # Getting ready

    def _rings(self, entrants: Sequence[Entrant]) -> Mapping[int, Ring]:
        """The copies for each; as many as there is memory for, the same for all."""
        readers = [entrant for entrant in entrants if entrant.steps.restore is None]
        calls = [entrant.steps.call for entrant in readers]
        timer = next(iter(self._timers.values()))
        plans = [_HOT]
        if timer.launches.cold_cache:
            timer.gpu.synchronize()  # the default stream's work is seen by the timed one from here on
            most = MOST_COPIES if timer.source is None else max(_RECORDED_COPIES, self._contest.block_calls)
            smallest = min((bytes_of(call) for call in calls), default=0)
            # What is restored before each call has just passed through the cache: only overwriting that helps.
            flush = timer.launches.plan_ring(0, most=1, copy_bytes=0)
            ring = timer.launches.plan_ring(smallest, most=most, copy_bytes=bytes_of(*calls))
            plans = [ring, flush, _HOT] if len(readers) == len(entrants) or (ring.cold and flush.cold) else [_HOT]
        else:
            flush = _HOT
        for plan in plans:
            try:
                with timer.gpu.on_stream():
                    shared = SharedRing(calls, plan)
                    if plan.flush_bytes or (plan.cold and len(readers) < len(entrants)):
                        timer.gpu.overwrite(max(plan.flush_bytes, flush.flush_bytes))
            except torch.OutOfMemoryError:  # memory is in pieces, or somebody else's
                continue
            rings = {entrant.index: ring for entrant, ring in zip(readers, shared.rings, strict=True)}
            alone = flush if plan.cold else _HOT
            return {e.index: rings.get(e.index) or Ring((e.steps.call,), alone) for e in entrants}
        raise AssertionError("a plan without copies needs no memory")

    def _prepare(self, entrant: Entrant, ring: Ring) -> None:
        timer, steps, contest = self._timers[entrant.index], entrant.steps, self._contest
        if entrant.index in contest.no_graph:
            timer.do_without_graph()
        calls = contest.block_calls
        timer.prepare(steps.call, warmup=steps.warmup, iters=calls, restore=steps.restore, hurry=True, ring=ring)
        if not timer.unclean:
            self._us[entrant.index] = median(timer.burst(calls).samples_us)
            if timer.source is not None:  # else what the next one does to get ready comes with its records
                timer.source.stop()
            self._put_back(entrant)

    def _make_alike(self) -> bool:
        """One that reads events makes all do so, and one without a graph then all do without. Whether any changed."""
        timers = self._timers.values()
        changed = False
        if any(timer.source is None for timer in timers):
            for timer in timers:
                if timer.source is not None:
                    changed = True
                    timer.read_events_from_now_on()
            if any(timer.launches.graph is None for timer in timers):
                for timer in timers:
                    changed = changed or timer.launches.graph is not None
                    timer.drop_graph()
        return changed

    # A block

    def _common_source(self, order: Sequence[Entrant]) -> ActivitySource | None:
        """Where all their records come from at once; None if each needs a session of its own.

        Putting inputs back between two turns leaves records that nobody counts.
        """
        sources = {id(self._timers[entrant.index].source) for entrant in order}
        if len(sources) > 1 or any(entrant.steps.restore is not None for entrant in order):
            return None
        return self._timers[order[0].index].source

    def _together(
        self, source: ActivitySource, order: Sequence[Entrant], turn: Around
    ) -> Mapping[int, Turn | BaseException]:
        """All turns in one session; one that raises ends it, and is all that is known then.

        Raises:
            ActivityLostError: records do not come out even.
        """
        self._timers[order[0].index].gpu.synchronize()
        source.start()
        launched: list[_Launched] = []
        for entrant in order:
            outcome = taken(entrant, turn, partial(self._launch, entrant))
            if isinstance(outcome, BaseException):
                source.stop()
                return {entrant.index: outcome}
            launched.append(outcome)
        records = sorted(source.collect())
        counts = [self._timers[one.entrant.index].records_per_launch * one.launches for one in launched]
        if sum(counts) != len(records):
            raise ActivityLostError(f"{len(records)} records of turns that leave {sum(counts)}")
        outcomes: dict[int, Turn | BaseException] = {}
        first = 0
        for (entrant, launches, seconds), count in zip(launched, counts, strict=True):
            timer = self._timers[entrant.index]
            try:
                samples = timer.samples_of(records[first : first + count], launches)
            except ActivityLostError:
                raise
            except Exception as error:  # nothing can be told of this one
                outcomes[entrant.index] = error
            else:
                outcomes[entrant.index] = self._turn(entrant, timer, samples, len(samples), seconds)
            first += count
        return outcomes

    def _launch(self, entrant: Entrant) -> _Launched:
        began = perf_counter()
        timer = self._timers[entrant.index]
        launches = self._launches(entrant, timer)
        timer.launches.make(launches)
        return _Launched(entrant, launches, perf_counter() - began)

    def _one_by_one(self, order: Sequence[Entrant], turn: Around) -> Mapping[int, Turn | BaseException]:
        outcomes: dict[int, Turn | BaseException] = {}
        for entrant in order:
            outcome = outcomes[entrant.index] = taken(entrant, turn, partial(self._alone, entrant))
            if isinstance(outcome, BaseException) and is_device_fault(outcome):
                break
        return outcomes

    def _alone(self, entrant: Entrant) -> Turn:
        began = perf_counter()
        timer = self._timers[entrant.index]
        burst = timer.burst(self._launches(entrant, timer) * timer.launches.calls_each)
        self._put_back(entrant)
        return self._turn(entrant, timer, burst.samples_us, burst.calls, perf_counter() - began)

    def _turn(self, entrant: Entrant, timer: DeviceTimer, samples: Sequence[float], calls: int, seconds: float) -> Turn:
        us = self._us[entrant.index] = median(samples)
        return Turn(us, calls, timer.name, timer.flags, seconds)

    def _launches(self, entrant: Entrant, timer: DeviceTimer) -> int:
        contest, each = self._contest, timer.launches.calls_each
        wanted = calls_in_turn(self._us[entrant.index], contest.block_calls, contest.block_us)
        most = MOST_CALLS if timer.source is None else MOST_RECORDED_CALLS
        return max(math.ceil(contest.block_calls / each), min(math.ceil(wanted / each), most // each))

    @staticmethod
    def _put_back(entrant: Entrant) -> None:
        """Whoever comes next may share its inputs."""
        restore = entrant.steps.restore
        if restore is not None:
            restore()
