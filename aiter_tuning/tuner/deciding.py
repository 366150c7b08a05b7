"""The decision on a shape, from all that is known of it: a function of values, without any I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from aiter_tuning.contest import Block
from aiter_tuning.measure.statistics import median
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.before_after import BeforeAfter
from aiter_tuning.tuner.choice import Choice, choose
from aiter_tuning.tuner.final_choice import choose_finalist
from aiter_tuning.tuner.finals import FinalsSettings
from aiter_tuning.tuner.outcome import ShapeOutcome, Verdict
from aiter_tuning.tuner.paired import timed_in
from aiter_tuning.tuner.shape_contest import ShapeContest
from aiter_tuning.tuner.shape_run import ShapeRun


@dataclass(frozen=True)
class Decision:
    """What was decided and from what."""

    choice: Choice
    verdict: Verdict
    reason: str
    measurements: Mapping[str, Measurement]
    """By candidate: finalists with their latency in the finals, all others with that of the screening."""
    blocks: tuple[Block, ...]
    """Of the finals, if they decided."""
    finalists: tuple[str, ...]
    """By their index in the blocks."""
    is_complete: bool
    """Nothing was left to measure."""
    served: BeforeAfter | None = None
    """What serving runs before and after, where that was compared."""
    confirmed: BeforeAfter | None = None
    """The incumbent and the challenger in another process, where somebody was promoted."""

    @property
    def publishable(self) -> bool:
        """Whether there is a row to write, if it is complete or may be incomplete."""
        return self.choice.winner is not None


def decide(run: ShapeRun, settings: FinalsSettings) -> Decision:
    """Chooses for one shape from the results that it has."""
    plan, finals, missing = run.plan, run.finals, run.missing
    measurements = dict(run.results)
    blocks: tuple[Block, ...] = ()
    if finals is not None and (finals.is_over or len(finals.blocks) >= settings.rounds):
        together = _together(finals, run.results)
        measurements |= together
        blocks = tuple(finals.blocks)
        choice = choose_finalist(
            finals.names,
            together,
            blocks,
            plan.today,
            finals.rule,
            err_ratio=settings.err_ratio,
            policy=settings.policy,
        )
    else:
        choice = choose(plan.names, measurements, plan.today, err_ratio=settings.err_ratio, policy=settings.policy)
    if missing:
        reason = f"{len(missing)} of {len(plan.names)} candidates not run"
    elif finals is not None and not finals.is_over:
        reason = f"the finals of {len(finals.names)} are not over, after {len(finals.blocks)} blocks"
    else:
        reason = ""
    return Decision(
        choice=choice,
        verdict=Verdict.incomplete if reason else choice.verdict,
        reason=reason or choice.reason,
        measurements=measurements,
        blocks=blocks,
        finalists=finals.names if finals is not None and blocks else (),
        is_complete=not reason,
    )


def _together(finals: ShapeContest, screened: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """What the finals ended with; for those that have no verdict yet, what their blocks say so far."""
    together = {}
    for index, name in enumerate(finals.names):
        result = finals.results.get(name)
        if result is None or result.status is Status.not_run:
            timed = [us for block in finals.blocks if (us := timed_in(block).get(index)) is not None]
            result = replace(screened[name], us=median(timed), censored=not timed, samples=len(timed))
        together[name] = result
    return together


def outcome_of(run: ShapeRun, decision: Decision, *, published: bool, proposed: bool) -> ShapeOutcome:
    """A decision for reports."""
    plan, choice, measurements = run.plan, decision.choice, decision.measurements
    default = measurements.get(plan.default)
    counts: Counter[Status] = Counter(measurement.status for measurement in measurements.values())
    counts[Status.not_run] += len(run.missing)
    gate = choice.gate
    return ShapeOutcome(
        label=plan.label,
        shape=plan.shape,
        verdict=decision.verdict,
        reason=decision.reason,
        winner=choice.winner,
        us=measurements[choice.winner].us if choice.winner is not None else None,
        default=plan.default,
        default_us=default.us if default is not None and default.status is Status.ok else None,
        incumbent=plan.incumbent,
        incumbent_us=choice.incumbent_us,
        margin_pct=None if gate is None else gate.margin_pct,
        bar_pct=None if gate is None else gate.bar_pct,
        noise_pct=None if gate is None else gate.noise_pct,
        blocks=len(decision.blocks),
        counts={status: count for status, count in counts.items() if count},
        resumed=run.resumed,
        published=published,
        proposed=proposed,
        was_untuned=plan.published is None,
        served=decision.served,
    )
