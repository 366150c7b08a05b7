"""Activity records from torch's own profiler, where nothing better is there.

Kineto's first session in a process costs about 5 s on CUDA; on HIP it is the only source of records that torch brings.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from aiter_tuning.measure.gpu.activity import ActivityUnavailableError, Record

_NO_WORK = ("Context Sync", "Stream Wait", "Stream Sync", "Event Sync", "Activity Buffer", "ProfilerStep")
"""What Kineto reports on the device's side without any work being done there."""


class KinetoActivity:
    """Kernels, copies and fills, as Kineto saw them; a session for each collection."""

    def __init__(self) -> None:
        self._session: Any = None

    @classmethod
    def open(cls) -> KinetoActivity:
        """The source of this process. Raises ActivityUnavailableError where torch was built without Kineto."""
        import torch

        if not torch.profiler.kineto_available():
            raise ActivityUnavailableError("torch was built without Kineto")
        known = torch.profiler.supported_activities()  # type: ignore[no-untyped-call]  # torch leaves it without types
        if torch.profiler.ProfilerActivity.CUDA not in known:
            raise ActivityUnavailableError("torch's profiler cannot see this device")
        return cls()

    def start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self.stop()
        self._session = profile(activities=[ProfilerActivity.CUDA])
        self._session.__enter__()

    def collect(self) -> Sequence[Record]:
        session, self._session = self._session, None
        session.__exit__(None, None, None)
        return [
            Record(event.time_range.start * 1000.0, event.time_range.end * 1000.0)
            for event in session.events()
            if event.device_type.name == "CUDA" and not event.is_user_annotation and not event.name.startswith(_NO_WORK)
        ]

    def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception):
                session.__exit__(None, None, None)
