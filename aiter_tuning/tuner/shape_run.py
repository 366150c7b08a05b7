"""One shape while it is being tuned: what is left, what came of it, where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aiter_tuning.measurement import Measurement
from aiter_tuning.tuner.family import Candidate
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.shape_contest import ShapeContest

if TYPE_CHECKING:
    from aiter_tuning.tuner.deciding import Decision


@dataclass
class ShapeRun:
    """See the module."""

    plan: ShapePlan
    fingerprints: Mapping[str, str]
    todo: tuple[Candidate, ...]
    """What the group of its screening holds; its indices count in here."""
    attempts: Mapping[str, int]
    """Attempts on record from earlier runs."""
    results: dict[str, Measurement]
    """Of the screening, by candidate; starts with what is on record."""
    resumed: int
    convicted: Mapping[str, Measurement] = field(default_factory=dict)
    """Verdicts that follow from the record and are still to be put there."""
    finals: ShapeContest | None = None
    finals_planned: bool = False
    """Whether it is known what ``finals`` is: None then means that there is nothing to compare."""
    decision: Decision | None = None
    """Of the finals, once they are over."""
    review: ShapeContest | None = None
    """The contest that looks at it again, if it changes anything."""
    refuted: dict[str, Measurement] = field(default_factory=dict)
    """Who won the finals and failed in the review."""
    began: str = ""
    """When its first candidate was measured, as evidence has it; empty: none was yet."""
    since: float = 0.0
    """The same on the monotonic clock."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Candidates that are left to screen."""
        return tuple(name for name in self.plan.names if name not in self.results)
