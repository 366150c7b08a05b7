"""Times that no device of this kind could reach: the clock, or the candidate, is wrong.

A candidate that leaves out half of its work is usually found by comparing; one that is timed wrongly
(a launch that failed in silence, work on another stream) looks like a breakthrough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from aiter_tuning.devices.device import Device
from aiter_tuning.devices.peaks import peaks_of

MARGIN = 1.5
"""Published peaks are exceeded by boost clocks and by counting bytes that never leave the cache."""
_ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


class Work(Protocol):
    """What one call has to do; a candidate's ``func.work``, where it has one."""

    @property
    def flops(self) -> float: ...
    @property
    def bytes(self) -> float: ...
    @property
    def workspace_bytes(self) -> float: ...


def work_of(func: object) -> Work | None:
    """What a candidate says about itself; an attribute that only happens to be called ``work`` says nothing."""
    work = getattr(func, "work", None)
    return work if hasattr(work, "workspace_bytes") else None


class Limits(NamedTuple):
    """The most that a device does in a second; 0: unknown."""

    flops_per_s: Mapping[int, float]
    """By the bytes of the smallest operands: 1, 2, 4."""
    bytes_per_s: float = 0.0

    def of_operands(self, itemsize: int) -> float:
        """Peak FLOP/s with operands of so many bytes, or wider ones."""
        known = [peak for size, peak in self.flops_per_s.items() if size >= min(itemsize, 4)]
        return max(known, default=0.0)


def limits_of(device: Device) -> Limits | None:
    """What a device can do at most; None where it is not known."""
    peaks = peaks_of(device)
    if peaks is None:
        return None
    by_size: dict[int, float] = {}
    for dtype, tflops in peaks.tflops.items():
        size = _ITEM_BYTES.get(dtype, 1)
        by_size[size] = max(by_size.get(size, 0.0), tflops * 1e12)
    return Limits(by_size, peaks.bytes_per_s)


def implausible(us: float, work: Work, *, peak_flops_per_s: float, peak_bytes_per_s: float, cold_cache: bool) -> str:
    """What is impossible about a latency; empty if nothing is.

    Args:
        us: microseconds a call.
        work: of that call.
        peak_flops_per_s: of the device with such operands; 0: unknown.
        peak_bytes_per_s: of its memory; 0: unknown.
        cold_cache: whether the inputs came from memory; from the cache they may come faster than memory allows.
    """
    seconds = us * 1e-6
    if 0 < MARGIN * peak_flops_per_s * seconds < work.flops:
        return _says(us, work.flops, peak_flops_per_s, "TFLOP/s", 1e12)
    if cold_cache and 0 < MARGIN * peak_bytes_per_s * seconds < work.bytes:
        return _says(us, work.bytes, peak_bytes_per_s, "GB/s", 1e9)
    return ""


def _says(us: float, amount: float, peak: float, unit: str, scale: float) -> str:
    reached = amount / (us * 1e-6) / scale
    return f"{us:.3f} us cannot be: that is {reached:.4g} {unit}, and the device's peak is {peak / scale:.4g}"
