"""What a kernel is compiled for, from an arch name alone, and whether the result fits there.

A process that compiles has no device to ask, so the limits come from a table, or from the device's settings where its
discovery has filled them in. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_KIB = 1024

SHARED_BYTES = {
    # What one block may use once it has opted in: CUDA's C programming guide, "technical specifications per compute
    # capability", less the 1 KiB a block that the system keeps from sm80 on.
    "sm70": 96 * _KIB,
    "sm75": 64 * _KIB,
    "sm80": 163 * _KIB,
    "sm86": 99 * _KIB,
    "sm87": 163 * _KIB,
    "sm89": 99 * _KIB,
    "sm90": 227 * _KIB,
    "sm100": 227 * _KIB,
    "sm103": 227 * _KIB,
    "sm110": 227 * _KIB,
    "sm120": 99 * _KIB,
    "sm121": 99 * _KIB,
    # LDS of a workgroup: the "shader ISA" documents of each generation.
    "gfx908": 64 * _KIB,
    "gfx90a": 64 * _KIB,
    "gfx942": 64 * _KIB,
    "gfx950": 160 * _KIB,
    "gfx1100": 64 * _KIB,
    "gfx1101": 64 * _KIB,
    "gfx1102": 64 * _KIB,
    "gfx1150": 64 * _KIB,
    "gfx1151": 64 * _KIB,
    "gfx1200": 64 * _KIB,
    "gfx1201": 64 * _KIB,
}

SHARED_SETTING = "shared_bytes"
"""Name in a device's settings for what its driver says, which wins over the table."""


class CompileTarget(NamedTuple):
    """The fields of Triton's ``GPUTarget``."""

    backend: str
    """``cuda`` or ``hip``."""
    arch: int | str
    """90, ``"gfx942"``."""
    warp_size: int


class Limits(NamedTuple):
    """What one block may use; None: not known, not checked."""

    shared_bytes: int | None = None
    tensor_columns: int | None = 512
    """Of tensor memory, which only Blackwell has; Triton's own limit."""
    threads: int | None = 1024


class Misfit(NamedTuple):
    """One limit that a kernel exceeds, in the words of Triton's ``OutOfResources``."""

    required: int
    limit: int
    what: str


def target_of(gfx: str) -> CompileTarget | None:
    """The target that an arch name stands for; None for a CPU or a name of no known form."""
    if match := re.fullmatch(r"sm(\d+)", gfx):
        return CompileTarget("cuda", int(match[1]), 32)
    if match := re.fullmatch(r"(gfx([0-9a-f]+))(?::.*)?", gfx):  # gfx942:sramecc+:xnack- is gfx942 to a compiler
        # GCN and CDNA (gfx9 and three digits in all) have waves of 64; what RDNA made of it, 32.
        return CompileTarget("hip", match[1], 64 if len(match[2]) == 3 else 32)
    return None


def limits_of(gfx: str, settings: Mapping[str, str] | None = None) -> Limits:
    """The limits of an arch, or those that its driver stated."""
    stated = (settings or {}).get(SHARED_SETTING)
    return Limits(int(stated) if stated else SHARED_BYTES.get(gfx.partition(":")[0]))


def misfit(metadata: Any, limits: Limits, warp_size: int) -> Misfit | None:
    """What a compiled kernel needs too much of; None if it fits.

    A config that needs 640 KB of shared memory compiles without complaint; the driver refuses it when it is loaded.
    """
    needs = (
        (getattr(metadata, "shared", None), limits.shared_bytes, "shared memory"),
        (getattr(metadata, "tmem_size", None), limits.tensor_columns, "tensor memory"),
        (getattr(metadata, "num_warps", 0) * warp_size, limits.threads, "threads"),
    )
    for required, limit, what in needs:
        if required is not None and limit is not None and required > limit:
            return Misfit(int(required), limit, what)
    return None
