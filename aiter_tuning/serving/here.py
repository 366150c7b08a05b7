"""Which device a lookup asks for, without creating a context on it.

A process that has initialised CUDA or HIP is asked through torch, for its current device. Any other one is told by
discovery what its first device is: that reads NVML or sysfs, and on AMD asks torch in a child, once.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from aiter_tuning.devices.identity import Identity, device_identity

DeviceLike = str | int | Identity | None
"""What torch calls it (``"cuda:1"``, ``1``, ``"cpu"``), its identity, or None: where this process works."""


def identity_here(kinds: Sequence[str], device: DeviceLike = None) -> Identity:
    """The key fields of the device that serves.

    Args:
        kinds: what the operator runs on; one for CPUs only is asked about the CPU on a host with GPUs, too.
        device: which, if not the process's own.

    Raises:
        NoDeviceError, ValueError: there is no such device.
    """
    if isinstance(device, Identity):
        return device
    if device == "cpu" or (device is None and set(kinds) == {"cpu"}):
        return _first("cpu")
    if device is not None or _initialised():
        return device_identity(device)
    return _first(None)


def _initialised() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


@functools.cache
def _first(request: str | None) -> Identity:
    from aiter_tuning.devices.discovery import discover

    found = discover(request)[0]
    return Identity(found.gfx, found.cu_num, found.gpu_model)
