"""The verdict on a new row from what serving did under it, beside what it does today: a function of values.

::

    the finals' choice ─┐
    contest: before, after ─▶ after fails?  ─▶ not_served: no row, whatever the finals say
                              before wrong? ─▶ correctness_fix
                              before fails? ─▶ incumbent_absent, improvement unverified
                              margin ─ gate ─▶ as the finals say, or what runs today is retained

A row that is to speed something up has to clear the bar as served. One that only has to be there, because the shape has
none, or one that nobody can launch, must not be slower than what runs today.
"""

from __future__ import annotations

from dataclasses import replace

from aiter_tuning.status import Status
from aiter_tuning.tuner.before_after import BeforeAfter
from aiter_tuning.tuner.choice import Choice, Today, conclude
from aiter_tuning.tuner.deciding import Decision
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.shape_contest import ShapeContest
from aiter_tuning.tuner.sides import sides_of
from aiter_tuning.tuning_policy import DEFAULT_PROMOTION, PROMOTE, GateDecision, PromotionPolicy

BEFORE = "serving today"
"""What the side before is called among a contest's entrants."""


def after_name(kernel: str) -> str:
    """What the side after is called."""
    return f"serving {kernel}"


def served_of(
    comparison: ShapeContest, today: Today, winner: str, policy: PromotionPolicy = DEFAULT_PROMOTION
) -> BeforeAfter:
    """What a contest of both sides said.

    Args:
        comparison: its entrants are :data:`BEFORE` and, if a row is to change, :func:`after_name`.
        today: what runs before.
        winner: the kernel of the new row.
        policy: the bar.
    """
    after = (after_name(winner), winner) if len(comparison.names) > 1 else None
    return sides_of(comparison, (BEFORE, today.incumbent), after, policy)


def judge_served(
    decision: Decision,
    plan: ShapePlan,
    served: BeforeAfter,
    *,
    err_ratio: float,
    policy: PromotionPolicy = DEFAULT_PROMOTION,
) -> Decision:
    """The decision on a shape, now that it is known what serving makes of it.

    Args:
        decision: of the finals.
        plan: the shape.
        served: both sides.
        err_ratio: largest accepted fraction of wrong elements.
        policy: the bar.
    """
    choice = _choice(decision, plan.today, served, err_ratio, policy)
    return replace(decision, choice=choice, verdict=choice.verdict, reason=choice.reason, served=served)


def _choice(decision: Decision, today: Today, served: BeforeAfter, err_ratio: float, policy: PromotionPolicy) -> Choice:
    choice, before, after, gate = decision.choice, served.before, served.after, served.gate
    if after is None:
        if before.is_right:
            return choice
        return replace(choice, verdict=Verdict.not_served, reason=f"what serving runs today fails, {before.failure}")
    if not after.is_right:
        return _as_today(choice, today, f"{choice.winner} fails as serving runs it, {after.failure}")
    if before.measurement.status is Status.mismatch:
        reason = f"correctness fix: what serving runs today is wrong, {before.measurement.detail}"
        return replace(choice, verdict=Verdict.correctness_fix, reason=reason, gate=None)
    if gate is None:
        reason = f"improvement unverified: what serving runs today failed, {before.failure}"
        return replace(choice, verdict=Verdict.incumbent_absent, reason=reason, gate=None)
    if not _has_to_gain(choice, today):
        if gate.margin_pct is not None and gate.margin_pct <= -gate.bar_pct:
            return _as_today(choice, today, f"{choice.winner} is slower as serving runs it, {gate.reason}", gate)
        return replace(choice, gate=gate, reason=f"{choice.reason}; as served {gate.reason}")
    if gate.outcome == PROMOTE:
        return replace(choice, gate=gate, reason=f"as served {gate.reason}")
    current = decision.measurements.get(today.incumbent)
    reason = f"{choice.winner} as served {gate.reason}"
    return conclude(today, today.incumbent, current, reason, gate=gate, policy=policy, err_ratio=err_ratio)


def _has_to_gain(choice: Choice, today: Today) -> bool:
    """Whether the new row is there to be faster than what runs today."""
    is_live = today.row is not None and today.row == today.incumbent
    return choice.verdict is Verdict.promoted if today.row is None else is_live and choice.verdict in _GAINS


_GAINS = (Verdict.promoted, Verdict.default_reclaimed)


def _as_today(choice: Choice, today: Today, reason: str, gate: GateDecision | None = None) -> Choice:
    """No row is written: serving goes on as it does."""
    kept = today.incumbent if today.row is not None and today.row == today.incumbent else None
    return Choice(kept, Verdict.not_served, reason, choice.incumbent_us, gate)
