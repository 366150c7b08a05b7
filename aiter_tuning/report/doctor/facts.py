"""What is to be known of a machine before its times are believed: values, gathered elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from aiter_tuning.devices.conditions import Reading
from aiter_tuning.devices.device import Device
from aiter_tuning.devices.gpu_settings import GpuSettings
from aiter_tuning.devices.host_load import HostLoad


class Verdict(StrEnum):
    """What a finding means for tuning here."""

    ok = "ok"
    warning = "warning"
    """It costs time or hides something; what is measured can be believed."""
    bad = "bad"
    """Tuning here would mislead, or fail."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    topic: str
    verdict: Verdict
    found: str
    advice: str = ""
    """What to do; empty where nothing is to be done."""


class GpuFindings(NamedTuple):
    """What was found on one GPU."""

    device: Device
    before: Reading | None = None
    """None: it cannot be read."""
    after: Reading | None = None
    """After the trial, which works on the first GPU only."""
    settings: GpuSettings | None = None
    problem: str = ""
    """Why something of this cannot be read."""
    foreign: tuple[str, ...] = ()
    """Processes of others, ``python (1234)``."""


class Place(NamedTuple):
    """A directory that a run writes to."""

    name: str
    path: str
    file_system: str
    """Its type, ``ext4``; empty: unknown."""
    free_bytes: int
    """-1: unknown."""
    problem: str = ""
    """Why nothing can be written there."""


class LockTrial(NamedTuple):
    """What two processes found about locks in one directory."""

    path: str
    excludes: bool | None = None
    """Whether the second process was kept out while the first had the lock; None: it could not be tried."""
    hands_over: bool | None = None
    """Whether the second process got it afterwards."""
    links: bool | None = None
    """Whether a file can be linked to a name that must be new."""
    problem: str = ""


class Pair(NamedTuple):
    """One kernel timed twice in a row, microseconds a call."""

    first_us: float
    second_us: float


class Noise(NamedTuple):
    """One kernel timed against itself."""

    name: str
    pairs: tuple[Pair, ...]
    timer: str
    flags: tuple[str, ...] = ()


class Trial(NamedTuple):
    """What a worker of a pool went through."""

    import_s: float
    """From the start of its process until torch was imported."""
    bind_s: float
    """Until it had its device."""
    noise: tuple[Noise, ...] = ()
    problem: str = ""
    """Why it ended early."""


@dataclass(frozen=True)
class Facts:
    """Everything that the findings rest on."""

    kind: str
    """``cpu``, ``cuda`` or ``hip``; empty: there is no usable device."""
    devices: tuple[Device, ...] = ()
    device_problem: str = ""
    device_notes: tuple[str, ...] = ()
    torch_build: str = ""
    torch_kind: str = "cpu"
    """What the installed torch drives."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions by name; empty: not installed."""
    driver: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables that matter here, as they are set."""
    gpus: tuple[GpuFindings, ...] = ()
    load: HostLoad | None = None
    quota_cores: float | None = None
    governors: frozenset[str] = frozenset()
    available_bytes: int = -1
    """Memory; -1: unknown."""
    open_files: int = -1
    """How many a process may have; -1: without limit."""
    places: tuple[Place, ...] = ()
    locks: LockTrial | None = None
    trial: Trial | None = None
    """None: there was no device to try."""
