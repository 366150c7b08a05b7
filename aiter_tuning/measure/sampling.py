"""Warm-up and timed calls of one candidate: how many to a reading, and when to stop.

::

    warm-up calls ──▶ readings ──▶ decide (statistics) ──▶ Sampled: us, calls, censored
                        ▲  one call each, or a batch of short ones; inputs restored before each if written

Without a stop rule the number of calls is exactly the one asked for. Calls shorter than the clock can resolve share a
reading; the division into readings never changes how many there are. A burst timer, as GPUs have, gives many samples at
once and rounds calls up to whole samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from aiter_tuning.measure.statistics import StopRule, Verdict, decide, lower_bound, median
from aiter_tuning.measure.timer import BurstTimer, Call, Timer

SHORTEST_READING_US = 20.0
"""A reading spans at least so long where it can: reading the clock and waiting for the device cost up to 0.2 us."""
WANTED_READINGS = 10
"""Batches stay small enough for so many readings, so that a median can ignore a disturbed one."""
BURST_US = 1000.0
"""A burst under a stop rule lasts about so long: collecting what it gave costs as much again or more."""
FEWEST_IN_BURST = 5
"""Samples that a lower bound needs before it can condemn."""
MOST_IN_BURST = 32
MOST_CALLS_IN_BURST = 256
"""Without a rule. Keeps the queue of launches, and the records of them, short of what drivers hold."""


class Sampled(NamedTuple):
    """What timing a candidate gave."""

    us: float
    """Median of the readings; of a censored candidate the lower bound that condemned it."""
    calls: int
    """Timed calls that ``us`` rests on."""
    censored: bool = False

    @property
    def is_credible(self) -> bool:
        """A latency is finite and above zero; anything else was a clock's mistake."""
        return math.isfinite(self.us) and self.us > 0


def sample(
    timer: Timer,
    call: Call,
    *,
    warmup: int,
    iters: int,
    restore: Callable[[], None] | None = None,
    rule: StopRule | None = None,
    leader_us: float = math.inf,
) -> Sampled:
    """Times ``call``: ``warmup`` calls that do not count, then ``iters`` that do, or fewer as ``rule`` says.

    Args:
        timer: the clock.
        call: the candidate.
        warmup: calls before the timed ones.
        iters: timed calls, 1 or more.
        restore: puts the inputs back before each single call, outside the readings.
        rule: when to stop early; None: never.
        leader_us: fastest correct candidate so far.
    """
    batch = 1
    if rule is not None:
        condemned = _warm_up_under(rule, timer, call, warmup, restore, leader_us)
        if condemned is not None:
            return condemned
    elif restore is not None:
        for _ in range(warmup):
            restore()
            timer.read(call, 1)
    elif warmup:
        batch = _batch(timer.read(call, warmup), iters)

    readings: list[float] = []
    remaining, spent_us, next_check = iters, 0.0, 1
    while remaining:
        calls = min(batch, remaining)
        if restore is not None:
            restore()
        us = timer.read(call, calls)
        readings.append(us)
        remaining -= calls
        if restore is None and us * batch < SHORTEST_READING_US:
            batch = max(batch, _batch(us, iters))
        if rule is None:
            continue
        spent_us += us * calls
        count = len(readings)
        if count >= next_check:
            verdict = decide(readings, spent_us / 1000.0, leader_us, rule)
            if verdict is Verdict.censor:
                return Sampled(lower_bound(readings, rule.censor_confidence), iters - remaining, censored=True)
            if verdict is Verdict.enough:
                break
            # Deciding sorts all readings; at growing distances it stays a fixed share of the work.
            next_check = count + max(1, count // 8)
    return Sampled(median(readings), iters - remaining)


def sample_in_bursts(
    timer: BurstTimer,
    call: Call,
    *,
    warmup: int,
    iters: int,
    restore: Callable[[], None] | None = None,
    rule: StopRule | None = None,
    leader_us: float = math.inf,
) -> Sampled:
    """The same as :func:`sample` with a timer that gives many samples at once.

    Under a rule the milliseconds that have to pass are those from the first burst on, collecting included: it is by
    spreading over them that samples see the noise between windows.
    """
    hopeless_us = math.inf if rule is None else rule.floor_factor * leader_us
    timer.prepare(call, warmup=warmup, iters=iters, restore=restore, hurry=rule is not None, hopeless_us=hopeless_us)
    if timer.floor_us > hopeless_us:
        return Sampled(timer.floor_us, warmup, censored=True)
    samples: list[float] = []
    made, us = 0, timer.rough_us
    began = perf_counter()
    while made < iters:
        burst = timer.burst(_calls_in_burst(us, timer.calls_per_sample, len(samples), iters - made, rule))
        if burst.anew:
            samples, made = [], 0
        samples.extend(burst.samples_us)
        made += burst.calls
        us = median(samples)
        if rule is None:
            continue
        verdict = decide(samples, (perf_counter() - began) * 1000.0, leader_us, rule)
        if verdict is Verdict.censor:
            return Sampled(lower_bound(samples, rule.censor_confidence), made, censored=True)
        if verdict is Verdict.enough:
            break
    return Sampled(median(samples), made)


def _calls_in_burst(us: float, calls_per_sample: int, have: int, left: int, rule: StopRule | None) -> int:
    if rule is None:
        return min(left, MOST_CALLS_IN_BURST)
    needed = FEWEST_IN_BURST if have < FEWEST_IN_BURST else rule.min_samples - have
    filling = math.ceil(BURST_US / (us * calls_per_sample)) if us > 0 else 1
    return min(left, max(1, needed, min(filling, MOST_IN_BURST)) * calls_per_sample)


def _warm_up_under(
    rule: StopRule, timer: Timer, call: Call, warmup: int, restore: Callable[[], None] | None, leader_us: float
) -> Sampled | None:
    """Warm-up calls one by one; a result only if they already show that the candidate is hopeless."""
    readings: list[float] = []
    for _ in range(warmup):
        if restore is not None:
            restore()
        readings.append(timer.read(call, 1))
        if decide(readings, 0.0, leader_us, rule, warming_up=True) is Verdict.censor:
            return Sampled(lower_bound(readings, rule.censor_confidence), len(readings), censored=True)
    return None


def _batch(us: float, iters: int) -> int:
    """Calls that fill the shortest reading, if each takes ``us``."""
    most = max(1, iters // WANTED_READINGS)
    if not us > 0:
        return most
    return min(most, max(1, math.ceil(SHORTEST_READING_US / us)))
