"""The clock that reads a candidate's latency.

::

    sampling ── read(call, calls) ──▶ Timer ── func(*args, **kwargs) × calls ──▶ microseconds a call
             ── prepare, burst(calls) ──▶ BurstTimer ── graph, events, records ──▶ a sample for each call or replay

A timer is one small object made for one candidate, so that a GPU's timer may keep a captured graph or a ring of input
copies between its readings. How often to read, and when to stop, is the business of
:mod:`~aiter_tuning.measure.sampling`. The timers of a GPU are in :mod:`aiter_tuning.measure.gpu`, which is imported
only where one is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from aiter_tuning.devices.device import DeviceKind


class Call(NamedTuple):
    """A candidate with its arguments."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


NO_GRAPH = "no_graph"
"""It could not be captured, so that single calls were timed."""
LAUNCH_BOUND = "launch_bound"
"""Outside a graph the host takes longer to launch a call than the device to run it."""
HOT_CACHE = "hot_cache"
"""Calls may have found their inputs in the cache: that was asked for, or there was no memory for anything else."""
FALLBACK_TIMER = "fallback_timer"
"""Another timer was asked for than the one that the record names."""


class NothingTimedError(RuntimeError):
    """A candidate's work did not run where it is timed, so that its latency cannot be told."""

    def __init__(self) -> None:
        super().__init__(
            "no time can be told: its calls put no work on the current stream, or left work running on another stream "
            "that the current one does not wait for"
        )


class Timer(Protocol):
    """Reads how long a call takes."""

    name: str
    """What records call it."""

    def read(self, call: Call, calls: int) -> float:
        """Makes exactly ``calls`` calls, back to back, and returns microseconds a call; raises what they raise."""
        ...


class Burst(NamedTuple):
    """What timing many calls at once gave."""

    samples_us: Sequence[float]
    """Microseconds a call, one for each call or for each replay of several."""
    calls: int
    """Calls made."""
    anew: bool = False
    """The samples of earlier bursts count no more: they were read in another way."""


class BurstTimer(Protocol):
    """A timer that gives many samples at once, because what it needs for one costs more than the calls."""

    name: str
    calls_per_sample: int
    """Known once it is prepared."""
    rough_us: float
    """What a call took while warming up, launching included; NaN if it was not warmed up."""
    floor_us: float
    """What it took at least, without launching; 0 if that is not known."""
    flags: tuple[str, ...]
    """What the record should say about the samples; complete after the last burst."""
    unclean: str
    """Why the process should be replaced before it is trusted with another candidate; empty: it need not be."""

    def prepare(
        self,
        call: Call,
        *,
        warmup: int,
        iters: int,
        restore: Callable[[], None] | None,
        hurry: bool,
        hopeless_us: float = math.inf,
    ) -> None:
        """Gets ready to time ``call``; nothing is done the second time.

        Args:
            call: the candidate.
            warmup: calls before the timed ones.
            iters: timed calls that will be asked for in all.
            restore: puts the inputs back before each single call.
            hurry: a slow candidate is warmed up with fewer calls.
            hopeless_us: with a ``floor_us`` above this nothing more is done; such a call is not to be timed.
        """
        ...

    def burst(self, calls: int) -> Burst:
        """Makes at least ``calls`` calls, rounded up to whole samples; raises what they raise."""
        ...

    def close(self) -> None:
        """Lets go of copies and graphs."""
        ...


class WallTimer:
    """Host time around the calls and the wait for their work: right on a CPU, an upper bound elsewhere."""

    name = "wall"

    def __init__(self, kind: DeviceKind) -> None:
        self._synchronize = kind.synchronize

    def read(self, call: Call, calls: int) -> float:
        func, args, kwargs = call
        synchronize = self._synchronize
        synchronize()
        start = perf_counter_ns()
        for _ in repeat(None, calls):
            func(*args, **kwargs)
        synchronize()
        return (perf_counter_ns() - start) / (1000.0 * calls)


TIMERS: Mapping[str, str] = {
    "auto": "the best that works here: wall on a CPU",
    "kernel": "device time from CUPTI's records of each kernel",
    "graph": "events around replays of a graph",
    "event": "events around each call",
    "profiler": "device time from torch's profiler",
    "wall": "host time",
}
"""Every timer by name, and what it reads."""


def check_timer(name: str, device_type: str) -> None:
    """Makes sure that there is such a timer for such a device, as torch names its type.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in TIMERS:
        raise ValueError(f"there is no timer {name!r}; choose from: {', '.join(sorted(TIMERS))}")
    if device_type == "cpu" and name not in ("auto", "wall"):
        raise ValueError(f"the {name} timer needs a GPU; on a CPU choose 'wall', or 'auto' for the best everywhere")


def timer_factory(
    name: str, device_type: str = "cpu", *, cold_cache: bool = True, cache_bytes: int = 0
) -> Callable[[DeviceKind], Timer | BurstTimer]:
    """What makes the timer called ``name`` for a candidate.

    Args:
        name: one of :data:`TIMERS`.
        device_type: as torch names it, ``cpu`` or ``cuda``.
        cold_cache: whether each call is to find its inputs outside the cache; only GPUs' timers know how.
        cache_bytes: the last-level cache; 0: as torch tells.

    Raises:
        ValueError: there is no such timer here.
    """
    check_timer(name, device_type)
    if device_type == "cpu" or name == "wall":
        return WallTimer
    from aiter_tuning.measure.gpu.timer_choice import timers_of_this_gpu

    return lambda kind: timers_of_this_gpu(kind).new(name, cold_cache=cold_cache, cache_bytes=cache_bytes)
