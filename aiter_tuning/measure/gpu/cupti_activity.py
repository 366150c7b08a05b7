"""Activity records from CUPTI, through NVIDIA's ``cupti-python``.

A session starts in 0.1 s, where torch's profiler needs 5 s for its first one. Nothing is collected outside a
candidate's timing, since each record costs microseconds of Python; those of work that ended before a session began are
left out, which CUPTI hands over late.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

from aiter_tuning.measure.gpu.activity import ActivityLostError, ActivityUnavailableError, Record
from aiter_tuning.measure.gpu.cupti_buffers import BUFFER_BYTES, Buffers, RefusedError, layouts_of
from aiter_tuning.status import describe

_A_SECOND_NS = 1e9
_INJECTIONS = ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")
"""Set by nsys and ncu in the processes that they watch."""


class CuptiActivity:
    """Kernels, copies and fills, as CUPTI saw them."""

    def __init__(self, cupti: Any) -> None:
        """Args: the module ``cupti.cupti``. Use :meth:`open`."""
        self._cupti = cupti
        kinds = cupti.ActivityKind
        self._kinds = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        kernels = (int(kinds.CONCURRENT_KERNEL), int(kinds.KERNEL))
        names = {"activity_kernel": kernels, "activity_memcpy": (int(kinds.MEMCPY),)}
        names["activity_memset"] = (int(kinds.MEMSET),)
        self._layouts = layouts_of(cupti, names)
        self._wanted = frozenset(kind for numbers in names.values() for kind in numbers)
        self._buffers: Buffers | None = None
        """None: the package hands over an object for each record."""
        self._since_ns = 0.0
        self._records: list[Record] = []
        self._enabled: list[Any] = []

    @classmethod
    def open(
        cls,
        cuda_version: str | None,
        *,
        environ: Mapping[str, str] = os.environ,
        load: Callable[[str], Any] = importlib.import_module,
        version_of: Callable[[str], str] = metadata.version,
    ) -> CuptiActivity:
        """The source of this process.

        Args:
            cuda_version: torch's, e.g. ``13.0``.
            environ: this process's environment.
            load: imports a module.
            version_of: the version of a distribution.

        Raises:
            ActivityUnavailableError: cupti-python is missing, made for another CUDA, or somebody else uses CUPTI.
        """
        if cuda_version is None:
            raise ActivityUnavailableError("CUPTI exists on CUDA only")
        release = ".".join(cuda_version.split(".")[:2])
        advice = f"pip install 'cupti-python=={release}.*'"
        try:
            cupti = load("cupti.cupti")
            found = version_of("cupti-python")
        except (ImportError, OSError, RuntimeError) as error:
            raise ActivityUnavailableError(f"cupti-python cannot be loaded ({describe(error)}); {advice}") from error
        if ".".join(found.split(".")[:2]) != release:
            raise ActivityUnavailableError(f"cupti-python {found} does not match torch's CUDA {release}; {advice}")
        watcher = next((name for name in _INJECTIONS if environ.get(name)), None)
        if watcher is not None:
            raise ActivityUnavailableError(f"another tool uses CUPTI in this process ({watcher} is set)")
        try:
            # Only one client can subscribe; whoever already has is found by trying.
            cupti.unsubscribe(cupti.subscribe(_ignore, None))
        except cupti.cuptiError as error:
            raise ActivityUnavailableError(f"another tool uses CUPTI in this process ({describe(error)})") from error
        except Exception:
            pass  # a release that subscribes in another way; the self-check will tell whether records come
        source = cls(cupti)
        try:
            source.start()
            source.stop()
        except Exception as error:
            raise ActivityUnavailableError(f"CUPTI cannot be used ({describe(error)})") from error
        return source

    def read_buffers(self, library: Any, launch: Callable[[], None]) -> bool:
        """Reads CUPTI's own buffers from now on, if that works here; otherwise all stays as it is.

        Args:
            library: see :func:`~aiter_tuning.measure.gpu.cupti_buffers.loaded_library`.
            launch: puts one kernel on the device and waits for it; tried before and after.
        """
        if library is None or not self._wanted <= self._layouts.keys():
            return False
        try:
            wanted = self._one_collection(launch)
            self._buffers = Buffers(library, self._layouts, self._records.append)
            found = self._one_collection(launch)
        except (RefusedError, ActivityLostError):
            found, wanted = [], []
        works = bool(found) and [record.graph for record in found] == [record.graph for record in wanted]
        if not works or any(not 0 < record.end_ns - record.start_ns < _A_SECOND_NS for record in found):
            self._buffers = None
        return self._buffers is not None

    def _one_collection(self, launch: Callable[[], None]) -> Sequence[Record]:
        self.start()
        try:
            launch()
            return self.collect()
        finally:
            self.stop()

    def start(self) -> None:
        if not self._enabled:
            # Each time anew: a profiler session of a candidate's may have put its own callbacks there.
            if self._buffers is not None:
                self._buffers.register()
            else:
                self._cupti.activity_register_callbacks(self._ask, self._take)
            for kind in self._kinds:
                self._cupti.activity_enable(kind)
                self._enabled.append(kind)
        self._records.clear()
        self._since_ns = float(self._now_ns())

    def collect(self) -> Sequence[Record]:
        if self._buffers is not None:
            self._buffers.flush()
        else:
            self._cupti.activity_flush_all(0)
        dropped = self._dropped()
        records = [record for record in self._records if record.end_ns > self._since_ns]
        self._records.clear()
        if dropped:
            raise ActivityLostError(f"CUPTI dropped {dropped} records")
        return records

    def stop(self) -> None:
        while self._enabled:
            self._cupti.activity_disable(self._enabled.pop())

    def _now_ns(self) -> int:
        """On the clock of the records; 0 with a release that does not tell."""
        clock = getattr(self._cupti, "get_timestamp", None)
        return 0 if clock is None else int(clock())

    @staticmethod
    def _ask() -> tuple[int, int]:
        """Bytes of the next buffer, and how many records it may hold; 0: as many as fit."""
        return BUFFER_BYTES, 0

    def _take(self, activities: Sequence[Any]) -> None:
        for activity in activities:
            if int(activity.kind) in self._wanted:
                graph = int(getattr(activity, "graph_id", 0))
                self._records.append(Record(int(activity.start), int(activity.end), graph))

    def _dropped(self) -> int:
        count = ctypes.c_size_t(0)
        # A release that spells this differently is no reason to do without it: counting records finds most losses too.
        with contextlib.suppress(Exception):
            self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        return count.value


def _ignore(*_: Any) -> None:
    """CUPTI's callbacks for API calls, of which none is enabled."""
