"""A device to measure on, and the seam between the pool and a kind of device.

The pool knows no vendor. It hands a :class:`Device` to a worker, and the worker loads the device's
:class:`DeviceKind`, which knows how to bind it, whether it is healthy, and when its work is done. A kind is named by
``module:class``, so that a test stands for hardware that the machine lacks with a class of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class NoDeviceError(RuntimeError):
    """There is nothing to measure on; the message says what was looked for and what to do."""


@dataclass(frozen=True)
class Device:
    """One device, as tuner, lookup and worker all see it."""

    kind: str
    """``module:class`` of its :class:`DeviceKind`."""
    name: str
    """Short, for progress lines: ``cpu0``, ``cuda3``."""
    uuid: str
    """Stable id that goes into records."""
    gfx: str
    """Arch name: ``sm90``, ``gfx950``; on a CPU the ISA level, ``x86-64-v4``."""
    cu_num: int
    """Compute units; on a CPU the cores of the lane."""
    gpu_model: str
    """Marketing name of the device or processor."""
    torch_device: str = "cpu"
    """What the worker passes to torch once it is bound: ``cpu``, ``cuda:0``."""
    cores: tuple[int, ...] = ()
    """Host cores reserved for this lane; empty: all. A CPU lane runs on these, a GPU lane may use others, too."""
    memory_bytes: int = 0
    """Host memory that the lane may use; 0: unknown."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Whatever else its kind needs. Of a GPU: ``index`` among the visible ones, ``mask`` of its worker, ``pci``,
    ``memory_bytes``, ``l2_bytes``, ``llc_bytes`` (last cache before memory; "0": unknown), ``driver``; ``parent_uuid``
    of a MIG instance or compute partition, ``shared`` (number of lanes) where several lanes are on one GPU."""


class DeviceKind(Protocol):
    """What differs between kinds of device. Works in the worker; the parent only asks for ``exec_environment``."""

    bound_at_exec: bool
    """Whether the environment has to be there when the process starts; a standby then serves one lane only."""

    def exec_environment(self, device: Device) -> dict[str, str]:
        """Environment variables that bind the device; set at exec if ``bound_at_exec``, else just before ``bind``."""
        ...

    def prepare_process(self, device: Device) -> None:
        """Called first thing in the worker, before torch is imported, where ``bound_at_exec``."""
        ...

    def bind(self, device: Device) -> str:
        """Takes the device (torch is imported by now); returns the uuid of what it really got."""
        ...

    def probe(self) -> None:
        """Raises unless a small piece of work gives the right result."""
        ...

    def synchronize(self) -> None:
        """Returns when all work given to the device is done; raises what that work raised."""
        ...

    def empty_cache(self) -> None:
        """Gives unused memory back."""
        ...


def load_kind(name: str) -> DeviceKind:
    """The kind named ``module:class``."""
    module, _, cls = name.partition(":")
    kind: DeviceKind = getattr(importlib.import_module(module), cls)()
    return kind
