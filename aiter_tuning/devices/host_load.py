"""What else this host's cores are doing: a CPU lane that shares its cores measures how busy they are, not how fast."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

import psutil

SAMPLE_S = 0.06
"""Six of the kernel's ticks: enough to tell a busy core from an idle one."""
CPU_SHARES = (0.1, 0.25)
"""Shares of busy cores above which CPU lanes are disturbed, and mislead."""
GPU_SHARES = (0.6, 0.9)
"""The same for the host of a GPU."""
_LEAST_CORES = 0.05
_MOST_NAMED = 3


class BusyProcess(NamedTuple):
    """A process that used the CPU while it was looked at."""

    pid: int
    name: str
    cores: float


class HostLoad(NamedTuple):
    """How the cores that this process may use were used for a moment."""

    cores: int
    """Logical CPUs that this process may use."""
    busy_cores: float
    """How many of them were at work, on average."""
    processes: tuple[BusyProcess, ...] = ()
    """The busiest, as far as they can be seen from here."""

    @property
    def busy_share(self) -> float:
        return self.busy_cores / self.cores if self.cores else 0.0


class LoadWatch:
    """Looks at the cores from the moment it is made; what this process uses itself does not count as load."""

    def __init__(self) -> None:
        self._allowed = frozenset(os.sched_getaffinity(0))
        self._began = time.monotonic()
        self._busy, self._own = _busy_seconds(self._allowed), _own_seconds()

    def read(self, at_least_s: float = SAMPLE_S) -> HostLoad:
        """The load since then; waits until it has looked for ``at_least_s`` seconds."""
        time.sleep(max(0.0, self._began + at_least_s - time.monotonic()))
        seconds = time.monotonic() - self._began
        busy = _busy_seconds(self._allowed) - self._busy - (_own_seconds() - self._own)
        return HostLoad(len(self._allowed), max(0.0, busy) / seconds)


def crowding(load: HostLoad, *, on_gpu: bool) -> Literal["", "loaded", "crowded"]:
    """What the load means: nothing; repetitions; times that are not the kernel's.

    A CPU lane measures what others leave over. A GPU's times suffer only where its lanes find no core to launch from.
    """
    loaded, crowded = GPU_SHARES if on_gpu else CPU_SHARES
    if load.busy_share > crowded:
        return "crowded"
    return "loaded" if load.busy_share > loaded else ""


def host_load(sample_s: float = SAMPLE_S, *, name_processes: bool = False) -> HostLoad:
    """Looks at the cores for ``sample_s`` seconds.

    Args:
        sample_s: how long.
        name_processes: whether to find out who it is, which costs some milliseconds for each hundred processes.
    """
    watch, before = LoadWatch(), _process_seconds() if name_processes else {}
    began = time.monotonic()
    load = watch.read(sample_s)
    if not name_processes:
        return load
    return load._replace(processes=_busiest(before, _process_seconds(), time.monotonic() - began))


def quota_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many cores' time this container may use; None: no limit that can be seen from here."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        cores = float(limit) / float(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return cores if cores > 0 else None


def governors(allowed: Collection[int] | None = None, sysfs: Path = Path("/sys/devices/system/cpu")) -> frozenset[str]:
    """The frequency governors of the cores that this process may use; empty where the host does not tell."""
    found = set()
    for cpu in os.sched_getaffinity(0) if allowed is None else allowed:
        try:
            found.add((sysfs / f"cpu{cpu}/cpufreq/scaling_governor").read_text().strip())
        except OSError:
            continue
    return frozenset(found)


def _busy_seconds(allowed: Collection[int]) -> float:
    times = psutil.cpu_times(percpu=True)
    if len(times) <= max(allowed, default=0):  # some CPUs are offline, or the container hides some
        total = psutil.cpu_times()
        return float(sum(total[:3]))
    return float(sum(sum(times[cpu][:3]) + getattr(times[cpu], "steal", 0.0) for cpu in allowed))


def _own_seconds() -> float:
    """CPU time of this process and of the children that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _process_seconds() -> dict[tuple[int, float], tuple[str, float]]:
    found = {}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times"]):
        info = process.info
        if info["cpu_times"] is not None:
            key = (info["pid"], info["create_time"])
            found[key] = (info["name"] or "?", info["cpu_times"].user + info["cpu_times"].system)
    return found


def _busiest(
    before: dict[tuple[int, float], tuple[str, float]],
    after: dict[tuple[int, float], tuple[str, float]],
    seconds: float,
) -> tuple[BusyProcess, ...]:
    used = [
        BusyProcess(key[0], name, (spent - before.get(key, (name, spent))[1]) / seconds)
        for key, (name, spent) in after.items()
        if key[0] != os.getpid()
    ]
    used = [process for process in used if process.cores > _LEAST_CORES]
    return tuple(sorted(used, key=lambda process: -process.cores)[:_MOST_NAMED])
