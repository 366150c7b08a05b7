"""What is launched when a candidate is timed on a GPU, and what comes before it on the same stream.

::

    copies of the inputs ─▶ a pass over the ring, captured in a graph
    make:  (restore, flush) ─▶ launch ─▶ (restore, flush) ─▶ launch … ─▶ wait

A *launch* is a replay of the graph, or a single call where there is none: the candidate writes its inputs, which then
have to be put back before each call, or it can't be captured. What comes before a launch, its *prelude*, is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from aiter_tuning.measure.gpu.accelerator import Accelerator, CaptureError, Graph
from aiter_tuning.measure.gpu.ring import Ring, RingPlan, bytes_of, copy_of, plan_ring
from aiter_tuning.measure.timer import Call, NothingTimedError


class Launches:
    """The launches of one candidate.

    Args:
        gpu: where they go.
        cold_cache: whether each call is to find its inputs outside the cache.
        cache_bytes: the last-level cache.
    """

    def __init__(self, gpu: Accelerator, *, cold_cache: bool, cache_bytes: int) -> None:
        self.cold_cache = cold_cache
        self.ring: Sequence[Call] = ()
        """The call on its copies, the original first; empty until it is filled or adopted."""
        self.plan = RingPlan(1, 0, False)
        self.graph: Graph | None = None
        self.calls_each = 1
        """Calls in a launch."""
        self.unclean = ""
        """Why the process is in doubt after a capture; empty: it is not."""
        self._gpu = gpu
        self._cache_bytes = cache_bytes
        self._restore: Callable[[], None] | None = None
        self._next = 0

    def plan_ring(self, call_bytes: int, **limits: int) -> RingPlan:
        """The ring for calls of ``call_bytes`` on this GPU; see :func:`~aiter_tuning.measure.gpu.ring.plan_ring`."""
        return plan_ring(call_bytes, self._cache_bytes, self._gpu.free_bytes(), **limits)

    def adopt(self, ring: Ring, restore: Callable[[], None] | None) -> None:
        """Takes copies that exist already; ``restore`` puts the inputs back before each launch."""
        self.ring, self.plan = ring
        self._restore = restore

    def fill(self, call: Call, restore: Callable[[], None] | None) -> None:
        """Makes as many copies as the cache asks for and memory allows; ``restore`` as for :meth:`adopt`."""
        self.ring = copies = [call]
        self._restore = restore
        if not self.cold_cache:
            return
        # What is restored before each call has just passed through the cache: only a flush helps.
        plan = self.plan_ring(0 if restore is not None else bytes_of(call))
        try:
            while len(copies) < plan.copies:
                copies.append(copy_of(call))
            if plan.flush_bytes:
                self._gpu.overwrite(plan.flush_bytes)
        except torch.OutOfMemoryError:
            # Memory was in pieces, or somebody else's; a flush needs less than a ring, and no copies less than that.
            del copies[1:]
            plan = self.plan_ring(0)
            try:
                self._gpu.overwrite(plan.flush_bytes)
            except torch.OutOfMemoryError:
                plan = RingPlan(1, 0, False)
        self.plan = plan

    def capture(self, passes: int, *, replay_once: bool) -> bool:
        """Captures so many passes over the ring; returns whether that could be done.

        Raises:
            NothingTimedError: the calls put nothing on the stream.
            Exception: the device has failed.
        """

        def body() -> None:
            for _ in range(passes):
                for func, args, kwargs in self.ring:
                    func(*args, **kwargs)

        try:
            graph = self._gpu.capture(body)
        except CaptureError as error:
            if not error.clean:
                self.unclean = f"a capture failed: {error}"
            return False
        if graph.is_empty:
            raise NothingTimedError
        self.graph, self.calls_each = graph, passes * len(self.ring)
        if replay_once:  # the first replay uploads the graph
            graph.replay()
            self._gpu.stream.synchronize()
        return True

    def drop_graph(self) -> None:
        """From here on, a launch is a single call."""
        self.graph, self.calls_each = None, 1

    def call_next(self) -> None:
        """A call on the next copy."""
        func, args, kwargs = self.ring[self._next]
        self._next = (self._next + 1) % len(self.ring)
        func(*args, **kwargs)

    @property
    def launch(self) -> Callable[[], None]:
        """Makes one launch."""
        return self.call_next if self.graph is None else self.graph.replay

    @property
    def prelude(self) -> Callable[[], None] | None:
        """What comes before each launch; None: nothing."""
        return self._do_prelude if self._restore is not None or self.plan.flush_bytes else None

    def make(self, launches: int) -> None:
        """Makes so many launches and waits for them."""
        launch, prelude = self.launch, self.prelude
        with self._gpu.on_stream():
            for _ in range(launches):
                if prelude is not None:
                    prelude()
                launch()
        self._gpu.synchronize()

    def close(self) -> None:
        """Lets go of copies and graph."""
        self.graph, self.ring = None, ()

    def _do_prelude(self) -> None:
        # Restoring first, since that brings the inputs into the cache.
        if self._restore is not None:
            self._restore()
        if self.plan.flush_bytes:
            self._gpu.overwrite(self.plan.flush_bytes)
