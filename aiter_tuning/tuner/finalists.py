"""Who is timed again: a decision on the screening's results, without any I/O.

::

    screening ─▶ right and not censored ─▶ the fastest few ─┐
                 incumbent, default ────────────────────────┤
                 given up, and ahead of these all the same ─┤
                 right and starved of cores ─ a few ────────┴▶ finalists, in the family's order

Whoever had no cores to run on while it was timed may be the best although it looks hopeless. So may whoever was given
up beside a leader that is gone: it left the family before the run went on, or is wrong now that it was measured anew.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from aiter_tuning.measurement import STARVED, Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.choice import is_correct

HOPELESS = 1.5
"""Nobody this many times slower than the best of the screening is timed again for its own sake. As wide as a screening
stops at: its latencies are minutes apart, and a clock may have dropped in between."""


def pick_finalists(
    order: Sequence[str],
    measurements: Mapping[str, Measurement],
    *,
    incumbent: str,
    default: str,
    finalists: int,
    err_ratio: float,
) -> tuple[str, ...]:
    """Names of those who are to be timed side by side; none if there is nothing to compare.

    Args:
        order: names of all candidates, in the family's own, fixed order.
        measurements: results of the screening by name.
        incumbent: what runs today; it takes part if it is right, however slow.
        default: what serving uses unasked; so does it.
        finalists: how many others at most, and as many again of those that were starved; 0 or 1: nobody is timed again.
        err_ratio: largest accepted fraction of wrong elements.
    """
    if finalists < 2:
        return ()
    right = [name for name in order if is_correct(measurements.get(name), err_ratio)]
    best_us = min((measurements[name].us for name in right), default=math.inf)
    fast = [name for name in right if measurements[name].us <= HOPELESS * best_us]
    # Beside a leader that is still there nobody is given up below it.
    fast += [name for name in order if _bound(measurements.get(name), err_ratio) < best_us]
    fast.sort(key=lambda name: measurements[name].us)
    kept = [name for name in (incumbent, default) if _runs(measurements.get(name), err_ratio)]
    starved = [name for name in order if name not in fast[:finalists] and _starved(measurements.get(name), err_ratio)]
    starved.sort(key=lambda name: measurements[name].us)
    chosen = {*fast[:finalists], *kept, *starved[:finalists]}
    # Nobody was timed to the end where all were given up beside a leader that is gone: then even one is timed again.
    return tuple(name for name in order if name in chosen) if len(chosen) > 1 or not right else ()


def _starved(measurement: Measurement | None, err_ratio: float) -> bool:
    return measurement is not None and STARVED in measurement.flags and _runs(measurement, err_ratio)


def _bound(measurement: Measurement | None, err_ratio: float) -> float:
    """Above what the latency of one is that was given up; inf for all others."""
    if measurement is None or not measurement.censored or not _runs(measurement, err_ratio):
        return math.inf
    return measurement.us if measurement.us > 0 else math.inf


def _runs(measurement: Measurement | None, err_ratio: float) -> bool:
    """Whether it is right; a latency that is a lower bound only will do here."""
    return measurement is not None and measurement.status is Status.ok and measurement.err_ratio <= err_ratio
