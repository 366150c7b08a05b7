"""Which candidate a shape's row names: a decision on values, without any I/O.

::

    measured candidates ─▶ correct ones ─▶ those within the tie band of the fastest ─▶ challenger
                                                                                          │ gate
                                                            incumbent (published or default) ─▶ winner

Everything that compares times of candidates goes through here; whoever times finalists together calls
:func:`choose` with those times and with the noise floor of their comparison.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuning_policy import DEFAULT_PROMOTION, PROMOTE, GateDecision, PromotionPolicy, gate_against_incumbent

TIE_BAND_PCT = 1.0
"""Candidates within this of the fastest are equals, so that reruns agree on the winner."""


@dataclass(frozen=True)
class Choice:
    """The verdict on one shape."""

    winner: str | None
    """Name of the candidate that the shape's row names; None: no candidate is correct."""
    promoted: bool
    """Whether the winner is another than the incumbent."""
    incumbent_us: float | None
    """The incumbent's latency beside the others; None where it has none that counts."""
    gate: GateDecision | None
    """The comparison that decided; None where there was none."""
    reason: str
    """For a person and for the evidence."""


def is_correct(measurement: Measurement | None, err_ratio: float) -> bool:
    """Whether a measurement may stand in a tuned row: right, and really timed."""
    return (
        measurement is not None
        and measurement.status is Status.ok
        and not measurement.censored
        and measurement.err_ratio <= err_ratio
        and math.isfinite(measurement.us)
        and measurement.us > 0
    )


def choose(
    order: Sequence[str],
    measurements: Mapping[str, Measurement],
    incumbent: str | None,
    *,
    err_ratio: float,
    policy: PromotionPolicy = DEFAULT_PROMOTION,
    tie_band_pct: float = TIE_BAND_PCT,
    noise_pct: float | None = None,
) -> Choice:
    """Picks the row's candidate for one shape.

    The incumbent stays unless a correct candidate clears the gate; an incumbent that was not measured, or is wrong,
    protects nothing. Among candidates in the tie band of the fastest the incumbent wins, else the first in ``order``.

    Args:
        order: names of all candidates, in the family's own, fixed order.
        measurements: results by name; a name without one was not measured.
        incumbent: name of what runs today.
        err_ratio: largest accepted fraction of wrong elements.
        policy: the bar of a promotion.
        tie_band_pct: width of the tie band in percent.
        noise_pct: noise floor of this comparison in percent, where it is known.
    """
    correct = [name for name in order if is_correct(measurements.get(name), err_ratio)]
    if not correct:
        return Choice(None, False, None, None, "no correct candidate")
    fastest = min(measurements[name].us for name in correct)
    tied = [name for name in correct if measurements[name].us <= fastest * (1 + tie_band_pct / 100)]
    current = measurements.get(incumbent) if incumbent is not None else None
    if incumbent in tied and current is not None:
        gap = (current.us - fastest) * 100 / current.us
        reason = "the incumbent is the fastest" if gap == 0 else f"the incumbent is within {gap:.2f} % of the fastest"
        return Choice(incumbent, False, current.us, None, reason)
    challenger = tied[0]
    challenger_us = measurements[challenger].us
    if current is not None and current.status is Status.mismatch:
        return Choice(challenger, True, None, None, "correctness fix: the incumbent is wrong")
    # A censored latency is a lower bound: the challenger's margin is at least what the gate sees.
    timed = current is not None and current.status is Status.ok
    incumbent_us = current.us if current is not None and timed else None
    gate = gate_against_incumbent(incumbent_us, challenger_us, policy, noise_pct)
    if gate.outcome == PROMOTE or incumbent not in correct:
        return Choice(challenger, True, incumbent_us, gate, gate.reason)
    return Choice(incumbent, False, incumbent_us, gate, gate.reason)
