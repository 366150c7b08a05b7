"""What samples say: the latency, how sure it is, and whether more of them are worth their time.

Pure functions of numbers. Kernel timings have a hard floor and a long tail, so nothing here assumes a normal
distribution: the latency is the median, its standard error comes from the median absolute deviation, and the lower
bound that may condemn a candidate is an order statistic. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

# Standard deviation of a normal variable over its MAD, and standard error of a median over that of a mean.
_SIGMA_PER_MAD = 1.4826
_MEDIAN_PER_MEAN = 1.2533
_EXACT_RANKS = 200


class Verdict(Enum):
    """What to do after a reading."""

    go_on = "go on"
    enough = "enough"
    """The standard error is small enough."""
    censor = "censor"
    """Hopeless: the candidate is far behind the leader, whatever its exact latency is."""


@dataclass(frozen=True)
class StopRule:
    """When a tuner stops sampling before ``iters`` calls."""

    target_se_pct: float = 0.5
    """Enough when the standard error of the latency is at most this, in percent of it."""
    min_samples: int = 10
    """Readings before ``enough``, and the most that a candidate already known to be wrong gets."""
    min_ms: float = 2.0
    """Milliseconds of readings before ``enough``: noise between windows is larger than inside a short one."""
    censor_factor: float = 1.5
    """Hopeless when the lower bound is beyond the leader by this factor. Wide, because leader and candidate were not
    timed side by side: a clock that drops by a quarter in between must not condemn the true best."""
    censor_confidence: float = 0.95
    """Confidence of the lower bound; 0.95 needs five readings."""
    warmup_factor: float = 4.0
    """The same while warming up, where calls may be slow for reasons that pass."""
    floor_factor: float = 2.0
    """The same for the fastest of a GPU's warm-up calls, launching taken off."""

    def __post_init__(self) -> None:
        if self.target_se_pct < 0 or self.min_ms < 0:
            raise ValueError(f"target_se_pct and min_ms must be 0 or more: {self}")
        if self.min_samples < 2:
            raise ValueError(f"min_samples must be 2 or more, not {self.min_samples}: one reading has no spread")
        if self.censor_factor <= 1 or self.warmup_factor < self.censor_factor:
            raise ValueError(f"expected 1 < censor_factor <= warmup_factor: {self}")
        if not 0.5 < self.censor_confidence < 1:
            raise ValueError(f"censor_confidence must lie between 0.5 and 1, not {self.censor_confidence}")


def median(samples: Sequence[float]) -> float:
    """The middle sample, or the mean of the two in the middle; NaN of none."""
    ordered = sorted(samples)
    if not ordered:
        return math.nan
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def deviation(samples: Sequence[float], centre: float) -> float:
    """Standard deviation from the median absolute deviation, which some far-off samples do not change."""
    return _SIGMA_PER_MAD * median([abs(sample - centre) for sample in samples])


def standard_error(samples: Sequence[float], centre: float | None = None) -> float:
    """Standard error of the median, from the median absolute deviation; inf of fewer than two samples.

    Robust: one preempted call among ten does not make a steady candidate look noisy.
    """
    if len(samples) < 2:
        return math.inf
    middle = median(samples) if centre is None else centre
    return _MEDIAN_PER_MEAN * deviation(samples, middle) / math.sqrt(len(samples))


@lru_cache(maxsize=1024)
def _bound_rank(count: int, confidence: float) -> int:
    """How many of the smallest of ``count`` samples are needed to bound the median from below; 0: it can't be done.

    The k-th smallest lies above the median only if fewer than k samples fell below it, which has the probability of
    fewer than k heads in ``count`` tosses.
    """
    if count > _EXACT_RANKS:
        from statistics import NormalDist  # not worth its import before there are so many samples

        return max(0, math.floor(count / 2 - NormalDist().inv_cdf(confidence) * math.sqrt(count) / 2))
    rank, heads, allowed = 0, 0.0, 1.0 - confidence
    while rank < count:
        heads += math.comb(count, rank) * 0.5**count
        if heads > allowed:
            break
        rank += 1
    return rank


def lower_bound(samples: Sequence[float], confidence: float) -> float:
    """A latency that the true median exceeds with at least ``confidence``, whatever the distribution; -inf if unknown.

    An order statistic: of 5 to 7 samples, at 95 %, the smallest.
    """
    rank = _bound_rank(len(samples), confidence)
    return sorted(samples)[rank - 1] if rank else -math.inf


def decide(
    samples: Sequence[float], spent_ms: float, leader_us: float, rule: StopRule, *, warming_up: bool = False
) -> Verdict:
    """Whether to go on after these readings.

    Args:
        samples: microseconds a call, one for each reading so far.
        spent_ms: milliseconds spent in them.
        leader_us: the fastest correct candidate so far on this lane and shape; inf where there is none.
        rule: the thresholds.
        warming_up: the samples are warm-up calls; they can only condemn.
    """
    factor = rule.warmup_factor if warming_up else rule.censor_factor
    if lower_bound(samples, rule.censor_confidence) > factor * leader_us:
        return Verdict.censor
    if warming_up or len(samples) < rule.min_samples or spent_ms < rule.min_ms:
        return Verdict.go_on
    middle = median(samples)
    if standard_error(samples, middle) * 100.0 <= rule.target_se_pct * middle:
        return Verdict.enough
    return Verdict.go_on


_WIDE = 2.0
_LAUNCH_NOISE_US = 3.0
_LAUNCHING_SHARE = 0.8
_LEFT_US = 200.0


def is_launch_bound(device_us: float, *, event_us: float = 0.0, launching_us: float = 0.0) -> bool:
    """Whether the host takes longer to launch a call than the device to run it.

    Args:
        device_us: the call's latency, as the candidate's timer reads it.
        event_us: between events around a call outside a graph, where ``device_us`` is free of launching.
        launching_us: host time to launch a call, where ``device_us`` is itself between such events: a device that is
            never waiting falls behind the host.
    """
    wide = event_us > _WIDE * device_us and event_us - device_us > _LAUNCH_NOISE_US
    return wide or launching_us > _LAUNCHING_SHARE * device_us


def is_still_running(left_us: float, timed_us: float) -> bool:
    """Whether the device went on for too long after the timed stream was done for that to be the wait itself.

    Args:
        left_us: from the end of the timed stream's work to the end of all work.
        timed_us: what that work took.
    """
    return left_us > _LEFT_US + timed_us / 2
