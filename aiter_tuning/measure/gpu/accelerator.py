"""The little of ``torch.cuda`` that timing needs, on CUDA and on HIP, which torch spells alike.

::

    timers ──▶ Gpu ── one side stream a worker ──▶ events, graphs        (a test puts a Gpu of its own here)

Everything that is timed runs on one stream that is not the default one: a graph cannot be captured on the default
stream, and memory that one candidate's graph has freed is only reused by the next one's on the same stream.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from aiter_tuning.status import describe

_INFINITY_CACHE_BYTES = 256 << 20
"""Behind the L2 of AMD's CDNA3 and later; no runtime tells its size. Where there is none, the ring is too large."""
_EMPTY_GRAPH = "CUDA Graph is empty"


class CaptureError(RuntimeError):
    """A candidate's calls could not be captured in a graph."""

    def __init__(self, message: str, *, clean: bool) -> None:
        """``clean``: the capture ended in order; otherwise allocator and stream are in doubt, and so is the process."""
        super().__init__(message)
        self.clean = clean


class Event(Protocol):
    """A point on a stream."""

    def record(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: Any) -> float:
        """Milliseconds to a later event; both have happened."""
        ...


class Graph(Protocol):
    """Captured work."""

    is_empty: bool

    def replay(self) -> None: ...


class Accelerator(Protocol):
    """What timers ask of a GPU."""

    stream: Any
    is_hip: bool
    cache_bytes: int
    """Size of the last-level cache."""

    def on_stream(self) -> AbstractContextManager[Any]: ...

    def event(self) -> Event: ...

    def synchronize(self) -> None: ...

    def free_bytes(self) -> int: ...

    def overwrite(self, flush_bytes: int) -> None:
        """Puts one piece of work on the current stream that writes so many bytes, outside every call's inputs."""
        ...

    def capture(self, body: Callable[[], None]) -> Graph: ...

    def release(self) -> None: ...


def free_bytes() -> int:
    """Memory that can still be had: the device's, and what torch's allocator keeps without using it."""
    free, _ = torch.cuda.mem_get_info()
    statistics = torch.cuda.memory_stats_as_nested_dict()  # the flat ones take 0.3 ms to make
    if not statistics:  # nothing was allocated yet
        return free
    return int(free + statistics["reserved_bytes"]["all"]["current"] - statistics["allocated_bytes"]["all"]["current"])


@contextmanager
def _uncollected() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _CapturedGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, is_empty: bool) -> None:
        self._graph = graph
        self.is_empty = is_empty
        self.replay = graph.replay


class Gpu:
    """The GPU that this worker is bound to."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.is_hip = torch.version.hip is not None
        self.cache_bytes = int(properties.L2_cache_size)
        if self.is_hip:
            self.cache_bytes = max(self.cache_bytes, _INFINITY_CACHE_BYTES)
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it without types
        self._latest: torch.cuda.CUDAGraph | None = None
        self._scratch: torch.Tensor | None = None

    def on_stream(self) -> AbstractContextManager[Any]:
        """Makes the timed stream torch's current one."""
        return torch.cuda.stream(self.stream)

    def event(self) -> Event:
        return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it without types

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def free_bytes(self) -> int:
        return free_bytes()

    def overwrite(self, flush_bytes: int) -> None:
        """Writes a scratch buffer of at least so many bytes: one kernel."""
        if self._scratch is None or self._scratch.numel() * 4 < flush_bytes:
            self._scratch = None
            self._scratch = torch.empty(max(1, -(-flush_bytes // 4)), dtype=torch.int32, device="cuda")
        self._scratch.fill_(0)

    def capture(self, body: Callable[[], None]) -> Graph:
        """What ``body`` launches on the timed stream, as a graph.

        ``torch.cuda.graph`` is not used because it empties the allocator's cache each time. The pool of the latest
        graph is shared, so that only the first candidate of a group pays for new memory; a pool may be shared as long
        as a graph that uses it is alive, which is why the latest one is kept.

        Raises:
            CaptureError: it cannot be captured.
            Exception: the device has failed.
        """
        graph = torch.cuda.CUDAGraph()
        pool = None if self._latest is None else self._latest.pool()
        failure: BaseException | None = None
        clean = True
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream), _uncollected(), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            begun = False
            try:
                # Relaxed: what only might be unsafe, such as cudaMalloc, must not cost the candidate its graph.
                graph.capture_begin(pool, capture_error_mode="relaxed")
                begun = True
                body()
            except BaseException as error:
                failure = error
            try:
                graph.capture_end()
            except Exception as error:
                clean = False
                failure = failure or error
            clean = clean and begun
        if failure is None:
            self._latest = graph
            return _CapturedGraph(graph, any(_EMPTY_GRAPH in str(warning.message) for warning in heard))
        del graph  # whoever keeps the exception keeps this frame
        if not clean:
            self._latest = None
        torch.cuda.synchronize()  # raises if it is the device that failed, and not the capture alone
        if not isinstance(failure, Exception):
            raise failure
        said = describe(failure)
        del failure  # its frames would keep what was allocated during the capture
        raise CaptureError(said, clean=clean) from None

    def release(self) -> None:
        """Lets the memory of graphs and of the flush go, with the next ``empty_cache``."""
        self._latest = self._scratch = None
