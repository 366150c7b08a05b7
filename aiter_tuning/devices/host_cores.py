"""Host cores that GPU lanes keep to themselves, so that nothing else delays their launches.

A launch costs the host some microseconds, and a compiler on the same core turns them into milliseconds. Each lane gets
one physical core near its GPU; what else the run starts (standbys, compilations) stays off these. The lane's worker
itself is not bound: it may use the others too, for inputs and a reference on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

_SYSFS = Path("/sys")


def reserved_cores(
    pcis: Sequence[str], allowed: Collection[int] | None = None, sysfs: Path = _SYSFS
) -> tuple[tuple[int, ...], ...]:
    """The logical CPUs of one physical core for each GPU.

    Args:
        pcis: PCI addresses of the GPUs, empty where unknown.
        allowed: CPUs to take them from, default those that this process may use.
        sysfs: where the kernel tells about CPUs and PCI devices.

    Returns:
        One tuple for each GPU, in order; all empty where there are not more cores than GPUs.
    """
    allowed = frozenset(os.sched_getaffinity(0) if allowed is None else allowed)
    free = list(dict.fromkeys(_siblings(cpu, sysfs) & allowed for cpu in sorted(allowed)))
    if len(free) <= len(pcis):
        return ((),) * len(pcis)
    reserved = []
    for pci in pcis:
        near = _cpu_list(sysfs / f"bus/pci/devices/{pci}/local_cpulist") if pci else frozenset()
        # The first core of a host has most of the interrupts.
        core = max(free, key=lambda cpus: (bool(cpus & near), min(cpus)))
        free.remove(core)
        reserved.append(tuple(sorted(core)))
    return tuple(reserved)


def parse_cpu_list(text: str) -> frozenset[int]:
    """``0-3,8`` as the kernel writes it."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _cpu_list(path: Path) -> frozenset[int]:
    try:
        return parse_cpu_list(path.read_text())
    except (OSError, ValueError):
        return frozenset()


def _siblings(cpu: int, sysfs: Path) -> frozenset[int]:
    return _cpu_list(sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") | {cpu}
