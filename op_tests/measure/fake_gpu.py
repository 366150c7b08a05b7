"""A GPU made of numbers: streams, events, graphs and activity records on a clock that only launches and waits move."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiter_tuning.measure.gpu.accelerator import CaptureError
from aiter_tuning.measure.gpu.activity import ActivityLostError, Record

TIMED = "timed"


class FakeStream:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def synchronize(self) -> None:
        self._gpu.wait_for(TIMED)


class FakeEvent:
    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu, self.at_us = gpu, 0.0

    def record(self, stream: Any) -> None:
        gpu = self._gpu
        self.at_us = gpu.busy_until[TIMED] = max(gpu.busy_until[TIMED], gpu.host_us) + gpu.event_us

    def synchronize(self) -> None:
        self._gpu.host_us = max(self._gpu.host_us, self.at_us)

    def elapsed_time(self, later: FakeEvent) -> float:
        return (later.at_us - self.at_us) / 1000.0


class FakeGraph:
    def __init__(self, gpu: FakeGpu, nodes: Sequence[tuple[float, int]]) -> None:
        self._gpu, self._nodes = gpu, nodes
        self.is_empty = not nodes

    def replay(self) -> None:
        gpu = self._gpu
        gpu.host_us += gpu.launching_us
        gpu.replays += 1
        for _ in range(gpu.kernels_before_replay):  # as torch launches for random numbers
            gpu.run(1.0, TIMED)
            gpu.executed.pop()
        for us, buffer in self._nodes:
            gpu.run(us, TIMED, buffer, graph=gpu.replays if gpu.marks_graphs else 0)


class FakeGpu:
    """Host and device with clocks of their own; a launch costs the host ``launching_us``, whatever it launches."""

    def __init__(self, *, launching_us: float = 10.0, cache_bytes: int = 1 << 20, memory_bytes: int = 1 << 30) -> None:
        self.is_hip = False
        self.cache_bytes = cache_bytes
        self.memory_bytes = memory_bytes
        self.launching_us = launching_us
        self.flush_us = 40.0
        self.event_us = 0.5
        self.gap_us = 1.0
        self.host_us = 0.0
        self.busy_until = {TIMED: 0.0, "side": 0.0}
        self.stream = FakeStream(self)
        self.records: list[Record] | None = None
        self.executed: list[int] = []
        """Buffers of the calls that ran, in order."""
        self.flushes: list[int] = []
        """How many calls had run at each flush."""
        self.replays = 0
        self.kernels_before_replay = 0
        self.marks_graphs = True
        self.captures = 0
        self.cannot_capture: CaptureError | None = None
        self._capturing: list[tuple[float, int]] | None = None
        self._inside = False
        self.released = False

    def seconds(self) -> float:
        return self.host_us * 1e-6

    # --- what candidates do

    def launch(self, us: float, *, stream: str = TIMED, buffer: int = 0) -> None:
        """A kernel."""
        self.host_us += self.launching_us
        if self._capturing is not None and stream == TIMED:
            self._capturing.append((us, buffer))
            return
        self.run(us, stream, buffer)

    def run(self, us: float, stream: str, buffer: int = 0, graph: int = 0) -> None:
        start = max(self.busy_until[stream] + self.gap_us, self.host_us)
        self.busy_until[stream] = start + us
        if self.records is not None:
            self.records.append(Record(start * 1000.0, (start + us) * 1000.0, graph))
        self.executed.append(buffer)

    # --- Accelerator

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        yield
        self._inside = before

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def wait_for(self, stream: str) -> None:
        self.host_us = max(self.host_us, self.busy_until[stream])

    def synchronize(self) -> None:
        for stream in self.busy_until:
            self.wait_for(stream)

    def free_bytes(self) -> int:
        return self.memory_bytes

    def overwrite(self, flush_bytes: int) -> None:
        assert self._inside, "a flush on another stream than the timed one orders nothing"
        calls = len(self.executed)
        self.host_us += self.launching_us
        self.run(self.flush_us, TIMED)
        self.executed.pop()
        self.flushes.append(calls)

    def capture(self, body: Callable[[], None]) -> FakeGraph:
        self.captures += 1
        if self.cannot_capture is not None:
            raise self.cannot_capture
        self._capturing = nodes = []
        try:
            body()
        finally:
            self._capturing = None
        return FakeGraph(self, nodes)

    def release(self) -> None:
        self.released = True


class FakeSource:
    """Records of the fake GPU; ``lose`` are the collections of which one record is lost.

    As with CUPTI, whatever runs between two collections comes with the second, until the source is stopped.
    """

    def __init__(self, gpu: FakeGpu, *, lose: Sequence[int] = (), deaf: bool = False, scale: float = 1.0) -> None:
        self._gpu, self._lose, self._deaf, self._scale = gpu, set(lose), deaf, scale
        self.collections = 0
        self.is_on = False

    def start(self) -> None:
        self.is_on = True
        if self._gpu.records is None:
            self._gpu.records = []

    def collect(self) -> Sequence[Record]:
        self.collections += 1
        records, self._gpu.records = self._gpu.records or [], [] if self.is_on else None
        if self._deaf:
            return []
        if self.collections in self._lose:
            if not records:
                raise ActivityLostError("lost")
            records = records[:-1]
        return [Record(r.start_ns, r.start_ns + (r.end_ns - r.start_ns) * self._scale, r.graph) for r in records]

    def stop(self) -> None:
        self.is_on, self._gpu.records = False, None


class FakeKinds(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    CONCURRENT_KERNEL = 10
    RUNTIME = 5


class FakeCuptiError(Exception):
    pass


class FakeCupti:
    """The functions of cupti-python that are used, as a module stands for them."""

    ActivityKind = FakeKinds
    cuptiError = FakeCuptiError  # noqa: N815  # the package's own spelling

    def __init__(self) -> None:
        self.enabled: list[int] = []
        self.pending: list[Any] = []
        self.callbacks: tuple[Any, Any] | None = None
        self.subscribed = False
        self.taken = False
        self.dropped = 0
        self.now_ns = 0

    def subscribe(self, callback: Any, userdata: Any) -> int:
        if self.taken:
            raise FakeCuptiError("ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self.subscribed = True
        return 7

    def unsubscribe(self, handle: int) -> None:
        assert handle == 7
        self.subscribed = False

    def activity_register_callbacks(self, ask: Any, take: Any) -> None:
        assert ask()[0] > 0
        self.callbacks = (ask, take)

    def activity_enable(self, kind: int) -> None:
        self.enabled.append(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.remove(kind)

    def activity_flush_all(self, flag: int) -> None:
        assert self.callbacks is not None
        pending, self.pending = self.pending, []
        self.callbacks[1](pending)

    def get_timestamp(self) -> int:
        return self.now_ns

    def activity_get_num_dropped_records(self, context: int, stream: int, address: int) -> None:
        import ctypes

        ctypes.c_size_t.from_address(address).value = self.dropped
