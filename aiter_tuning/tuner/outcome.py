"""What became of each shape and of the run: the values that reports are made of."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.before_after import BeforeAfter


class ExitCode(IntEnum):
    """What the process says when it ends."""

    done = 0
    no_correct_candidate = 1
    """Or none that serving can run."""
    usage = 2
    interrupted = 3
    no_device = 4
    write_failed = 5


class Verdict(StrEnum):
    """What became of one shape."""

    promoted = "promoted"
    """A challenger beat the incumbent; the row names it."""
    retained = "retained"
    """The published row stays as it is."""
    ambiguous = "ambiguous"
    """The margin is above the bar and within the noise: what runs today stays."""
    first_row = "first_row"
    """Nothing beat the default, which had no row and gets one."""
    correctness_fix = "correctness_fix"
    """What runs today is wrong; the row names the best that is right."""
    incumbent_absent = "incumbent_absent"
    """What runs today could not be timed: the row names the best, improvement unverified."""
    default_reclaimed = "default_reclaimed"
    """The default is best while an old row overrides it; the row is replaced by the default's."""
    not_served = "not_served"
    """The new row fails, or is slower, as serving runs it, or what serving runs today does: no row is written."""
    failed = "failed"
    """No candidate is correct; no row."""
    incomplete = "incomplete"
    """Candidates are left to measure; a rerun goes on with them."""


@dataclass(frozen=True)
class FailureCause:
    """Candidates that failed alike, told by the first of them."""

    status: Status
    count: int
    detail: str
    shape: str
    candidate: str


@dataclass(frozen=True)
class ShapeOutcome:
    """One shape at the end of its group."""

    label: str
    shape: Mapping[str, Any]
    verdict: Verdict
    reason: str
    winner: str | None = None
    us: float | None = None
    default: str = ""
    default_us: float | None = None
    """None where the default was not measured, or failed."""
    counts: Mapping[Status, int] = field(default_factory=dict)
    resumed: int = 0
    """Candidates whose result was on record already."""
    published: bool = False
    """Whether a row was written."""
    proposed: bool = False
    """Whether a row would have been, had the run been allowed to (``--update_improved``)."""
    was_untuned: bool = False
    """Whether there was no row before."""
    served: BeforeAfter | None = None
    """What serving runs before and after; None: that was not compared."""
    incumbent: str = ""
    """What ran before: the published row's candidate, else the default."""
    incumbent_us: float | None = None
    """Beside the others; None where it has no latency that counts."""
    calls: float | None = None
    """How often serving asks for the shape; None: the file of shapes does not tell."""
    margin_pct: float | None = None
    """How much faster the challenger is than the incumbent; None: nothing was compared."""
    bar_pct: float | None = None
    """What the margin had to reach."""
    noise_pct: float | None = None
    """The noise floor of the comparison."""
    blocks: int = 0
    """How often the finalists were timed in turns; 0: the decision rests on single timings."""
    decided_earlier: bool = False
    """By an earlier part of a run that was interrupted."""

    @property
    def saved_us(self) -> float:
        """What one call takes less than today, as serving runs it where that was compared; 0 if nothing changes."""
        served = self.served
        if served is not None and served.after is not None:
            before, after = served.before.us, served.after.us
        else:
            before, after = self.incumbent_us, self.us
        changes = self.proposed and self.winner != self.incumbent
        return before - after if changes and before is not None and after is not None else 0.0

    @property
    def gain_pct(self) -> float | None:
        """How much less time than the default, in percent."""
        if self.us is None or not self.default_us:
            return None
        return (self.default_us - self.us) * 100 / self.default_us


