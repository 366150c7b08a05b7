"""Which candidate a shape's row names: a decision on values, without any I/O.

::

    measured candidates ─▶ correct ones ─▶ those within the tie band of the fastest ─▶ challenger
                                                                                          │ gate
                                                      what runs today (published or default) ─▶ verdict

Here from one latency each, as ``--finalists 0`` and a run that its budget cut short have them;
:mod:`~aiter_tuning.tuner.final_choice` decides from latencies that were taken side by side. What a decision is called
is settled in one place, :func:`conclude`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.finals_rule import TIE_BAND_PCT
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuning_policy import DEFAULT_PROMOTION, PROMOTE, GateDecision, PromotionPolicy, gate_against_incumbent


@dataclass(frozen=True)
class Today:
    """What serving runs for a shape before the run."""

    incumbent: str
    """The candidate that the published row names, else the default."""
    default: str
    row: str | None = None
    """The kernel in the published row; None: there is no row. One that the family does not know is no incumbent."""


@dataclass(frozen=True)
class Choice:
    """The decision on one shape."""

    winner: str | None
    """Name of the candidate that the shape's row is to name; None: no candidate is correct."""
    verdict: Verdict
    reason: str
    """For a person and for the evidence."""
    incumbent_us: float | None = None
    """The incumbent's latency beside the others; None where it has none that counts."""
    gate: GateDecision | None = None
    """The comparison with the incumbent; None where there was none."""

    @property
    def keeps_row(self) -> bool:
        """Whether a published row stays as it is."""
        return self.winner is None or self.verdict in (Verdict.retained, Verdict.ambiguous, Verdict.not_served)


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
    today: Today,
    *,
    err_ratio: float,
    policy: PromotionPolicy = DEFAULT_PROMOTION,
) -> Choice:
    """Picks the row's candidate for one shape.

    The incumbent stays unless a correct candidate clears the gate; an incumbent that was not measured, or is wrong,
    protects nothing. Among candidates in the tie band of the fastest the incumbent wins, else the first in ``order``.

    Args:
        order: names of all candidates, in the family's own, fixed order.
        measurements: results by name; a name without one was not measured.
        today: what runs before.
        err_ratio: largest accepted fraction of wrong elements.
        policy: the bar of a promotion.
    """
    correct = [name for name in order if is_correct(measurements.get(name), err_ratio)]
    if not correct:
        return Choice(None, Verdict.failed, "no correct candidate")
    fastest = min(measurements[name].us for name in correct)
    tied = [name for name in correct if measurements[name].us <= fastest * (1 + TIE_BAND_PCT / 100)]
    current = measurements.get(today.incumbent)
    if today.incumbent in tied and current is not None:
        return conclude(today, today.incumbent, current, tie_text((current.us - fastest) * 100 / current.us))
    # A censored latency is a lower bound: the challenger's margin is at least what the gate sees.
    timed = current is not None and current.status is Status.ok and current.err_ratio <= err_ratio
    incumbent_us = current.us if current is not None and timed else None
    gate = gate_against_incumbent(incumbent_us, measurements[tied[0]].us, policy)
    wins = gate.outcome == PROMOTE or today.incumbent not in correct
    winner = tied[0] if wins else today.incumbent
    return conclude(today, winner, current, gate.reason, gate=gate, policy=policy, err_ratio=err_ratio)


def tie_text(gap_pct: float) -> str:
    """Why an incumbent stays that is as good as the fastest."""
    return "the incumbent is the fastest" if gap_pct <= 0 else f"the incumbent is within {gap_pct:.2f} % of the fastest"


def conclude(
    today: Today,
    winner: str,
    current: Measurement | None,
    reason: str,
    *,
    gate: GateDecision | None = None,
    policy: PromotionPolicy = DEFAULT_PROMOTION,
    err_ratio: float = 1.0,
) -> Choice:
    """What a decision is called, and how it is told.

    Args:
        today: what runs before.
        winner: the candidate that won.
        current: the incumbent's measurement; None: there is none.
        reason: how it came to that.
        gate: the comparison with the incumbent, where there was one.
        policy: the bar of a promotion.
        err_ratio: largest accepted fraction of wrong elements.
    """
    is_wrong = current is not None and (
        current.status is Status.mismatch or (current.status is Status.ok and current.err_ratio > err_ratio)
    )
    counts = current is not None and current.status is Status.ok and not is_wrong
    verdict = _verdict(today, winner, is_wrong=is_wrong, counts=counts)
    doubtful = (
        gate is not None
        and gate.margin_pct is not None
        and policy.min_improvement_pct <= gate.margin_pct < gate.bar_pct
    )
    if doubtful and verdict in (Verdict.retained, Verdict.first_row):
        verdict = Verdict.ambiguous
    if verdict is Verdict.correctness_fix:
        reason = f"correctness fix: {today.incumbent}, which runs today, is wrong"
    elif verdict is Verdict.incumbent_absent:
        failure = "was not measured" if current is None else f"failed ({current.status})"
        reason = f"improvement unverified: {today.incumbent}, which runs today, {failure}"
    elif verdict is Verdict.default_reclaimed and today.row != today.incumbent:
        reason = (
            f"the row named {today.row}, which {today.default} replaces since the family does not know it; {reason}"
        )
    elif verdict is Verdict.default_reclaimed:
        reason = f"the default is better than what its row names: {reason}"
    return Choice(winner, verdict, reason, current.us if current is not None and counts else None, gate)


def _verdict(today: Today, winner: str, *, is_wrong: bool, counts: bool) -> Verdict:
    if winner == today.incumbent:
        if today.row is None:
            return Verdict.first_row
        return Verdict.retained if today.row == today.incumbent else Verdict.default_reclaimed
    if is_wrong:
        return Verdict.correctness_fix
    if not counts:
        return Verdict.incumbent_absent
    return Verdict.default_reclaimed if winner == today.default and today.row is not None else Verdict.promoted
