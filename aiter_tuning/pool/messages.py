"""What parent and worker say to each other; see :mod:`~aiter_tuning.pool.channel` for how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aiter_tuning.contest import Block, Contest
from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.compile_book import Slots
from aiter_tuning.task import Logbook

TOKEN_VARIABLE = "AITER_TUNING_WORKER"
"""In the environment of a worker and of all that it starts, so that they can be found when it is gone."""

# parent → worker


class Hello(NamedTuple):
    """First words to a new process."""

    device: Device | None
    """The lane's device where it has to be bound at exec, else None."""
    kind: str
    preload: tuple[str, ...]
    background: bool
    """A standby: it must not disturb what the lane is timing while it imports."""


class Adopt(NamedTuple):
    """The parent's surroundings, which candidates are to find as if they ran there."""

    sys_path: tuple[str, ...]
    cwd: str
    environ: Mapping[str, str]


class Bind(NamedTuple):
    device: Device


class Open(NamedTuple):
    """Drop the last group and take this one."""

    group: int
    payload: bytes
    """Pickled :class:`GroupPayload`: loading it runs imports of the user's, under the group's clock."""


class Unsendable(NamedTuple):
    """In the place of a task that cannot be pickled."""

    detail: str


class GroupPayload(NamedTuple):
    """What a worker needs of a group."""

    tasks: tuple[tuple[Any, ...] | bytes | Unsendable, ...]
    """The fields of each :class:`~aiter_tuning.task.MpTunerTask`, without ``info``; or each pickled apart, to be loaded
    when it is its turn, because one of them could not be sent or loaded with the others."""
    inputs_ids: tuple[int, ...]
    reference_ids: tuple[int, ...]
    data: Mapping[str, Any] | None
    plan: Any
    logbook: Logbook | None
    slots: Slots | None = None
    """Where the compiler's verdicts on its candidates are, if they are compiled ahead."""
    contest: Contest | None = None
    """How to time the candidates in turns, with the blocks so far."""


class Go(NamedTuple):
    """Measure these candidates, one after another.

    The worker goes on by itself until all are measured, or until one has no inputs, ran out of memory, or broke the
    device: then it waits for the next ``Go``. Those of a contest are measured in turns, and those who have entered it
    stay in.
    """

    candidates: tuple[tuple[int, int], ...]
    """Index and attempt of each."""
    leader_us: float


class Close(NamedTuple):
    """Drop the group's inputs: there is no other group to open."""


# worker → parent


class Ready(NamedTuple):
    """Imports are done."""

    import_s: float


class Bound(NamedTuple):
    """The device is taken and passed its probe."""

    uuid: str
    bind_s: float


class BindFailed(NamedTuple):
    detail: str


class LogFailed(NamedTuple):
    """The logbook could not be written: nothing more is to be measured."""

    errno: int
    reason: str
    """The file, and what was wrong with it."""


class OpenFailed(NamedTuple):
    """The group's tasks could not be loaded here, so none of them can run."""

    group: int
    detail: str


class Unprepared(NamedTuple):
    """Inputs or reference of the candidate could not be made."""

    candidate: int
    phase: str
    """``inputs`` or ``reference``."""
    measurement: Measurement
    leaving: bool


class BlockDone(NamedTuple):
    """All entrants of a contest that were still in have had their turn."""

    block: Block


class NoGraph(NamedTuple):
    """An entrant of the contest cannot be captured in a graph, and trying it has left the process in doubt.

    The worker exits after this message; nobody is to blame.
    """

    candidate: int


class Measured(NamedTuple):
    """The candidate's outcome. The one message that comes for every candidate travels as a plain tuple of these."""

    candidate: int
    measurement: tuple[Any, ...]
    """:meth:`~aiter_tuning.measurement.Measurement.packed`"""
    leaving: bool
    """A device fault: the worker exits after this message, since its context is worthless."""
    output: str
    """The end of what the candidate printed."""
