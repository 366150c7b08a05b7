"""From visible GPUs to lanes.

::

    NVML, else a child with torch ──▶ VisibleGpu: facts + its word of the mask ──▶ asked for ──▶ Device
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from aiter_tuning.devices import cuda, hip
from aiter_tuning.devices.conditions import driver_of_kernel
from aiter_tuning.devices.cpu import MEMORY_SHARE, available_memory_bytes
from aiter_tuning.devices.device import Device, NoDeviceError
from aiter_tuning.devices.host_cores import reserved_cores
from aiter_tuning.devices.identity import GpuFacts, normal_uuid
from aiter_tuning.devices.nvml import CannotTellError, driver_version, nvml_module, visible_gpus
from aiter_tuning.devices.peaks import last_level_cache_bytes
from aiter_tuning.devices.torch_facts import TorchBuild, ask_torch, torch_build
from aiter_tuning.devices.visibility import Mask, compose, distinct, outer_mask

_KINDS = {"cuda": cuda.KIND, "hip": hip.KIND}
_DRIVER_FILES = {
    "cuda": ("/dev/nvidiactl", "/dev/dxg", "/dev/nvmap", "/dev/nvgpu", "/proc/driver/nvidia"),
    "hip": ("/dev/kfd", "/dev/dxg"),
}
"""What a working driver leaves; without any of them torch need not be asked, which takes seconds."""


class VisibleGpu(NamedTuple):
    """A GPU that the user's surroundings let through."""

    position: int
    """Among the visible ones: torch's number for it."""
    word: str
    """Its worker's mask."""
    facts: GpuFacts


def gpu_build(kind: str | None = None) -> TorchBuild:
    """The installed torch, if it drives ``kind`` of GPU; None: either.

    Raises:
        NoDeviceError: it does not.
    """
    build = torch_build()
    if build.kind == "cpu" or kind not in (None, build.kind):
        wanted = {"cuda": "CUDA", "hip": "ROCm", None: "CUDA or ROCm"}[kind]
        raise NoDeviceError(f"no visible GPU: {build}; install a torch for {wanted}, or measure on the CPU")
    return build


def find_gpus(kind: str) -> tuple[tuple[VisibleGpu, ...], Mask]:
    """The GPUs that are visible, in torch's order, and the mask that they were seen through. Creates no context.

    Raises:
        NoDeviceError: there is none; the message says why.
    """
    mask = outer_mask(kind, os.environ)
    if mask.words == ():
        raise NoDeviceError(f"no visible GPU: {mask.variable}={os.environ[mask.variable]!r} hides every device")
    if not any(map(os.path.exists, _DRIVER_FILES[kind])):
        name = {"cuda": "NVIDIA", "hip": "AMD"}[kind]
        raise NoDeviceError(
            f"no visible GPU: no {name} driver is loaded here (none of {', '.join(_DRIVER_FILES[kind])})"
        )
    found = _by_nvml(mask) if kind == "cuda" else None
    if found is None:
        found = _by_torch(kind, mask)
    if not found:
        raise NoDeviceError(f"no visible GPU: the driver shows none under {mask}")
    return tuple(VisibleGpu(position, word, facts) for position, (facts, word) in enumerate(found)), mask


def _by_nvml(mask: Mask) -> list[tuple[GpuFacts, str]] | None:
    """None: NVML is not there, or cannot tell what CUDA shows."""
    nvml = nvml_module()
    if nvml is None:
        return None
    try:
        return visible_gpus(nvml, mask, os.environ)
    except CannotTellError:
        return None


def _by_torch(kind: str, mask: Mask) -> list[tuple[GpuFacts, str]]:
    seen = ask_torch(kind, mask)
    words = tuple(compose(None, position) for position in range(len(seen))) if mask.words is None else mask.words
    by_word = dict(zip(distinct(words), seen, strict=False))  # the runtime drops what is behind an unknown word
    if kind == "hip":
        by_word = _partitions_told_apart(by_word)
    known = takewhile(by_word.__contains__, words)
    return [(_named(by_word[word], word), word) for word in known]


