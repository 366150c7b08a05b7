"""Which devices a caller's words stand for."""

from __future__ import annotations

from collections.abc import Sequence

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.devices.device import Device, NoDeviceError

DeviceRequest = str | Sequence[int | str | Device] | None
"""None: all visible GPUs, else one CPU lane. ``"cpu"``, ``"cuda"``, ``"hip"``, indices, UUIDs, or ready devices."""


def discover(request: DeviceRequest = None, mp_num: int = 0) -> tuple[Device, ...]:
    """The devices to measure on.

    Args:
        request: see :data:`DeviceRequest`.
        mp_num: how many; under 1 or above what there is: all.

    Raises:
        NoDeviceError: there is no such device.
        ValueError: the request means nothing.
    """
    if request is None or request == "cpu":
        return cpu_lanes(mp_num)
    if isinstance(request, str):
        if request not in ("cuda", "hip"):
            raise ValueError(f"devices={request!r}: expected 'cpu', 'cuda', 'hip' or a list of indices or UUIDs")
        raise NoDeviceError(f"no visible GPU: {request} lanes are not supported yet; use 'cpu'")
    ready = [item for item in request if isinstance(item, Device)]
    if len(ready) != len(request):
        raise NoDeviceError(
            f"no visible GPU: devices={list(request)!r} names GPUs, which are not supported yet; use 'cpu'"
        )
    if not ready:
        raise ValueError("devices is an empty list: name at least one, or leave it out")
    return tuple(ready[: mp_num if mp_num >= 1 else None])
