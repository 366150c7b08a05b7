"""Under which conditions a GPU works: what a sensor reads, and which of the processes on it are none of ours."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class GpuProcess(NamedTuple):
    """A process with a context on the GPU."""

    pid: int
    """0: there is one, but its number is not known in this container."""
    memory_bytes: int
    """0: unknown."""


class Reading(NamedTuple):
    """What a sensor says at one moment; None: this GPU does not tell."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    temperature_c: int | None = None
    throttle: tuple[str, ...] = ()
    """Why it runs slower than it was asked to."""
    processes: tuple[GpuProcess, ...] = ()


class Conditions(NamedTuple):
    """A reading, with the processes of others told from ours."""

    sm_mhz: int | None
    memory_mhz: int | None
    temperature_c: int | None
    throttle: tuple[str, ...]
    foreign: tuple[GpuProcess, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        """Circumstances that make a latency less trustworthy."""
        return tuple(name for name, holds in (("throttled", self.throttle), ("foreign", self.foreign)) if holds)

    def record(self) -> dict[str, Any]:
        """For evidence, as JSON has it."""
        return {
            "sm_mhz": self.sm_mhz,
            "memory_mhz": self.memory_mhz,
            "temperature_c": self.temperature_c,
            "throttle": list(self.throttle),
            "foreign": [process._asdict() for process in self.foreign],
        }


class Sensor(Protocol):
    """Reads one vendor's GPUs; may raise anything."""

    def read(self, uuid: str, pci: str) -> Reading: ...

    def close(self) -> None: ...


def foreign_processes(
    processes: Collection[GpuProcess], ours: Collection[int], is_ours: Callable[[int], bool | None]
) -> tuple[GpuProcess, ...]:
    """The processes on a GPU that are neither ours nor started by ours.

    Args:
        processes: all that have a context there.
        ours: our workers that may have one now.
        is_ours: whether a process belongs to us; None where there is none of that number.

    In a container the driver may list numbers of the host's, which mean nothing here: of those as many are taken for
    ours as we have workers that are not listed by their own number.
    """
    unlisted = len(set(ours) - {process.pid for process in processes})
    foreign = []
    for process in processes:
        belongs = is_ours(process.pid)
        if belongs is None and unlisted:
            unlisted -= 1
        elif belongs is None:
            foreign.append(GpuProcess(0, process.memory_bytes))
        elif not belongs:
            foreign.append(process)
    return tuple(foreign)


class Kinship:
    """Which processes are ours: this one, its workers, and whatever those started.

    A worker leads a session of its own and is our child. One that was killed is listed on its GPU for a moment longer,
    so whoever was ours once stays so.
    """

    def __init__(self) -> None:
        self._known = {os.getpid()}

    def add(self, pids: Iterable[int]) -> None:
        self._known.update(pids)

    def is_ours(self, pid: int) -> bool | None:
        """None: there is no such process."""
        if pid in self._known:
            return True
        try:
            session = os.getsid(pid)
        except PermissionError:
            return False
        except OSError:
            return None
        if session not in self._known and _parent_of(session) != os.getpid():
            return False
        self._known.update((session, pid))
        return True


def _parent_of(pid: int) -> int:
    """0: there is no such process, or none that may be looked at."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def driver_of_kernel(kind: str, sysfs: Path = Path("/sys/module")) -> str:
    """Version of the loaded kernel driver; of an amdgpu that came with the kernel, the kernel's."""
    module = {"cuda": "nvidia", "hip": "amdgpu"}[kind]
    try:
        return (sysfs / module / "version").read_text().strip()
    except OSError:
        return f"kernel {os.uname().release}" if kind == "hip" else ""


def summarise(conditions: Collection[Conditions]) -> Mapping[str, Any]:
    """Many moments as one record: lowest, median and highest of each value, every reason and process that was seen."""
    reasons = sorted({reason for one in conditions for reason in one.throttle})
    foreign = {process.pid: process for one in conditions for process in one.foreign}
    return {
        "readings": len(conditions),
        **{
            name: _spread([value for one in conditions if (value := getattr(one, name)) is not None])
            for name in ("sm_mhz", "memory_mhz", "temperature_c")
        },
        "throttle": {reason: sum(reason in one.throttle for one in conditions) for reason in reasons},
        "foreign": [process._asdict() for process in foreign.values()],
    }


def _spread(values: list[int]) -> list[int] | None:
    ordered = sorted(values)
    return [ordered[0], ordered[len(ordered) // 2], ordered[-1]] if ordered else None
