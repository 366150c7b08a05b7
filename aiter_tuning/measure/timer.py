"""The clock that reads a candidate's latency.

::

    sampling ── read(call, calls) ──▶ Timer ── func(*args, **kwargs) × calls ──▶ microseconds a call

A timer is one small object made for one candidate, so that a GPU's timer may keep a captured graph or a ring of input
copies between its readings. How often to read, and when to stop, is the business of
:mod:`~aiter_tuning.measure.sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from aiter_tuning.devices.device import DeviceKind


class Call(NamedTuple):
    """A candidate with its arguments."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Timer(Protocol):
    """Reads how long a call takes."""

    name: str
    """What records call it."""

    def read(self, call: Call, calls: int) -> float:
        """Makes exactly ``calls`` calls, back to back, and returns microseconds a call; raises what they raise."""
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


TIMERS: Mapping[str, Callable[[DeviceKind], Timer]] = {"wall": WallTimer}
"""Every timer by name."""


def timer_factory(name: str) -> Callable[[DeviceKind], Timer]:
    """What makes the timer called ``name`` for a candidate.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    try:
        return TIMERS[name]
    except KeyError:
        raise ValueError(f"there is no timer {name!r}; choose from: {', '.join(sorted(TIMERS))}") from None
