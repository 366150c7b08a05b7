"""What parent and worker say to each other; see :mod:`~aiter_tuning.pool.channel` for how."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement

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
    """Drop the last group and take this one. The worker answers ``Opened`` at once and loads it under its clock."""

    group: int
    payload: bytes
    """Pickled :class:`GroupPayload`: loading it runs imports of the user's, so it waits for ``Opened``."""


class GroupPayload(NamedTuple):
    """What a worker needs of a group."""

    tasks: tuple[Any, ...]
    inputs_ids: tuple[int, ...]
    reference_ids: tuple[int, ...]
    data: Mapping[str, Any] | None
    plan: Any


class Go(NamedTuple):
    """Measure one candidate."""

    candidate: int
    attempt: int
    leader_us: float
    announce_first_call: bool
    """Whether the parent runs a clock of its own up to the end of the first call."""


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


class Opened(NamedTuple):
    group: int


class OpenFailed(NamedTuple):
    """The group's tasks could not be loaded here, so none of them can run."""

    group: int
    detail: str


class Preparing(NamedTuple):
    """Inputs or reference of this candidate are about to be made."""

    candidate: int
    phase: str
    """``inputs`` or ``reference``."""


class Unprepared(NamedTuple):
    """They could not be made."""

    candidate: int
    phase: str
    measurement: Measurement
    leaving: bool


class Started(NamedTuple):
    """The candidate itself is about to be called."""

    candidate: int


class FirstCallDone(NamedTuple):
    candidate: int


class Measured(NamedTuple):
    """The candidate's outcome."""

    candidate: int
    measurement: Measurement
    leaving: bool
    """A device fault: the worker exits after this message, since its context is worthless."""
