"""What a caller of :meth:`Pool.run` sets and sees: clocks, the moments of a run, what every lane is doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from aiter_tuning.contest import Block
from aiter_tuning.measurement import Measurement
from aiter_tuning.task import Group


class Clocks(NamedTuple):
    """Seconds after which something is killed; None: never."""

    group_s: float | None = None
    """All candidates of a group together, counted only while a worker has the group open."""
    candidate_s: float | None = None
    """One candidate, from the worker's word that it started (or from the end of its first call, see ``compile_s``)."""
    compile_s: float | None = None
    """A candidate's first call; also inputs and reference. None: ``candidate_s`` covers them."""


NO_CLOCKS = Clocks()


class RunEnd(StrEnum):
    """Why a run ended."""

    done = "done"
    interrupted = "interrupted"
    budget = "budget"
    no_lanes = "no_lanes"


class RunOutcome(NamedTuple):
    """How a run ended, and why in a person's words (empty for ``done``)."""

    end: RunEnd
    reason: str = ""


class LaneView(NamedTuple):
    """What one lane is doing."""

    name: str
    state: str
    """``starting``, ``idle``, ``inputs``, ``reference``, ``compiling``, ``measuring``, ``finals`` or ``retired``."""
    group: int | None
    candidate: int | None
    since_s: float
    """How long it has been doing that."""
    busy: Mapping[str, float]
    """Seconds spent in each state so far."""


class Watcher:
    """The moments of a run, called in the parent's loop, in order. An exception ends the run and is passed on."""

    tick_s: float = 1.0
    run_ahead: bool = False
    """Whether a lane may start its next candidate before :meth:`measured` has returned for the last one. A round trip
    for every candidate costs more than a short one takes; with a logbook nothing depends on it."""

    def before_start(self, group: int, index: int, attempt: int, lane: str) -> None:
        """The candidate is about to be handed to a worker. Without ``run_ahead`` only, and not in a contest."""

    def measured(self, group: int, index: int, measurement: Measurement, *, logged: bool) -> None:
        """The candidate's verdict. ``logged``: its worker has written it into the group's logbook already."""

    def stopped(self, group: int, index: int, attempt: int) -> None:
        """The candidate was running, or in a contest, when the run or its group's time ended; it is ``not_run``."""

    def block_done(self, group: int, block: Block) -> None:
        """A block of the contest that the group is. One of a number that was told before replaces that and voids
        all later ones: the contest went on elsewhere and does not count what was measured here."""

    def follow_up(self, group: int, results: Sequence[Measurement], number: int, *, idle: bool) -> Group | None:
        """What is to be done at once where the group was measured, now that all of it has a result.

        Called before :meth:`group_ended`, not for groups that the end of the run cut short. What is returned becomes
        the group ``number``, the next of its lane; it may have a follow-up too. ``idle``: the lane has nothing else to
        do.
        """
        return None

    def group_ended(self, group: int, results: Sequence[Measurement]) -> None:
        """Every candidate of the group has a result, in the group's order; some may be ``not_run``."""

    def output(self, group: int, index: int, text: str) -> None:
        """The last that a candidate printed, if it printed anything."""

    def note(self, text: str) -> None:
        """Something a person should know: a worker died, a lane was retired."""

    def tick(self, lanes: Sequence[LaneView]) -> None:
        """About every ``tick_s`` seconds."""
