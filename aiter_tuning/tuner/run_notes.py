"""What a person should know of a run as a whole, a sentence each: about its shapes at first, about its end at last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiter_tuning.pool.watcher import RunEnd, RunOutcome
from aiter_tuning.quantities import counted
from aiter_tuning.status import Status
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.outcome import ShapeOutcome, Verdict
from aiter_tuning.tuner.plan import ShapePlan


def notes_on_shapes(family: Family, plans: Sequence[ShapePlan]) -> list[str]:
    """About the shapes that a run is to tune."""
    texts = (gone_text(family, plans), bare_text(family, [plan.label for plan in plans if not plan.lists_any]))
    return [text for text in texts if text is not None]


def gone_text(family: Family, plans: Sequence[ShapePlan]) -> str | None:
    """Rows that serving passes over, since the family does not know their kernels."""
    gone = [plan for plan in plans if plan.published is not None and not plan.has_row]
    if not gone:
        return None
    rows = f"{counted(len(gone), 'row')} {'names a kernel' if len(gone) == 1 else 'name kernels'}"
    first = gone[0]
    return (
        f"{rows} that {family.name} does not know; serving runs the default there, and they are replaced: "
        f"{first.today.row} for {first.label}" + (" and others" if len(gone) > 1 else "")
    )


def bare_text(family: Family, labels: Sequence[str]) -> str | None:
    """Shapes for which the family lists nothing to try."""
    if not labels:
        return None
    shapes = counted(len(labels), "shape")
    told = f"candidates() of {family.name} gives none for {shapes}, where only what serves today is measured"
    return f"{told}: {labels[0]}" + (" and others" if len(labels) > 1 else "")


def advice_at_the_end(outcome: RunOutcome, shapes: Iterable[ShapeOutcome]) -> str:
    """What a person should know about the end of a run, and do next; empty if nothing."""
    shapes = tuple(shapes)
    incomplete = sum(shape.verdict is Verdict.incomplete for shape in shapes)
    if outcome.end is RunEnd.budget and incomplete and all(shape.counts.keys() <= {Status.not_run} for shape in shapes):
        return "the budget was used up before a candidate was measured: a run takes some seconds to start, give it more"
    left = f"{counted(incomplete, 'shape')} incomplete; run the same command again to go on"
    if outcome.end is RunEnd.no_lanes:
        return f"{outcome.reason}; {left}"
    if outcome.end is RunEnd.interrupted:
        return f"interrupted: {left}"
    if outcome.end is RunEnd.budget:
        return f"the budget is used up: {left}" if incomplete else ""
    return left if incomplete else ""
