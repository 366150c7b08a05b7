"""Which timer works on this worker's GPU: tried once, on a kernel that is known, before any candidate is timed.

::

    asked: auto ─▶ kernel ✗ (no cupti-python) ─▶ graph ✓        the reason for the log; a flag where it matters

A timer is taken only if what it reads of an addition of 16 MB agrees with events around it: a source of records
that belongs to another driver release may load, run and tell nonsense.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from aiter_tuning.devices.device import DeviceKind
from aiter_tuning.measure.gpu.accelerator import Accelerator, Gpu
from aiter_tuning.measure.gpu.activity import ActivitySource, ActivityUnavailableError
from aiter_tuning.measure.gpu.cupti_activity import CuptiActivity
from aiter_tuning.measure.gpu.cupti_buffers import loaded_library
from aiter_tuning.measure.gpu.device_timer import DeviceTimer, Mode
from aiter_tuning.measure.gpu.kineto_activity import KinetoActivity
from aiter_tuning.measure.statistics import median
from aiter_tuning.measure.timer import BurstTimer, Call, Timer, WallTimer
from aiter_tuning.status import describe, is_device_fault

_BEST_FIRST: Mapping[bool, Sequence[str]] = {
    False: ("kernel", "graph", "event"),
    True: ("graph", "profiler", "event"),
}
"""By whether it is HIP. Torch's profiler is not tried on CUDA unasked: its first session costs 5 s."""
_CHECK_BYTES = 16 << 20
_CHECK_CALLS = 24
_CHECK_WARMUP = 4
_SLACK_US = 3.0
_MOST_PER_EVENT = 1.25
_LEAST_PER_EVENT = 0.1


class TimerChoice(NamedTuple):
    """What is used for a name."""

    name: str
    reason: str
    """Why it is not the timer asked for or the best one; empty if it is."""
    fallback: bool
    """Whether records should say that another one was to be used."""
    readings_us: Mapping[str, float]
    """What each timer that was tried read of the known kernel."""


def disagreement(name: str, us: float, event_us: float) -> str:
    """What is wrong with a timer that reads ``us`` where events read ``event_us``; empty if they agree.

    Events include launching, which takes up to ten times as long as the known kernel; nothing may exceed them by more
    than noise.
    """
    if not (math.isfinite(us) and us > 0):
        return f"the {name} timer read {us} us of a known kernel"
    if us > _MOST_PER_EVENT * event_us + _SLACK_US or us < _LEAST_PER_EVENT * event_us:
        return f"the {name} timer read {us:.2f} us of a known kernel where events read {event_us:.2f}"
    return ""


class GpuTimers:
    """The timers of one GPU, chosen once."""

    def __init__(
        self,
        kind: DeviceKind,
        gpu: Accelerator,
        sources: Mapping[str, Callable[[], ActivitySource]],
        known_call: Callable[[], Call],
    ) -> None:
        """Takes what it is to choose from.

        Args:
            kind: the bound device.
            gpu: the same, as timers see it.
            sources: opens a source of records for a timer; raises ActivityUnavailableError.
            known_call: makes a call of a kernel that takes some microseconds.
        """
        self._kind = kind
        self._gpu = gpu
        self._open = sources
        self._known_call = known_call
        self._sources: dict[str, ActivitySource | None] = {}
        self._choices: dict[str, TimerChoice] = {}

    def choose(self, asked: str) -> TimerChoice:
        """The timer to use for ``asked``, one of :data:`aiter_tuning.measure.timer.TIMERS`.

        Raises:
            Exception: the device has failed.
        """
        choice = self._choices.get(asked)
        if choice is None:
            choice = self._choices[asked] = self._try_all(asked)
            if choice.fallback:
                sys.stderr.write(f"timing with '{choice.name}': {choice.reason}\n")
        return choice

    def new(self, asked: str, *, cold_cache: bool = True, cache_bytes: int = 0) -> Timer | BurstTimer:
        """A timer for a candidate; ``cache_bytes`` is 0 where only the GPU itself knows."""
        choice = self.choose(asked)
        if choice.name == "wall":
            return WallTimer(self._kind)
        mode = self._mode(choice.name)._replace(
            cold_cache=cold_cache, cache_bytes=cache_bytes, fallback=choice.fallback
        )
        return DeviceTimer(self._gpu, mode)

    def release(self) -> None:
        """Lets memory go that timers share."""
        self._gpu.release()

    def _mode(self, name: str) -> Mode:
        return Mode(name, self._source(name), wants_graph=name != "event")

    def _source(self, name: str) -> ActivitySource | None:
        if name not in self._sources:
            opener = self._open.get(name)
            self._sources[name] = None if opener is None else opener()
        return self._sources[name]

    def _try_all(self, asked: str) -> TimerChoice:
        best = _BEST_FIRST[self._gpu.is_hip]
        names = best if asked == "auto" else (asked, *(name for name in best if name != asked))
        readings: dict[str, float] = {}
        reasons: list[str] = []
        missing = False
        for name in names:
            try:
                if "event" not in readings:
                    readings["event"] = self._reading("event")
                if name not in readings:
                    readings[name] = self._reading(name)
            except ActivityUnavailableError as error:
                # That an optional package is not there is no news to somebody who did not ask for it.
                missing = missing or not isinstance(error.__cause__, ImportError)
                reasons.append(str(error))
                continue
            except Exception as error:
                if is_device_fault(error):
                    raise
                missing = True
                reasons.append(f"the {name} timer does not work here ({describe(error)})")
                continue
            wrong = disagreement(name, readings[name], readings["event"])
            if not wrong:
                fallback = name != asked and (asked != "auto" or missing)
                return TimerChoice(name, "; ".join(reasons), fallback, readings)
            missing = True
            reasons.append(wrong)
        return TimerChoice("wall", "; ".join(reasons), True, readings)

    def _reading(self, name: str) -> float:
        timer = DeviceTimer(self._gpu, self._mode(name)._replace(cold_cache=False))
        try:
            timer.prepare(self._known_call(), warmup=_CHECK_WARMUP, iters=_CHECK_CALLS, restore=None, hurry=False)
            us = median(timer.burst(_CHECK_CALLS).samples_us)
        finally:
            timer.close()
        if timer.name != name:
            raise RuntimeError(f"it fell back to {timer.name}")
        return us


def _add_of_known_size() -> Call:
    source = torch.ones(_CHECK_BYTES // 4, dtype=torch.float32, device="cuda")
    return Call(torch.add, (source, 1), {"out": torch.empty_like(source)})


def _records_of_kernels() -> ActivitySource:
    source = CuptiActivity.open(torch.version.cuda)
    out = torch.empty(1024, dtype=torch.float32, device="cuda")
    torch.cuda.synchronize()

    def launch() -> None:
        out.fill_(1.0)
        torch.cuda.synchronize()

    launch()  # its code is loaded before it is looked at
    source.read_buffers(loaded_library(), launch)
    return source


_timers: list[GpuTimers] = []
"""Of this process, which is bound to one GPU for its life."""


def timers_of_this_gpu(kind: DeviceKind) -> GpuTimers:
    """The timers of the GPU that this worker is bound to."""
    if not _timers:
        sources: dict[str, Callable[[], ActivitySource]] = {
            "kernel": _records_of_kernels,
            "profiler": KinetoActivity.open,
        }
        _timers.append(GpuTimers(kind, Gpu(), sources, _add_of_known_size))
    return _timers[0]


def release_timers() -> None:
    """Lets memory go that timers share; after a device fault there is nothing to let go in order."""
    with contextlib.suppress(Exception):
        for timers in _timers:
            timers.release()
