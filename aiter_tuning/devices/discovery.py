"""Which devices a caller's words stand for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.devices.device import Device, NoDeviceError
from aiter_tuning.devices.gpu_lanes import choose, find_gpus, gpu_build, lanes_on
from aiter_tuning.devices.identity import Identity

DeviceRequest = str | Sequence[int | str | Device] | None
"""None: all visible GPUs, else one CPU lane. ``"cpu"``, ``"cuda"``, ``"hip"``, indices, UUIDs, or ready devices."""

_NAME = re.compile(r"((cuda|hip):)?[0-9]+|(GPU|MIG)-.+", re.IGNORECASE)
_EXPECTED = "expected 'cpu', 'cuda', 'hip', or indices and UUIDs of visible GPUs"


def discover(request: DeviceRequest = None, mp_num: int = 0) -> tuple[Device, ...]:
    """The devices to measure on. Creates no context on any of them.

    Args:
        request: see :data:`DeviceRequest`; a text may also list indices and UUIDs, separated by commas. An index is the
            position among the visible GPUs, as torch counts them. A GPU that is named twice gets two lanes.
        mp_num: how many; under 1 or above what there is: all.

    Raises:
        NoDeviceError: there is no such device.
        ValueError: the request means nothing.
    """
    if request == "cpu":
        return cpu_lanes(mp_num)
    if request is None:
        try:
            return _all_gpus(None, mp_num)
        except NoDeviceError:
            return cpu_lanes(mp_num)
    if request in ("cuda", "hip"):
        return _all_gpus(str(request), mp_num)
    named = request.split(",") if isinstance(request, str) else list(request)
    if not named:
        raise ValueError("devices is an empty list: name at least one, or leave it out")
    ready = [item for item in named if isinstance(item, Device)]
    if ready:
        if len(ready) != len(named):
            raise ValueError(f"devices={request!r}: ready devices and names cannot be mixed")
        return _first(tuple(ready), mp_num)
    return _first(_named_gpus([_checked(item) for item in named]), mp_num)


class MixedModelsError(ValueError):
    """Devices of several models where one is needed; the message says how to name those of each."""


def require_one_model(devices: Sequence[Device]) -> None:
    """Makes sure that the rows of one device are those of all.

    What is tuned is written under one ``gfx, cu_num, gpu_model``, and its candidates, its limits and what is compiled
    ahead follow from these. Latencies taken on another model would be published under a name that is not theirs.

    Raises:
        MixedModelsError: they are of several models, or MIG instances of several sizes.
    """
    by_model: dict[Identity, list[str]] = {}
    for device in devices:
        identity = Identity(device.gfx, device.cu_num, device.gpu_model)
        by_model.setdefault(identity, []).append(device.settings.get("index", device.uuid))
    if len(by_model) > 1:
        choices = "; ".join(f"--device {','.join(names)} for {identity}" for identity, names in by_model.items())
        raise MixedModelsError(f"the devices are of {len(by_model)} models and a run tunes for one: {choices}")


def device_notes(devices: Sequence[Device]) -> tuple[str, ...]:
    """What a person should know before trusting times from these devices."""
    notes = []
    for uuid, lanes in Counter(device.uuid for device in devices).items():
        if lanes > 1:
            names = ", ".join(device.name for device in devices if device.uuid == uuid)
            notes.append(
                f"{names} are lanes on one GPU ({uuid}): they disturb each other, their times are not trustworthy"
            )
    if len({(device.gfx, device.cu_num, device.gpu_model) for device in devices}) > 1:
        models = ", ".join(dict.fromkeys(f"{device.gpu_model} ({device.gfx})" for device in devices))
        notes.append(f"the devices differ: {models}; times of different models are not comparable")
    return tuple(notes)


def kind_of(device: Device) -> str:
    """``cpu``, ``cuda`` or ``hip``: what a family calls the kinds it runs on."""
    return device.kind.rpartition(":")[0].rpartition(".")[2]


def _checked(item: int | str | Device) -> str:
    name = str(item).strip()
    if isinstance(item, bool) or not _NAME.fullmatch(name):
        raise ValueError(f"devices names {item!r}: {_EXPECTED}")
    return name


def _all_gpus(kind: str | None, mp_num: int) -> tuple[Device, ...]:
    kind = gpu_build(kind).kind
    gpus, _ = find_gpus(kind)
    return lanes_on(kind, gpus[: mp_num if mp_num >= 1 else None])


def _named_gpus(names: Sequence[str]) -> tuple[Device, ...]:
    kind = gpu_build().kind
    gpus, mask = find_gpus(kind)
    return lanes_on(kind, [choose(gpus, name, mask) for name in names])


def _first(devices: tuple[Device, ...], mp_num: int) -> tuple[Device, ...]:
    return devices[: mp_num if mp_num >= 1 else None]
