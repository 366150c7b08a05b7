"""Times one candidate on a GPU: calls on a stream of their own, over a ring of inputs, read by events or by records.

::

    prepare:  copies of the inputs ─▶ warm up on the timed stream ─▶ capture a pass over the ring in a graph
    burst:    launches ─▶ samples

What a launch is, and what comes before it outside of what is read, is in :mod:`~aiter_tuning.measure.gpu.launches`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from aiter_tuning.measure.gpu.accelerator import Accelerator
from aiter_tuning.measure.gpu.activity import ActivityLostError, ActivitySource, Record, spans
from aiter_tuning.measure.gpu.launches import Launches
from aiter_tuning.measure.gpu.ring import MOST_COPIES, Ring
from aiter_tuning.measure.statistics import is_launch_bound, is_still_running, median
from aiter_tuning.measure.timer import (
    FALLBACK_TIMER,
    HOT_CACHE,
    LAUNCH_BOUND,
    NO_GRAPH,
    Burst,
    Call,
    NothingTimedError,
)

_REPLAY_US = 400.0
"""A replay between events lasts about so long where the ring is small: launching a graph costs a few microseconds."""
_RECORD_TRIES = 2
"""How often a burst is made again because records were lost, before events are read instead."""
_SUSPICIONS = 3
"""How often a burst may seem to leave work running before that is believed."""
_HURRIED_WARMUP_S = 0.01
_EVENT_US = 10.0
"""More than two events and the way to the device add to a call."""
_FLOOR_CALLS = 3
"""Warm-up calls before the fastest of them says anything."""
_KEPT_SAMPLES = 256
"""Enough to tell whether a candidate is launch-bound."""


class Mode(NamedTuple):
    """How a timer times, as far as it is up to the caller."""

    name: str
    source: ActivitySource | None
    """None: events."""
    wants_graph: bool
    cold_cache: bool = True
    cache_bytes: int = 0
    """The last-level cache; 0: as the GPU itself tells."""
    fallback: bool = False
    """Whether another timer was asked for."""


class DeviceTimer:
    """A burst timer; see :class:`aiter_tuning.measure.timer.BurstTimer`."""

    def __init__(self, gpu: Accelerator, mode: Mode) -> None:
        self.name = mode.name
        self.calls_per_sample = 1
        self.rough_us = math.nan
        self.floor_us = 0.0
        self.gpu = gpu
        self.launches = Launches(gpu, cold_cache=mode.cold_cache, cache_bytes=mode.cache_bytes or gpu.cache_bytes)
        self.source = mode.source
        """Where records come from; None where it reads events."""
        self.records_per_launch = 0
        """Known after the first burst that was read from records."""
        self._wants_graph = mode.wants_graph
        self._fallback = mode.fallback
        self._no_graph = False
        self._prelude_records: int | None = None
        self._warmup_us: list[float] = []
        self._samples: list[float] = []
        self._launching: list[float] = []
        """Host time of launching over device time, of each burst of single calls."""

    @property
    def flags(self) -> tuple[str, ...]:
        flags = {
            NO_GRAPH: self._no_graph,
            LAUNCH_BOUND: self._is_launch_bound(),
            HOT_CACHE: not self.launches.plan.cold,
            FALLBACK_TIMER: self._fallback,
        }
        return tuple(flag for flag, applies in flags.items() if applies)

    @property
    def unclean(self) -> str:
        return self.launches.unclean

    def prepare(
        self,
        call: Call,
        *,
        warmup: int,
        iters: int,
        restore: Callable[[], None] | None,
        hurry: bool,
        hopeless_us: float = math.inf,
        ring: Ring | None = None,
    ) -> None:
        """See the protocol; ``ring`` holds copies of the call that exist already."""
        launches = self.launches
        if launches.ring:
            return
        self.gpu.synchronize()  # the default stream's work is seen by ours from here on
        with self.gpu.on_stream():
            if ring is None:
                launches.fill(call, restore)
            else:
                launches.adopt(ring, restore)
            self._warm_up(warmup, restore, hurry)
            if self.floor_us > hopeless_us:
                return
            if self._wants_graph and restore is None:
                self._no_graph = not launches.capture(self._passes(iters), replay_once=warmup > 0)
        if launches.graph is None and self.source is None:
            self.name = "event"
        self.calls_per_sample = 1 if self.source is not None else launches.calls_each

    def burst(self, calls: int) -> Burst:
        launches = math.ceil(calls / self.launches.calls_each)
        calls = launches * self.launches.calls_each
        source = self.source
        if source is not None:
            for _ in range(_RECORD_TRIES):
                with contextlib.suppress(ActivityLostError):
                    return Burst(self._kept(self._read_records(source, launches)), calls)
            self.read_events_from_now_on()
        return Burst(self._kept(self._read_events(launches)), calls, anew=source is not None)

    def read(self, call: Call, calls: int) -> float:
        """Microseconds of a call, of ``calls``, rounded up to whole replays."""
        self.prepare(call, warmup=0, iters=calls, restore=None, hurry=False)
        return median(self.burst(calls).samples_us)

    def close(self) -> None:
        if self.source is not None:
            with contextlib.suppress(Exception):  # on a faulted device nothing works, and the fault is what matters
                self.source.stop()
        self.launches.close()

    # --- for those who time several candidates together -------------------------------------------------------------

    def samples_of(self, records: Sequence[Record], launches: int) -> list[float]:
        """Microseconds of each call in the records of so many launches.

        Raises:
            NothingTimedError: see :func:`~aiter_tuning.measure.gpu.activity.spans`.
            ActivityLostError: see there.
        """
        return self._kept(self._spans(records, launches))

    def do_without_graph(self) -> None:
        """Before :meth:`prepare`: the candidate is known not to be capturable."""
        self._no_graph, self._wants_graph = self._wants_graph, False

    def drop_graph(self) -> None:
        """Times single calls from here on, as those are that it is compared with."""
        self.launches.drop_graph()
        self.calls_per_sample = 1
        self._samples.clear()
        if self.source is None:
            self.name = "event"

    def read_events_from_now_on(self) -> None:
        """What records said counts no more; the record of the candidate says that another timer was meant."""
        if self.source is not None:
            self.source.stop()
        self.source = None
        self._fallback = True
        self._samples.clear()
        self.name = "event" if self.launches.graph is None else "graph"
        self.calls_per_sample = self.launches.calls_each

    # --- getting ready ----------------------------------------------------------------------------------------------

    def _warm_up(self, calls: int, restore: Callable[[], None] | None, hurry: bool) -> None:
        began = perf_counter()
        floors: list[float] = []
        for _ in range(calls):
            if restore is not None:
                restore()
            start, end = self.gpu.event(), self.gpu.event()
            launching = perf_counter()
            start.record(self.gpu.stream)
            self.launches.call_next()
            end.record(self.gpu.stream)
            launched = perf_counter()
            end.synchronize()
            us = start.elapsed_time(end) * 1000.0
            self._warmup_us.append(us)
            floors.append(us - (launched - launching) * 1e6 - _EVENT_US)
            if hurry and perf_counter() - began > _HURRIED_WARMUP_S:
                break
        if self._warmup_us:
            self.rough_us = min(self._warmup_us)
        if len(floors) >= _FLOOR_CALLS:
            self.floor_us = max(0.0, min(floors))

    def _passes(self, iters: int) -> int:
        """How often a graph goes round the ring; more than once only where the ring alone keeps the cache cold."""
        copies = len(self.launches.ring)
        if self.launches.plan.flush_bytes or self.source is not None:
            return 1
        known = self.rough_us > 0
        calls = min(MOST_COPIES, iters, math.ceil(_REPLAY_US / self.rough_us) if known else copies)
        return max(1, calls // copies)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read_events(self, launches: int) -> list[float]:
        """Samples from events; a host that was busy elsewhere can look like a device that was, but not so often."""
        for _ in range(_SUSPICIONS):
            samples, suspicious = self._read_events_once(launches)
            if not suspicious:
                return samples
        raise NothingTimedError

    def _read_events_once(self, launches: int) -> tuple[list[float], bool]:
        gpu, launch, prelude = self.gpu, self.launches.launch, self.launches.prelude
        pairs = [(gpu.event(), gpu.event()) for _ in range(launches)]
        gpu.synchronize()
        with gpu.on_stream():
            stream = gpu.stream
            began = perf_counter()
            for start, end in pairs:
                if prelude is not None:
                    prelude()
                start.record(stream)
                launch()
                end.record(stream)
            launching_us = (perf_counter() - began) * 1e6
        pairs[-1][1].synchronize()
        began = perf_counter()
        gpu.synchronize()
        left_us = (perf_counter() - began) * 1e6
        timed_us = pairs[0][0].elapsed_time(pairs[-1][1]) * 1000.0
        suspicious = is_still_running(left_us, timed_us)
        if self.launches.graph is None:
            self._launching.append(launching_us / timed_us if timed_us > 0 else math.inf)
        calls = self.launches.calls_each
        return [start.elapsed_time(end) * 1000.0 / calls for start, end in pairs], suspicious

    def _read_records(self, source: ActivitySource, launches: int) -> list[float]:
        self.gpu.synchronize()
        source.start()
        self.launches.make(launches)
        records = source.collect()
        if not any(record.graph for record in records):
            self._count_prelude(source)
        self.records_per_launch = len(records) // launches
        try:
            return self._spans(records, launches)
        except NothingTimedError:
            if not records and not self._gives_records(source):
                raise ActivityLostError("a kernel that surely ran left no record") from None
            raise

    def _spans(self, records: Sequence[Record], launches: int) -> list[float]:
        calls = self.launches.calls_each
        if self.launches.graph is not None:
            replayed = [record for record in records if record.graph]
            if replayed:
                return spans(replayed, launches, calls)
        return spans(records, launches, calls, self._prelude_records or 0)

    def _kept(self, samples: list[float]) -> list[float]:
        if len(self._samples) < _KEPT_SAMPLES:
            self._samples.extend(samples)
        return samples

    def _count_prelude(self, source: ActivitySource) -> None:
        """Counts the records of what comes before each launch, once, by doing that alone."""
        if self._prelude_records is not None:
            return
        self._prelude_records = 0
        prelude = self.launches.prelude
        if prelude is not None:
            self.gpu.synchronize()
            source.start()
            with self.gpu.on_stream():
                prelude()
            self.gpu.synchronize()
            self._prelude_records = len(source.collect())

    def _gives_records(self, source: ActivitySource) -> bool:
        source.start()
        with self.gpu.on_stream():
            self.gpu.overwrite(4)
        self.gpu.synchronize()
        return len(source.collect()) > 0

    def _is_launch_bound(self) -> bool:
        if not self._samples:
            return False
        device_us = median(self._samples)
        if self.source is None and self.launches.graph is None:
            return bool(self._launching) and is_launch_bound(1.0, launching_us=min(self._launching))
        return bool(self._warmup_us) and is_launch_bound(device_us, event_us=min(self._warmup_us))
