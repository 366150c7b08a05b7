"""What parent and worker say to each other.

Each record is a NamedTuple; a message is its pickle. The parent speaks first and the worker answers, so that at most a
few small messages are ever under way and neither side can block on a full pipe; what may be large (a group's tasks)
travels by file beyond :data:`INLINE_BYTES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement

INLINE_BYTES = 32 * 1024
"""Larger group payloads go through a file, since a socket's buffer may be smaller than they are."""


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
    """Take a group. The worker answers ``Opened`` at once and loads it under the group's clock."""

    group: int
    payload: bytes | str
    """Pickled :class:`GroupPayload`, or the path of a file that holds it, to be removed by the worker."""


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
    """Drop the group's inputs."""


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