def _partitions_told_apart(by_word: dict[str, GpuFacts]) -> dict[str, GpuFacts]:
    """Compute partitions of a card get ids of their own.

    Until amdgpu gave each partition an id (2025), all of a card had the card's; they have one PCI address anyway. HIP
    knows them by number, and so does who made the mask.
    """
    cards = Counter(map(_id_of, by_word.values()))
    return {
        word: facts._replace(uuid=f"{_id_of(facts)}/{word}", parent_uuid=facts.uuid)
        if cards[_id_of(facts)] > 1
        else facts
        for word, facts in by_word.items()
    }


def _id_of(facts: GpuFacts) -> str:
    return facts.uuid or f"PCI {facts.pci or 'unknown'}"


def _named(facts: GpuFacts, word: str) -> GpuFacts:
    """A MIG instance is called what its mask calls it; torch may give it the id of the whole GPU."""
    if not word.upper().startswith("MIG-"):
        return facts
    return facts._replace(uuid=normal_uuid(word), parent_uuid=facts.uuid)


def choose(gpus: Sequence[VisibleGpu], wanted: str, mask: Mask) -> VisibleGpu:
    """The GPU that a person calls ``1``, ``cuda:1``, ``GPU-8a52…`` (a beginning will do) or ``MIG-…``.

    Raises:
        NoDeviceError: there is none, or there are several.
    """
    name = wanted.strip()
    for prefix in ("cuda:", "hip:"):
        name = name.removeprefix(prefix)
    if name.isdigit():
        found = [gpu for gpu in gpus if str(gpu.position) == (name.lstrip("0") or "0")]
    else:
        start = normal_uuid(name)
        found = [gpu for gpu in gpus if gpu.facts.uuid.startswith(start)]
        found = [gpu for gpu in found if gpu.facts.uuid == found[0].facts.uuid][:1] if _one_device(found) else found
    if len(found) == 1:
        return found[0]
    there = "; ".join(f"{gpu.position}: {gpu.facts.identity.gpu_model} {gpu.facts.uuid}" for gpu in gpus)
    problem = "no visible GPU" if not found else "more than one visible GPU"
    raise NoDeviceError(f"{problem} {wanted}: there {'is' if len(gpus) == 1 else 'are'} {there} ({mask})")


def _one_device(gpus: Sequence[VisibleGpu]) -> bool:
    return len({gpu.facts.uuid for gpu in gpus}) == 1


def lanes_on(kind: str, gpus: Sequence[VisibleGpu]) -> tuple[Device, ...]:
    """A lane on each of the GPUs; one that comes twice gets two lanes, which disturb each other."""
    driver = driver_of_kernel(kind) or _nvml_driver(kind)
    cores = reserved_cores([gpu.facts.pci for gpu in gpus])
    host_memory = int(available_memory_bytes() * MEMORY_SHARE) // max(1, len(gpus))
    sharing = Counter(_id_of(gpu.facts) for gpu in gpus)
    names: Counter[str] = Counter()
    lanes = []
    for gpu, mine in zip(gpus, cores, strict=True):
        facts, name = gpu.facts, f"{kind}{gpu.position}"
        names[name] += 1
        settings = {
            "index": str(gpu.position),
            "mask": gpu.word,
            "pci": facts.pci,
            "memory_bytes": str(facts.memory_bytes),
            "l2_bytes": str(facts.l2_bytes),
            "llc_bytes": str(last_level_cache_bytes(facts.identity, facts.l2_bytes)),
            "driver": driver,
        }
        if facts.parent_uuid:
            settings["parent_uuid"] = facts.parent_uuid
        if (facts.uuid or facts.pci) and sharing[_id_of(facts)] > 1:
            settings["shared"] = str(sharing[_id_of(facts)])
        lanes.append(
            Device(
                kind=_KINDS[kind],
                name=name if names[name] == 1 else f"{name}#{names[name]}",
                uuid=_id_of(facts),
                gfx=facts.identity.gfx,
                cu_num=facts.identity.cu_num,
                gpu_model=facts.identity.gpu_model,
                torch_device="cuda:0",
                cores=mine,
                memory_bytes=host_memory,
                settings=settings,
            )
        )
    return tuple(lanes)


def _nvml_driver(kind: str) -> str:
    nvml = nvml_module() if kind == "cuda" else None
    return driver_version(nvml) if nvml is not None else ""
