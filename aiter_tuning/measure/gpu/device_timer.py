"""Times one candidate on a GPU: calls on a stream of their own, over a ring of inputs, read by events or by records.

::

    prepare:  copies of the inputs ─▶ warm up on the timed stream ─▶ capture a pass over the ring in a graph
    burst:    (restore, flush) ─▶ launch ─▶ (restore, flush) ─▶ launch … ─▶ wait ─▶ samples

A *launch* is a replay of the graph, or a single call where there is none: the candidate writes its inputs, which then
have to be put back before each call, or it can't be captured. What comes before a launch is on the same stream and
outside of what is read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import torch

from aiter_tuning.measure.gpu.accelerator import Accelerator, CaptureError, Graph
from aiter_tuning.measure.gpu.activity import ActivityLostError, ActivitySource, Record, spans
from aiter_tuning.measure.gpu.ring import MOST_COPIES, Ring, RingPlan, bytes_of, copy_of, plan_ring
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
_SUSPICIONS = 3
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
        self.unclean = ""
        self.gpu = self._gpu = gpu
        self.records_per_launch = 0
        """Known after the first burst that was read from records."""
        self._source = mode.source
        self._wants_graph = mode.wants_graph
        self._cold = mode.cold_cache
        self._cache_bytes = mode.cache_bytes or gpu.cache_bytes
        self._fallback = mode.fallback
        self._ring: Sequence[Call] = ()
        self._plan = RingPlan(1, 0, False)
        self._restore: Callable[[], None] | None = None
        self._graph: Graph | None = None
        self._no_graph = False
        self._calls_per_launch = 1
        self._next = 0
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
            HOT_CACHE: not self._plan.cold,
            FALLBACK_TIMER: self._fallback,
        }
        return tuple(flag for flag, applies in flags.items() if applies)

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
        if self._ring:
            return
        self._restore = restore
        self._gpu.synchronize()  # the default stream's work is seen by ours from here on
        with self._gpu.on_stream():
            if ring is None:
                self._make_ring(call)
            else:
                self._ring, self._plan = ring
            self._warm_up(warmup, hurry)
            if self.floor_us > hopeless_us:
                return
            if self._wants_graph and restore is None:
                self._capture(iters, replay_once=warmup > 0)
        if self._graph is None and self._source is None:
            self.name = "event"
        self.calls_per_sample = 1 if self._source is not None else self._calls_per_launch

    def burst(self, calls: int) -> Burst:
        launches = math.ceil(calls / self._calls_per_launch)
        calls = launches * self._calls_per_launch
        for _ in range(_RECORD_TRIES if self._source is not None else 0):
            assert self._source is not None
            try:
                samples = self._read_records(self._source, launches)
            except ActivityLostError:
                continue
            self._keep(samples)
            return Burst(samples, calls)
        lost = self._source is not None
        if lost:
            self.read_events_from_now_on()
        samples = self._read_events(launches)
        self._keep(samples)
        return Burst(samples, calls, anew=lost)

    def read(self, call: Call, calls: int) -> float:
        """Microseconds of a call, of ``calls``, rounded up to whole replays."""
        self.prepare(call, warmup=0, iters=calls, restore=None, hurry=False)
        return median(self.burst(calls).samples_us)

    def close(self) -> None:
        if self._source is not None:
            with contextlib.suppress(Exception):  # on a faulted device nothing works, and the fault is what matters
                self._source.stop()
        self._graph = None
        self._ring = ()

    # --- for those who time several candidates together -------------------------------------------------------------

    @property
    def source(self) -> ActivitySource | None:
        """Where records come from; None where it reads events."""
        return self._source

    @property
    def has_graph(self) -> bool:
        return self._graph is not None

    @property
    def wants_cold_cache(self) -> bool:
        return self._cold

    def plan_ring(self, call_bytes: int, *, most: int, copy_bytes: int) -> RingPlan:
        """The ring for calls of at least ``call_bytes`` that share copies of ``copy_bytes`` on this GPU."""
        return plan_ring(call_bytes, self._cache_bytes, self._gpu.free_bytes(), most=most, copy_bytes=copy_bytes)

    @property
    def calls_per_launch(self) -> int:
        return self._calls_per_launch

    def launch(self, launches: int) -> None:
        """Makes so many launches and waits for them; whoever started the source collects their records."""
        launch, prelude = self._launch, self._prelude if self._has_prelude else None
        with self._gpu.on_stream():
            for _ in range(launches):
                if prelude is not None:
                    prelude()
                launch()
        self._gpu.synchronize()

    def samples_of(self, records: Sequence[Record], launches: int) -> list[float]:
        """Microseconds of each call in the records of so many launches.

        Raises:
            NothingTimedError: see :func:`~aiter_tuning.measure.gpu.activity.spans`.
            ActivityLostError: see there.
        """
        samples = self._spans(records, launches)
        self._keep(samples)
        return samples

    def do_without_graph(self) -> None:
        """Before :meth:`prepare`: the candidate is known not to be capturable."""
        self._no_graph, self._wants_graph = self._wants_graph, False

    def drop_graph(self) -> None:
        """Times single calls from here on, as those are that it is compared with."""
        self._graph = None
        self._calls_per_launch = self.calls_per_sample = 1
        self._samples.clear()
        if self._source is None:
            self.name = "event"

    def read_events_from_now_on(self) -> None:
        """What records said counts no more; the record of the candidate says that another timer was meant."""
        if self._source is not None:
            self._source.stop()
        self._source = None
        self._fallback = True
        self._samples.clear()
        self.name = "event" if self._graph is None else "graph"
        self.calls_per_sample = self._calls_per_launch

    # --- getting ready ----------------------------------------------------------------------------------------------

    def _make_ring(self, call: Call) -> None:
        self._ring = copies = [call]
        if not self._cold:
            return
        # What is restored before each call has just passed through the cache: only a flush helps.
        size = 0 if self._restore is not None else bytes_of(call)
        plan = plan_ring(size, self._cache_bytes, self._gpu.free_bytes())
        try:
            while len(copies) < plan.copies:
                copies.append(copy_of(call))
            if plan.flush_bytes:
                self._gpu.overwrite(plan.flush_bytes)
        except torch.OutOfMemoryError:
            # Memory was in pieces, or somebody else's; a flush needs less than a ring, and no copies less than that.
            del copies[1:]
            plan = plan_ring(0, self._cache_bytes, self._gpu.free_bytes())
            try:
                self._gpu.overwrite(plan.flush_bytes)
            except torch.OutOfMemoryError:
                plan = RingPlan(1, 0, False)
        self._plan = plan

    def _warm_up(self, calls: int, hurry: bool) -> None:
        began = perf_counter()
        floors: list[float] = []
        for _ in range(calls):
            if self._restore is not None:
                self._restore()
            start, end = self._gpu.event(), self._gpu.event()
            launching = perf_counter()
            start.record(self._gpu.stream)
            self._call_next()
            end.record(self._gpu.stream)
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

    def _capture(self, iters: int, *, replay_once: bool) -> None:
        ring = self._ring
        passes = self._passes(iters)

        def body() -> None:
            for _ in range(passes):
                for func, args, kwargs in ring:
                    func(*args, **kwargs)

        try:
            graph = self._gpu.capture(body)
        except CaptureError as error:
            self._no_graph = True
            if not error.clean:
                self.unclean = f"a capture failed: {error}"
            return
        if graph.is_empty:
            raise NothingTimedError
        self._graph = graph
        self._calls_per_launch = passes * len(ring)
        if replay_once:  # the first replay uploads the graph
            graph.replay()
            self._gpu.stream.synchronize()

    def _passes(self, iters: int) -> int:
        """How often a graph goes round the ring; more than once only where the ring alone keeps the cache cold."""
        copies = len(self._ring)
        if self._plan.flush_bytes or self._source is not None:
            return 1
        known = self.rough_us > 0
        calls = min(MOST_COPIES, iters, math.ceil(_REPLAY_US / self.rough_us) if known else copies)
        return max(1, calls // copies)

    # --- reading ----------------------------------------------------------------------------------------------------

    def _call_next(self) -> None:
        func, args, kwargs = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        func(*args, **kwargs)

    @property
    def _launch(self) -> Callable[[], None]:
        return self._call_next if self._graph is None else self._graph.replay

    def _prelude(self) -> None:
        """What comes before each launch: restoring first, since that brings the inputs into the cache."""
        if self._restore is not None:
            self._restore()
        if self._plan.flush_bytes:
            self._gpu.overwrite(self._plan.flush_bytes)

    @property
    def _has_prelude(self) -> bool:
        return self._restore is not None or self._plan.flush_bytes > 0

    def _read_events(self, launches: int) -> list[float]:
        """Samples from events; a host that was busy elsewhere can look like a device that was, but not so often."""
        for _ in range(_SUSPICIONS):
            samples, suspicious = self._read_events_once(launches)
            if not suspicious:
                return samples
        raise NothingTimedError

    def _read_events_once(self, launches: int) -> tuple[list[float], bool]:
        gpu, launch, prelude = self._gpu, self._launch, self._prelude if self._has_prelude else None
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
        if self._graph is None:
            self._launching.append(launching_us / timed_us if timed_us > 0 else math.inf)
        return [start.elapsed_time(end) * 1000.0 / self._calls_per_launch for start, end in pairs], suspicious

    def _read_records(self, source: ActivitySource, launches: int) -> list[float]:
        self._gpu.synchronize()
        source.start()
        self.launch(launches)
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
        if self._graph is not None:
            replayed = [record for record in records if record.graph]
            if replayed:
                return spans(replayed, launches, self._calls_per_launch)
        return spans(records, launches, self._calls_per_launch, self._prelude_records or 0)

    def _keep(self, samples: Sequence[float]) -> None:
        if len(self._samples) < _KEPT_SAMPLES:
            self._samples.extend(samples)

    def _count_prelude(self, source: ActivitySource) -> int:
        """Records of what comes before each launch, counted once by doing that alone."""
        if self._prelude_records is None:
            self._prelude_records = 0
            if self._has_prelude:
                self._gpu.synchronize()
                source.start()
                with self._gpu.on_stream():
                    self._prelude()
                self._gpu.synchronize()
                self._prelude_records = len(source.collect())
        return self._prelude_records

    def _gives_records(self, source: ActivitySource) -> bool:
        source.start()
        with self._gpu.on_stream():
            self._gpu.overwrite(4)
        self._gpu.synchronize()
        return len(source.collect()) > 0

    def _is_launch_bound(self) -> bool:
        if not self._samples:
            return False
        device_us = median(self._samples)
        if self._source is None and self._graph is None:
            return bool(self._launching) and is_launch_bound(1.0, launching_us=min(self._launching))
        return bool(self._warmup_us) and is_launch_bound(device_us, event_us=min(self._warmup_us))
