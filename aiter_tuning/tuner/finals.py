"""The finals of a shape: who of the screening is timed again, and by which rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aiter_tuning.measurement import Measurement
from aiter_tuning.tables.checkpoint_row import CONFIRMATION, FINALS
from aiter_tuning.task import Group
from aiter_tuning.tuner.finalists import pick_finalists
from aiter_tuning.tuner.finals_rule import FinalsRule
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.race_rule import RaceRule
from aiter_tuning.tuner.shape_contest import Contests, ShapeContest, most_blocks
from aiter_tuning.tuning_policy import DEFAULT_FINALISTS, DEFAULT_PROMOTION, DEFAULT_RACE, PromotionPolicy


@dataclass(frozen=True)
class FinalsSettings:
    """What a run was asked to do about finals."""

    strategy: Literal["finals", "race"] = "finals"
    finalists: int = DEFAULT_FINALISTS.finalists
    """Besides incumbent and default; below 2 nobody is timed again."""
    rounds: int = DEFAULT_FINALISTS.rounds
    """Blocks at least."""
    policy: PromotionPolicy = DEFAULT_PROMOTION
    delta_pct: float = DEFAULT_PROMOTION.min_improvement_pct
    """Of a race: candidates that differ by less are equals."""
    err_ratio: float = 0.05


class FinalsPlanner:
    """Makes the finals of shapes.

    Args:
        contests: makes them.
        settings: what was asked for.
    """

    def __init__(self, contests: Contests, settings: FinalsSettings) -> None:
        self._contests = contests
        self.settings = settings

    def plan(
        self, plan: ShapePlan, screened: Mapping[str, Measurement], fingerprints: Mapping[str, str]
    ) -> ShapeContest | None:
        """The finals of a shape whose screening is over; None if there is nothing to compare."""
        settings = self.settings
        names = pick_finalists(
            plan.names,
            screened,
            incumbent=plan.incumbent,
            default=plan.default,
            finalists=settings.finalists,
            err_ratio=settings.err_ratio,
        )
        if not names:
            return None
        return self._contests.on_record(
            plan.shape,
            names,
            {name: screened[name].us for name in names},
            fingerprints,
            lambda ordered, running_us: self._rule(plan, ordered, running_us),
            phase=FINALS,
        )

    def refuted(self, plan: ShapePlan, fingerprints: Mapping[str, str]) -> dict[str, Measurement]:
        """Who failed in a second process, as it is on record; what runs today is judged there by other rules."""
        failed = self._contests.failures_on_record(plan.shape, fingerprints, CONFIRMATION)
        return {name: verdict for name, verdict in failed.items() if name != plan.incumbent}

    def group(self, plan: ShapePlan, finals: ShapeContest) -> Group:
        """What a lane carries out."""
        return self._contests.group_of_candidates(plan, finals)

    def _rule(self, plan: ShapePlan, names: Sequence[str], running_us: Sequence[float]) -> FinalsRule | RaceRule:
        settings = self.settings
        kept = frozenset(names.index(name) for name in (plan.incumbent, plan.default) if name in names)
        most = max(settings.rounds, most_blocks(running_us))
        if settings.strategy == "race":
            most = max(settings.rounds, min(most, DEFAULT_RACE.max_blocks))
            return RaceRule(kept, settings.delta_pct, DEFAULT_RACE.alpha, settings.rounds, most)
        incumbent = names.index(plan.incumbent) if plan.incumbent in names else None
        return FinalsRule(incumbent, kept, settings.rounds, most, settings.policy.min_improvement_pct)
