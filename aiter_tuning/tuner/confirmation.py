"""Whether a challenger is faster in another process too: the review of a decision by its own candidates.

::

    promoted: 5.6 % in the finals ─▶ fresh worker: incumbent and challenger in turns ─▶ 5.1 %: promoted, by the lesser
                                                                                       2.5 %: ambiguous, the row stays

Both processes have to see the bar reached. What is told as the margin is the lesser of the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aiter_tuning.tables.checkpoint_row import CONFIRMATION
from aiter_tuning.task import Group
from aiter_tuning.tuner.before_after import BeforeAfter
from aiter_tuning.tuner.choice import Choice, Today, conclude
from aiter_tuning.tuner.deciding import Decision
from aiter_tuning.tuner.finals import FinalsSettings
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.review import VERIFYING_CALLS, NewRow
from aiter_tuning.tuner.shape_contest import Contests, ShapeContest, paired_rule
from aiter_tuning.tuner.sides import sides_of
from aiter_tuning.tuning_policy import PROMOTE, PromotionPolicy


class Confirmation:
    """Confirms what finals promoted; a :class:`~aiter_tuning.tuner.review.Review`.

    Args:
        contests: makes them.
        settings: the bar and the number of blocks.
    """

    unfinished = "not confirmed in another process yet"

    def __init__(self, contests: Contests, settings: FinalsSettings) -> None:
        self._contests = contests
        self._settings = settings

    def plan(self, plan: ShapePlan, decision: Decision, fingerprints: Mapping[str, str]) -> ShapeContest | None:
        """The contest of incumbent and challenger; None if nobody was promoted by blocks of finals."""
        winner = decision.choice.winner
        if winner is None or not decision.is_complete or not _was_promoted(plan.today, decision):
            return None
        names, settings = (plan.incumbent, winner), self._settings
        return self._contests.on_record(
            plan.shape,
            names,
            {name: decision.measurements[name].us for name in names},
            fingerprints,
            lambda ordered, running_us: paired_rule(
                ordered, running_us, plan.incumbent, settings.rounds, settings.policy.min_improvement_pct
            ),
            phase=CONFIRMATION,
            verifying_calls=VERIFYING_CALLS,
        )

    def is_fresh(self, contest: ShapeContest) -> bool:
        """Always: that is what it is for."""
        return True

    def group(self, plan: ShapePlan, decision: Decision, contest: ShapeContest, new_row: NewRow) -> Group:
        """What a lane carries out."""
        return replace(self._contests.group_of_candidates(plan, contest), fresh=True)

    def judge(self, plan: ShapePlan, decision: Decision, contest: ShapeContest) -> Decision:
        """The decision now that both processes have been heard."""
        winner = decision.choice.winner or ""
        policy = self._settings.policy
        sides = sides_of(contest, (plan.incumbent, plan.incumbent), (winner, winner), policy)
        choice = confirmed_choice(decision, plan.today, sides, err_ratio=self._settings.err_ratio, policy=policy)
        return replace(decision, choice=choice, verdict=choice.verdict, reason=choice.reason, confirmed=sides)


def _was_promoted(today: Today, decision: Decision) -> bool:
    choice = decision.choice
    passed = choice.gate is not None and choice.gate.outcome == PROMOTE and choice.gate.margin_pct is not None
    return bool(decision.blocks) and passed and choice.winner != today.incumbent


def confirmed_choice(
    decision: Decision, today: Today, sides: BeforeAfter, *, err_ratio: float, policy: PromotionPolicy
) -> Choice:
    """The choice after a contest of incumbent and challenger in another process.

    Args:
        decision: of the finals, which promoted.
        today: what runs before.
        sides: the incumbent and the challenger there.
        err_ratio: largest accepted fraction of wrong elements.
        policy: the bar.
    """
    choice, before, after, again = decision.choice, sides.before, sides.after, sides.gate
    assert choice.winner is not None and choice.gate is not None and after is not None
    current = decision.measurements.get(today.incumbent)
    if not after.is_right:
        reason = f"{choice.winner} failed in another process, {after.failure}"
        return conclude(today, today.incumbent, current, reason, policy=policy, err_ratio=err_ratio)
    if not before.is_right:
        return conclude(today, choice.winner, before.measurement, choice.reason, policy=policy, err_ratio=err_ratio)
    if again is None:
        return choice
    if again.outcome == PROMOTE:
        lesser = min(choice.gate, again, key=lambda gate: gate.margin_pct or 0.0)
        return replace(choice, gate=lesser, reason=f"{choice.reason}; in another process {again.reason}")
    reason = f"{choice.winner} {choice.gate.reason}, but in another process {again.reason}"
    kept = conclude(today, today.incumbent, current, reason, gate=again, policy=policy, err_ratio=err_ratio)
    doubtful = kept.verdict in (Verdict.retained, Verdict.first_row)
    return replace(kept, verdict=Verdict.ambiguous) if doubtful else kept
