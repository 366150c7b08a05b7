"""CPU lanes: a lane is a set of physical cores and a share of the memory.

The cores are bound before torch is imported, because an affinity set later does not reach the threads that torch has
already made. Lanes are all of one size (a remainder of the cores stays idle), so that their timings are comparable.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Sequence
from pathlib import Path

import psutil

from aiter_tuning.devices.device import Device

KIND = "aiter_tuning.devices.cpu:CpuKind"

MEMORY_SHARE = 0.9
"""Of what is available, all lanes together; the rest is the system's and the parent's."""

_ISA_LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    ("x86-64-v2", {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
)


def physical_cores(sysfs: Path = Path("/sys/devices/system/cpu")) -> tuple[int, ...]:
    """One logical CPU of each physical core that this process may use, in order."""
    allowed = os.sched_getaffinity(0)
    first_of_core: dict[str, int] = {}
    for cpu in sorted(allowed):
        try:
            siblings = (sysfs / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        first_of_core.setdefault(siblings, cpu)
    return tuple(first_of_core.values())


def available_memory_bytes(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process could still take: the host's, or its cgroup's if that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else max(0, min(available, int(limit) - used))


def isa_level(machine: str, flags: set[str]) -> str:
    """The x86-64 level of a set of cpuinfo flags; elsewhere the machine's name."""
    if machine not in ("x86_64", "AMD64"):
        return machine or "cpu"
    for level, needed in _ISA_LEVELS:
        if needed <= flags:
            return level
    return "x86-64"


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo."""
    entry: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return entry
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        entry[name.strip()] = value.strip()
    return entry


def cpu_lanes(mp_num: int = 0, cores: Sequence[int] | None = None) -> tuple[Device, ...]:
    """The lanes of this host's CPU.

    Args:
        mp_num: how many lanes; under 1: one lane of all physical cores; above the number of cores: one lane a core.
        cores: the cores to share out, default :func:`physical_cores`.
    """
    cores = physical_cores() if cores is None else tuple(cores)
    lanes = min(max(1, mp_num), len(cores))
    size = len(cores) // lanes
    info = _cpuinfo()
    gfx = isa_level(platform.machine(), set(info.get("flags", "").split()))
    model = info.get("model name") or platform.processor() or platform.machine() or "unknown"
    memory = int(available_memory_bytes() * MEMORY_SHARE) // lanes
    return tuple(
        Device(
            kind=KIND,
            name=f"cpu{lane}",
            uuid="cpu:" + "+".join(map(str, mine)),
            gfx=gfx,
            cu_num=size,
            gpu_model=" ".join(model.split()),
            cores=mine,
            memory_bytes=memory,
        )
        for lane in range(lanes)
        for mine in (tuple(cores[lane * size : (lane + 1) * size]),)
    )


class CpuKind:
    """A set of cores, bound at exec."""

    bound_at_exec = True

    def exec_environment(self, device: Device) -> dict[str, str]:
        threads = str(len(device.cores))
        return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}

    def prepare_process(self, device: Device) -> None:
        os.sched_setaffinity(0, device.cores)

    def bind(self, device: Device) -> str:
        import torch

        torch.set_num_threads(len(device.cores))
        if device.memory_bytes:
            # Under overcommit a memory hog would take the host down before MemoryError came; the limit counts from what
            # the imports have mapped already.
            limit = _data_bytes() + device.memory_bytes
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
        mine = os.sched_getaffinity(0)
        return "cpu:" + "+".join(map(str, sorted(mine)))

    def probe(self) -> None:
        import torch

        got = torch.arange(6, dtype=torch.float32).reshape(2, 3) @ torch.ones(3, 1)
        if got.flatten().tolist() != [3.0, 12.0]:
            raise RuntimeError(f"a 2x3 by 3x1 product gave {got.flatten().tolist()} instead of [3.0, 12.0]")

    def synchronize(self) -> None:
        """CPU work is done when its call returns."""

    def empty_cache(self) -> None:
        """Nothing is cached."""


def _data_bytes() -> int:
    """Private writable memory that is mapped, as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