@dataclass(frozen=True)
class LaneTime:
    """Seconds of one lane by what it did."""

    name: str
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class RunSummary:
    """The whole run."""

    family: str
    device: str
    """For a person."""
    exit_code: ExitCode
    shapes: tuple[ShapeOutcome, ...] = ()
    already_tuned: int = 0
    already_stale: int = 0
    """How many of the rows of those are stale."""
    causes: tuple[FailureCause, ...] = ()
    lanes: tuple[LaneTime, ...] = ()
    elapsed_s: float = 0.0
    tune_file: str = ""
    shapes_to_tune: int = 0
    """With those that the run did not come to, which ``shapes`` lacks where results could not be written."""
    has_rows: bool = True
    """Whether the tuned CSV is there; without a correct candidate it may not be."""
    compared: bool = False
    """Whether what serving runs was compared (``--compare``)."""
    updates: bool = True
    """Whether the run could write the tuned CSV; without ``--update_improved`` a comparison only proposes."""
    gfx: str = ""
    """The device's arch."""
    family_file: str = ""
    """``op.py:ClassName`` of a family that is in a file of the user's own."""
    candidate_file: str = ""
    """The table that holds what would be written; empty: the tuned CSV was, or nothing is to be."""
    record_file: str = ""
    """The checkpoint, or the profile that it became."""
    message: str = ""
    """What a person should do next; empty if nothing."""

    @property
    def counts(self) -> dict[Status, int]:
        """Candidates by status."""
        total: Counter[Status] = Counter()
        for shape in self.shapes:
            total.update(shape.counts)
        return {status: total[status] for status in Status if total[status]}


def in_order(
    outcomes: Iterable[ShapeOutcome], shapes: Sequence[Mapping[str, Any]], calls: Sequence[float] = ()
) -> tuple[ShapeOutcome, ...]:
    """Outcomes in the order of their shapes.

    Args:
        outcomes: at most one for each shape.
        shapes: as the file has them.
        calls: how often serving asks for each; empty where the file does not tell.
    """
    by_shape = {tuple(outcome.shape.values()): outcome for outcome in outcomes}
    counts: Sequence[float | None] = calls or [None] * len(shapes)
    found = ((by_shape.get(tuple(shape.values())), count) for shape, count in zip(shapes, counts, strict=True))
    return tuple(replace(one, calls=count) for one, count in found if one is not None)


# Figures and addresses differ between failures that are the same to a person; exit codes and lines tell them apart.
_VARIABLE = re.compile(r"(?P<kept>exited with code \d+|at \S+\.py:\d+)|0x[0-9a-fA-F]+|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def gather_causes(failures: Iterable[tuple[str, str, Measurement]]) -> tuple[FailureCause, ...]:
    """Causes of ``(shape label, candidate, measurement)``, the most frequent first; each keeps its first example."""
    return merge_causes(
        (),
        [FailureCause(measurement.status, 1, measurement.detail, shape, name) for shape, name, measurement in failures],
    )


def merge_causes(known: Iterable[FailureCause], more: Iterable[FailureCause]) -> tuple[FailureCause, ...]:
    """Counts of equal causes added up, the most frequent first; the example is the one that was known first."""
    merged: dict[tuple[Status, str], FailureCause] = {}
    for cause in (*known, *more):
        same = (cause.status, _VARIABLE.sub(lambda found: found["kept"] or "#", cause.detail))
        first = merged.get(same)
        merged[same] = cause if first is None else replace(first, count=first.count + cause.count)
    return tuple(sorted(merged.values(), key=lambda cause: -cause.count))


def exit_code_of(
    shapes: Iterable[ShapeOutcome], *, stopped: bool = False, no_lanes: bool = False, write_failed: bool = False
) -> ExitCode:
    """The exit code of a run: what stopped it first, then what a rerun would do, then what no rerun helps."""
    if write_failed:
        return ExitCode.write_failed
    verdicts = {shape.verdict for shape in shapes}
    if no_lanes:
        return ExitCode.no_device
    if stopped or Verdict.incomplete in verdicts:
        return ExitCode.interrupted
    return ExitCode.no_correct_candidate if verdicts & {Verdict.failed, Verdict.not_served} else ExitCode.done
