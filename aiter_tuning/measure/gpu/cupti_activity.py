"""Activity records from CUPTI, through NVIDIA's ``cupti-python``.

A session starts in 0.1 s and hands over 300 records in 20 ms, where torch's profiler needs 5 s for its first session.
Nothing is collected outside a candidate's timing, since each record costs microseconds of Python.
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
from aiter_tuning.measure.gpu.cupti_layout import Reader, layouts_of
from aiter_tuning.status import describe

_BUFFER_BYTES = 1 << 20
"""One for each collection; holds thousands of records."""
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
        self._read = Reader((kind for numbers in names.values() for kind in numbers), layouts_of(cupti, names)).read
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

    def start(self) -> None:
        if not self._enabled:
            # Each time anew: a profiler session of a candidate's may have put its own callbacks there.
            self._cupti.activity_register_callbacks(self._ask, self._take)
            for kind in self._kinds:
                self._cupti.activity_enable(kind)
                self._enabled.append(kind)
        self._records.clear()

    def collect(self) -> Sequence[Record]:
        self._cupti.activity_flush_all(0)
        dropped = self._dropped()
        records = list(self._records)
        self._records.clear()
        if dropped:
            raise ActivityLostError(f"CUPTI dropped {dropped} records")
        return records

    def stop(self) -> None:
        while self._enabled:
            self._cupti.activity_disable(self._enabled.pop())

    @staticmethod
    def _ask() -> tuple[int, int]:
        """Bytes of the next buffer, and how many records it may hold; 0: as many as fit."""
        return _BUFFER_BYTES, 0

    def _take(self, activities: Sequence[Any]) -> None:
        self._records.extend(record for activity in activities if (record := self._read(activity)) is not None)

    def _dropped(self) -> int:
        count = ctypes.c_size_t(0)
        # A release that spells this differently is no reason to do without it: counting records finds most losses too.
        with contextlib.suppress(Exception):
            self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        return count.value


def _ignore(*_: Any) -> None:
    """CUPTI's callbacks for API calls, of which none is enabled."""
