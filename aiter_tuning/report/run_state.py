"""Where a run stands: what progress displays show, kept apart from how they show it.

Fed by the tuner (see :class:`~aiter_tuning.tuner.reporter.Reporter`), read by a display at any moment. The clock is
passed in, so that texts about time can be tested without waiting.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence

from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import LaneView
from aiter_tuning.quantities import format_us
from aiter_tuning.status import Status
from aiter_tuning.tuner.outcome import ShapeOutcome
from aiter_tuning.tuner.reporter import RunOverview

STALLED_AFTER_S = 60.0
"""Without a result for this long a person is told what runs where, and again each time it has passed."""


class RunState:
    """Counts, the latest news and times of one run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.began = clock()
        self.overview = RunOverview("", "", 0, (), 0)
        self.shapes_done = 0
        self.measured = 0
        self.statuses: Counter[Status] = Counter()
        self.latest: ShapeOutcome | None = None
        self.lanes: Sequence[LaneView] = ()
        self._first_result: float | None = None
        self._last_news = self.began
        self._best: dict[int, tuple[str, float]] = {}
        self._incumbent_us: dict[int, float] = {}
        self._finalists: dict[int, Sequence[str]] = {}
        self._blocks: dict[int, tuple[int, int]] = {}
        """Number of the last block of each shape's finals, and how many were timed in it."""

    # What happens.

    def run_started(self, overview: RunOverview) -> None:
        self.overview = overview
        self._last_news = self._clock()

    def candidate_measured(self, shape: int, candidate: int, measurement: Measurement) -> None:
        now = self._clock()
        if self._first_result is None:
            self._first_result = now
        self._last_news = now
        self.measured += 1
        self.statuses[measurement.status] += 1
        planned = self.overview.shapes[shape]
        name = planned.candidates[candidate]
        if measurement.status is not Status.ok or measurement.censored:
            return
        if name == planned.incumbent:
            self._incumbent_us[shape] = measurement.us
        if measurement.us < self._best.get(shape, ("", math.inf))[1]:
            self._best[shape] = (name, measurement.us)

    def finals_began(self, shape: int, finalists: Sequence[str], blocks: int) -> None:
        self._finalists[shape] = finalists
        self._blocks[shape] = blocks, len(finalists)
        self._last_news = self._clock()

    def block_done(self, shape: int, block: int, entrants: int) -> None:
        self._blocks[shape] = block, entrants
        self._last_news = self._clock()

    def shape_ended(self, shape: int, outcome: ShapeOutcome) -> None:
        self.shapes_done += 1
        self.latest = outcome
        self._finalists.pop(shape, None)
        self._blocks.pop(shape, None)
        self._best.pop(shape, None)
        self._incumbent_us.pop(shape, None)

    # What can be said about it.

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self.began

    def counts_text(self) -> str:
        """``shapes 3/10, candidates 45/120: 40 ok, 3 crash``."""
        counts = ", ".join(f"{self.statuses[status]} {status}" for status in Status if self.statuses[status])
        text = (
            f"shapes {self.shapes_done}/{len(self.overview.shapes)}, "
            f"candidates {self.measured}/{self.overview.candidates}"
        )
        return f"{text}: {counts}" if counts else text

    def eta_s(self) -> float | None:
        """Seconds left at the pace since the first result; None before there is a pace."""
        left = self.overview.candidates - self.measured
        if left <= 0 or self._first_result is None or self.measured < 2:
            return None
        return (self._clock() - self._first_result) / (self.measured - 1) * left

    def best_text(self, shape: int | None) -> str:
        """``onednn 12.3 us, 8.1 % under linear``: the fastest of a shape so far beside the incumbent; may be empty."""
        if shape is None or shape not in self._best:
            return ""
        name, us = self._best[shape]
        incumbent, incumbent_us = self.overview.shapes[shape].incumbent, self._incumbent_us.get(shape)
        text = f"{name} {format_us(us)}"
        if incumbent_us is None or name == incumbent:
            return text
        return f"{text}, {(incumbent_us - us) * 100 / incumbent_us:.1f} % under {incumbent}"

    def lane_text(self, lane: LaneView) -> str:
        """``measuring M=64 N=… onednn for 3 s``; in finals ``finals M=64 N=…, block 4 of 6 finalists, onednn …``."""
        _, state, group, index, since_s, _ = lane
        if group is None or group >= len(self.overview.shapes):
            return f"{state} for {since_s:.0f} s"
        shape, finalists = self.overview.shapes[group], self._finalists.get(group)
        names = shape.candidates if finalists is None else finalists
        name = f" {names[index]}" if index is not None and index < len(names) else ""
        if finalists is None:
            return f"{state} {shape.label}{name} for {since_s:.0f} s"
        block, entrants = self._blocks[group]
        return (
            f"finals {shape.label}, block {block + 1} of {entrants} finalists,{name or ' ' + state} for {since_s:.0f} s"
        )

    def stalled_text(self) -> str | None:
        """What runs where, once nothing has been measured for a minute; then not again for another one."""
        silent_s = self._clock() - self._last_news
        if silent_s < STALLED_AFTER_S or not self.lanes:
            return None
        self._last_news = self._clock()
        doing = "; ".join(f"{lane.name} {self.lane_text(lane)}" for lane in self.lanes)
        return f"no progress for {silent_s:.0f} s: {doing}"


def outcome_text(outcome: ShapeOutcome) -> str:
    """One line on a shape that ended."""
    if outcome.winner is None or outcome.us is None:
        return f"{outcome.label}: {outcome.verdict.replace('_', ' ')}, {outcome.reason}"
    text = f"{outcome.label}: {outcome.winner} {format_us(outcome.us)}"
    if outcome.winner != outcome.default and outcome.default_us is not None:
        text += f", {outcome.default} {format_us(outcome.default_us)} ({outcome.gain_pct:+.1f} %)"
    if outcome.blocks:
        text += f", {outcome.blocks} blocks of finals"
    return f"{text}; {outcome.reason}"
