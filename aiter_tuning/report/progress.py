"""How a run shows that it is getting somewhere.

On a terminal a live display: counts, the latest shape, what is left, a line for each lane. Elsewhere plain lines every
few seconds, so that a log of an overnight run stays readable. Both say so when nothing has come for a minute, and where
it hangs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import LaneView
from aiter_tuning.quantities import counted, format_s
from aiter_tuning.report.run_state import RunState, outcome_text
from aiter_tuning.status import Status
from aiter_tuning.tuner.outcome import ShapeOutcome
from aiter_tuning.tuner.reporter import Reporter, RunOverview

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_EVERY_S = 5.0
PRINTED_LINES = 5
"""Of what a candidate printed, the last lines are shown with ``-v``."""


@contextmanager
def progress_on(stream: TextIO, *, verbose: bool = False) -> Iterator[Reporter]:
    """A display on ``stream``: live on a terminal, plain lines elsewhere; taken down at the end."""
    display: PlainProgress | LiveProgress = (
        LiveProgress(stream, verbose=verbose) if stream.isatty() else PlainProgress(stream, verbose=verbose)
    )
    try:
        yield display
    finally:
        display.run_ended()


class PlainProgress:
    """Lines of text."""

    def __init__(
        self,
        stream: TextIO,
        *,
        verbose: bool = False,
        every_s: float = PLAIN_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._verbose = verbose
        self._every_s = every_s
        self._clock = clock
        self._last_line = clock()
        self.state = RunState(clock)

    def note(self, text: str) -> None:
        self._print(text)

    def run_started(self, overview: RunOverview) -> None:
        self.state.run_started(overview)
        self._print(started_text(overview))

    def candidate_measured(self, shape: int, candidate: int, measurement: Measurement) -> None:
        self.state.candidate_measured(shape, candidate, measurement)
        if self._verbose and measurement.status is not Status.ok:
            planned = self.state.overview.shapes[shape]
            self._print(f"{planned.label} {planned.candidates[candidate]}: {measurement.status} {measurement.detail}")

    def candidate_printed(self, shape: int, candidate: int, text: str) -> None:
        if self._verbose:
            planned = self.state.overview.shapes[shape]
            for line in text.splitlines()[-PRINTED_LINES:]:
                self._print(f"{planned.label} {planned.candidates[candidate]} | {line}")

    def finals_began(self, shape: int, finalists: Sequence[str], blocks: int) -> None:
        self.state.finals_began(shape, finalists, blocks)
        if self._verbose:
            record = f"; {blocks} blocks are on record" if blocks else ""
            self._print(f"{self.state.overview.shapes[shape].label}: finals of {', '.join(finalists)}{record}")

    def block_done(self, shape: int, block: int, entrants: int) -> None:
        self.state.block_done(shape, block, entrants)

    def shape_ended(self, shape: int, outcome: ShapeOutcome) -> None:
        self.state.shape_ended(shape, outcome)
        if self._verbose:
            self._print(outcome_text(outcome))

    def tick(self, lanes: Sequence[LaneView]) -> None:
        self.state.lanes = lanes
        stalled = self.state.stalled_text()
        if stalled is not None:
            self._print(stalled)
        elif self._clock() - self._last_line >= self._every_s:
            self._print(self._line())

    def run_ended(self) -> None:
        pass

    def _line(self) -> str:
        state = self.state
        parts = [state.counts_text()]
        if state.latest is not None and not self._verbose:
            parts.append(outcome_text(state.latest))
        eta_s = state.eta_s()
        if eta_s is not None:
            parts.append(f"{format_s(eta_s)} left")
        return " | ".join(parts)

    def _print(self, text: str) -> None:
        self._last_line = self._clock()
        with contextlib.suppress(OSError):  # whoever read it has gone; a run of hours does not end for that
            print(f"[{format_s(self.state.elapsed_s):>6}] {text}", file=self._stream, flush=True)


class LiveProgress(PlainProgress):
    """A display at the bottom of a terminal; notes scroll by above it."""

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        super().__init__(stream, verbose=verbose)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream, highlight=False)
        # Refreshed from the tuner's loop: a thread of rich's own would be one more that shares the lane's cores.
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown = False

    def run_started(self, overview: RunOverview) -> None:
        super().run_started(overview)
        self._live.start()
        self._shown = True

    def tick(self, lanes: Sequence[LaneView]) -> None:
        self.state.lanes = lanes
        stalled = self.state.stalled_text()
        if stalled is not None:
            self._print(stalled)
        self._refresh()

    def run_ended(self) -> None:
        if self._shown:
            self._shown = False
            with contextlib.suppress(OSError):
                self._live.stop()

    def _refresh(self) -> None:
        if self._shown:
            with contextlib.suppress(OSError):
                self._live.update(self._picture(), refresh=True)

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        state = self.state
        bar = Table.grid(padding=(0, 1))
        eta_s = state.eta_s()
        bar.add_row(
            ProgressBar(total=max(1, state.overview.candidates), completed=state.measured, width=30),
            Text(state.counts_text()),
            Text("" if eta_s is None else f"{format_s(eta_s)} left"),
        )
        lines: list[RenderableType] = [bar]
        if state.latest is not None:
            lines.append(Text(f"latest  {outcome_text(state.latest)}", no_wrap=True, overflow="ellipsis"))
        for lane in state.lanes:
            best = state.best_text(lane.group)
            text = f"{lane.name:6}  {state.lane_text(lane)}" + (f"; best {best}" if best else "")
            lines.append(Text(text, no_wrap=True, overflow="ellipsis"))
        return Group(*lines)

    def _print(self, text: str) -> None:
        self._last_line = self._clock()
        with contextlib.suppress(OSError):
            self._console.print(f"[{format_s(self.state.elapsed_s):>6}] {text}", markup=False, soft_wrap=True)


def started_text(overview: RunOverview) -> str:
    """What is about to be done, in one line."""
    resumed = sum(shape.resumed for shape in overview.shapes)
    lanes = counted(overview.lanes, "lane")
    text = f"{overview.family} on {overview.device}, {lanes}: {count_text(overview)}"
    if resumed:
        text += f"; resuming, {counted(resumed, 'candidate')} {'is' if resumed == 1 else 'are'} on record"
    return text


def count_text(overview: RunOverview) -> str:
    """``10 shapes, 120 candidates, 3 shapes have a row already``."""
    stale = f" ({overview.stale} with a stale row)" if overview.stale else ""
    text = f"{counted(len(overview.shapes), 'shape')}{stale}, {counted(overview.candidates, 'candidate')}"
    if not overview.already_tuned:
        return text
    return f"{text}, {already_text(overview.already_tuned, overview.already_stale)}"


def already_text(shapes: int, stale: int = 0) -> str:
    """``3 shapes have a row already, 2 of them stale``."""
    text = f"{counted(shapes, 'shape')} {'has' if shapes == 1 else 'have'} a row already"
    return f"{text}, {stale} of them stale" if stale else text
