"""What the tuner tells about a run while it goes on; how that is shown is the business of ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiter_tuning.keys import Shape
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import LaneView
from aiter_tuning.tuner.family import Candidate
from aiter_tuning.tuner.outcome import ShapeOutcome
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.stale_rows import RowState


@dataclass(frozen=True)
class PlannedShape:
    """One shape, as it is about to be tuned."""

    label: str
    candidates: tuple[str, ...]
    """Those left to measure, in order; :class:`LaneView.index` counts in them."""
    resumed: int
    """Those on record already."""
    incumbent: str
    row: RowState = RowState.none
    stale: str = ""
    """Why the row's latency may not hold any more; empty if it has a fresh one or none."""
    shape: Shape = field(default_factory=dict)

    @classmethod
    def of(cls, plan: ShapePlan, left: Sequence[Candidate], resumed: int = 0) -> PlannedShape:
        """A plan of which these candidates are left."""
        row = plan.row_state
        stale = plan.published.stale if plan.published is not None and row is RowState.stale else ""
        names = tuple(candidate.name for candidate in left)
        return cls(plan.label, names, resumed, plan.incumbent, row, stale, plan.shape)


@dataclass(frozen=True)
class RunOverview:
    """The run, before its first candidate."""

    family: str
    device: str
    lanes: int
    shapes: tuple[PlannedShape, ...]
    """Numbered as in :class:`LaneView.group`; of a dry run in the order of :class:`RowState`."""
    already_tuned: int
    notes: tuple[str, ...] = ()
    """What a person should know about the files that were read."""
    already_stale: int = 0
    """How many of the rows of shapes that are tuned already are stale."""

    @property
    def candidates(self) -> int:
        return sum(len(shape.candidates) for shape in self.shapes)

    @property
    def stale(self) -> int:
        """Shapes to tune whose row is stale."""
        return sum(shape.row is RowState.stale for shape in self.shapes)


class Reporter(Protocol):
    """Called in the parent's loop: be quick, and raise only what should stop the run."""

    def note(self, text: str) -> None:
        """A line for a person: something was skipped, a worker died."""

    def run_started(self, overview: RunOverview) -> None: ...

    def candidate_measured(self, shape: int, candidate: int, measurement: Measurement) -> None: ...

    def candidate_printed(self, shape: int, candidate: int, text: str) -> None: ...

    def finals_began(self, shape: int, finalists: Sequence[str], blocks: int) -> None:
        """The shape's finalists are timed in turns; from now on :class:`LaneView` counts in them. ``blocks``: on
        record already."""

    def block_done(self, shape: int, block: int, entrants: int) -> None:
        """A block of the finals, by its number, and how many were timed in it."""

    def shape_ended(self, shape: int, outcome: ShapeOutcome) -> None: ...

    def tick(self, lanes: Sequence[LaneView]) -> None: ...

    def run_ended(self) -> None: ...


class Silent:
    """Reports nothing."""

    def note(self, text: str) -> None:
        pass

    def run_started(self, overview: RunOverview) -> None:
        pass

    def candidate_measured(self, shape: int, candidate: int, measurement: Measurement) -> None:
        pass

    def candidate_printed(self, shape: int, candidate: int, text: str) -> None:
        pass

    def finals_began(self, shape: int, finalists: Sequence[str], blocks: int) -> None:
        pass

    def block_done(self, shape: int, block: int, entrants: int) -> None:
        pass

    def shape_ended(self, shape: int, outcome: ShapeOutcome) -> None:
        pass

    def tick(self, lanes: Sequence[LaneView]) -> None:
        pass

    def run_ended(self) -> None:
        pass
