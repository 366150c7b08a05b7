"""What a GPU is called in keys and records; one accessor for the tuner, its workers and the lookup.

``gfx, cu_num, gpu_model`` are part of every tuned row's key, so whoever writes a row and whoever looks it up must get
them from the same place: torch's device properties. Discovery that gets them elsewhere (NVML, which is quicker) is
checked against this when a worker binds its device.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiter_tuning.devices.amd_names import NAMELESS, name_by_pci
from aiter_tuning.quantities import counted

_RDNA = re.compile(r"gfx1[01]\d\d|gfx120\d")


class Identity(NamedTuple):
    """The device's part of a tuned row's key."""

    gfx: str
    """``sm90``, ``gfx950``; on a CPU the ISA level."""
    cu_num: int
    """SMs, CUs, or the cores of a CPU lane."""
    gpu_model: str

    def __str__(self) -> str:
        unit = "CU" if self.gfx.startswith(("gfx", "sm")) else "core"
        return f"{self.gpu_model} ({self.gfx}, {counted(self.cu_num, unit)})"


class GpuFacts(NamedTuple):
    """What is to be known of a GPU before work is planned for it."""

    uuid: str
    """``GPU-…``, as masks and vendors' tools spell it; ``MIG-…`` for a part of one; empty: it has none."""
    identity: Identity
    pci: str = ""
    """``0000:1b:00.0``; empty: unknown."""
    memory_bytes: int = 0
    l2_bytes: int = 0
    """0: unknown."""
    parent_uuid: str = ""
    """The whole GPU's where this is a MIG instance, or a compute partition that has none of its own."""


def facts_of(properties: Any, *, hip: bool, environ: Mapping[str, str]) -> GpuFacts:
    """The facts in torch's device properties.

    Args:
        properties: ``torch.cuda.get_device_properties(i)``.
        hip: whether that torch is built for ROCm.
        environ: the process's environment, which may change what HIP counts.
    """
    return GpuFacts(
        uuid=uuid_of(properties, hip=hip),
        identity=identity_of(properties, hip=hip, environ=environ),
        pci=_pci_of(properties),
        memory_bytes=int(properties.total_memory),
        l2_bytes=int(getattr(properties, "L2_cache_size", 0)),
    )


def identity_of(properties: Any, *, hip: bool, environ: Mapping[str, str]) -> Identity:
    """The key fields in torch's device properties."""
    model = " ".join(str(properties.name).split())
    units = int(properties.multi_processor_count)
    if not hip:
        return Identity(f"sm{properties.major}{properties.minor}", units, model)
    # major and minor are pseudo capabilities here: gfx90a looks like sm90.
    gfx = str(properties.gcnArchName).split(":")[0]
    # HIP counts work-group processors on RDNA, two CUs each, unless it is told otherwise (ROCm/aiter#4322: a table
    # written with one count and read with the other serves nobody).
    if _RDNA.fullmatch(gfx) and environ.get("GPU_ENABLE_WGP_MODE", "1") != "0":
        units *= 2
    if model in NAMELESS:
        model = name_by_pci(_pci_of(properties)) or model or f"AMD {gfx}"
    return Identity(gfx, units, model)


def uuid_of(properties: Any, *, hip: bool) -> str:
    """The UUID as masks spell it, ``GPU-…``; empty where torch does not tell it."""
    uuid = getattr(properties, "uuid", None)
    if uuid is None:
        return ""
    if hip:
        # The 16 bytes are the 16 hexadecimal digits of the chip's number, spelled out; "XX" where it has none, as on
        # many Radeons (ROCm/numba-hip#7): all of a host would have one id.
        digits = bytes(uuid.bytes).decode("latin-1").rstrip("\0").lower()
        if not digits.strip("0x"):
            return ""
        if re.fullmatch(r"[0-9a-f]{16}", digits):
            return f"GPU-{digits}"
    return normal_uuid(str(uuid))


def normal_uuid(text: str) -> str:
    """One spelling for a UUID: lower-case digits behind ``GPU-`` or ``MIG-``."""
    prefix, _, rest = text.strip().partition("-")
    if prefix.upper() in ("GPU", "MIG"):
        return f"{prefix.upper()}-{rest.lower()}"
    return f"GPU-{text.strip().lower()}"


def pci_address(domain: int, bus: int, device: int) -> str:
    """``0000:1b:00.0``, as the kernel and the vendors' tools write it."""
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _pci_of(properties: Any) -> str:
    try:
        return pci_address(properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
    except AttributeError:  # an older torch
        return ""


def device_identity(torch_device: str | int | None = None) -> Identity:
    """Key fields of a device of this process: what a lookup asks. Free after the first call.

    Args:
        torch_device: ``"cuda:1"``, ``1``, ``"cpu"``; None: torch's current GPU, else the CPU.
    """
    import torch

    device = torch.device("cuda", torch_device) if isinstance(torch_device, int) else torch_device
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved.type == "cpu":
        return _cpu_identity()
    unnumbered = ":" not in str(resolved)
    return _gpu_identity(torch.cuda.current_device() if unnumbered else resolved.index)


@functools.cache
def _gpu_identity(index: int) -> Identity:
    import torch

    properties = torch.cuda.get_device_properties(index)
    return identity_of(properties, hip=torch.version.hip is not None, environ=os.environ)


@functools.cache
def _cpu_identity() -> Identity:
    from aiter_tuning.devices.cpu import cpu_lanes

    (lane,) = cpu_lanes(1)
    return Identity(lane.gfx, lane.cu_num, lane.gpu_model)
