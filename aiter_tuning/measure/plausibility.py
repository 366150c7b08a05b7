"""Times that no device of this kind could reach: the clock, or the candidate, is wrong.

Pure functions. A candidate that leaves out half of its work is usually found by comparing; one that is timed wrongly
(a launch that failed in silence, work on another stream) looks like a breakthrough.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

MARGIN = 1.5
"""Published peaks are exceeded by boost clocks and by counting bytes that never leave the cache."""


class Work(Protocol):
    """What one call has to do; a candidate's ``func.work``, where it has one."""

    flops: float
    bytes: float
    workspace_bytes: float


class Peaks(NamedTuple):
    """The most that a device does in a second; 0: unknown."""

    flops_per_s: float = 0.0
    """In the fastest type that the candidate may compute in."""
    bytes_per_s: float = 0.0


def implausible(us: float, work: Work, peaks: Peaks, *, cold_cache: bool) -> str:
    """What is impossible about a latency; empty if nothing is.

    Args:
        us: microseconds a call.
        work: of that call.
        peaks: of the device.
        cold_cache: whether the inputs came from memory; from the cache they may come faster than memory allows.
    """
    seconds = us * 1e-6
    if peaks.flops_per_s > 0 and work.flops > MARGIN * peaks.flops_per_s * seconds:
        return _says(us, work.flops, peaks.flops_per_s, "TFLOP/s", 1e12)
    if cold_cache and peaks.bytes_per_s > 0 and work.bytes > MARGIN * peaks.bytes_per_s * seconds:
        return _says(us, work.bytes, peaks.bytes_per_s, "GB/s", 1e9)
    return ""


def _says(us: float, amount: float, peak: float, unit: str, scale: float) -> str:
    reached = amount / (us * 1e-6) / scale
    return f"{us:.3f} us cannot be: that is {reached:.4g} {unit}, and the device's peak is {peak / scale:.4g}"
