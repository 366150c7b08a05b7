"""A device's lane: which worker it has, what that is doing, and until when it may.

::

    starting ─ Ready ▶ binding ─ Bound ▶ idle ─ Open ▶ sent ─ Opened ▶ opening ─▶ inputs ─▶ reference ─▶ compiling
                                          ▲                                        ▲                        ▼
                                          └─ group ended ─ verdict ─ Go ▶ handed ──┘ ◀─────────────────── measuring

    dying (killed, or dead by itself): from anywhere, then starting again; retired: after three failed starts in a row

The lane only keeps states and clocks; what to do when a clock runs out is the pool's to decide.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from typing import NamedTuple

from aiter_tuning.devices.device import Device, DeviceKind, load_kind
from aiter_tuning.pool.ledger import Ledger
from aiter_tuning.pool.process import WorkerProcess
from aiter_tuning.pool.watcher import Clocks, LaneView

MOST_FAILED_STARTS = 3
KILL_PATIENCE_S = 10.0
"""A process that is still there this long after SIGKILL is stuck in the driver; its lane is given up."""

_SHOWN = {"binding": "starting", "dying": "starting", "opening": "inputs", "handed": "inputs", "sent": "inputs"}
_IN_GROUP = frozenset({"sent", "opening", "handed", "inputs", "reference", "compiling", "measuring"})


class Deadline(NamedTuple):
    """When a clock runs out."""

    at: float
    clock: str
    """``start-up``, ``group``, ``candidate``, ``compile`` or ``kill``."""
    seconds: float


NEVER = Deadline(math.inf, "", math.inf)


class Lane:
    """One device and whatever process works on it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.kind: DeviceKind = load_kind(device.kind)
        self.worker: WorkerProcess | None = None
        self.state = "idle"
        self.group: int | None = None
        self.ledger: Ledger | None = None
        self.failed_starts = 0
        self.last_failure = ""
        self.busy: dict[str, float] = defaultdict(float)
        self.deadline = NEVER
        self.disturbed = False
        """Whether a standby's start overlapped what is being measured."""
        self.handed: tuple[int, int] | None = None
        """Candidate and attempt that were announced last."""
        self.rss_bytes: int | None = None
        """The worker's memory after the group's first verdict."""
        self._since = time.monotonic()
        self._group_since: float | None = None
        self._memory_checked = self._since

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def retired(self) -> bool:
        return self.state == "retired"

    @property
    def phase(self) -> str:
        """The ledger's word for the state: where the candidate was when something happened."""
        if self.state in ("compiling", "measuring"):
            return "candidate"
        return "handed" if self.state == "sent" else self.state

    @property
    def in_group(self) -> bool:
        return self.state in _IN_GROUP

    def enter(self, state: str, deadline: Deadline = NEVER) -> None:
        """Changes the state; the time spent in the old one is added up."""
        now = time.monotonic()
        self.busy[_SHOWN.get(self.state, self.state)] += now - self._since
        self._since = now
        self.state = state
        self.deadline = deadline

    def open_group(self, group: int, ledger: Ledger) -> None:
        self.group, self.ledger = group, ledger

    def run_group_clock(self, running: bool) -> None:
        """The group's clock counts only while a worker has the group open: restarts are nobody's fault in it."""
        now = time.monotonic()
        if self._group_since is not None and self.ledger is not None:
            self.ledger.spent_s += now - self._group_since
        self._group_since = now if running else None

    def due_for_memory_check(self) -> bool:
        """At most once a second: reading another process's memory costs as much as a short candidate."""
        now = time.monotonic()
        if now < self._memory_checked + 1.0:
            return False
        self._memory_checked = now
        return True

    def drop_group(self) -> None:
        self.run_group_clock(False)
        self.group, self.ledger = None, None

    def clock(self, name: str, seconds: float | None) -> Deadline:
        """The deadline of a clock that starts now."""
        return NEVER if seconds is None else Deadline(time.monotonic() + seconds, name, seconds)

    def group_deadline(self, clocks: Clocks) -> Deadline:
        if clocks.group_s is None or self.ledger is None or self._group_since is None:
            return NEVER
        return Deadline(self._group_since + clocks.group_s - self.ledger.spent_s, "group", clocks.group_s)

    def view(self) -> LaneView:
        now = time.monotonic()
        shown = _SHOWN.get(self.state, self.state)
        busy = dict(self.busy)
        busy[shown] = busy.get(shown, 0.0) + now - self._since
        index = self.ledger.next if self.ledger is not None and self.in_group else None
        return LaneView(self.name, shown, self.group, index, now - self._since, busy)
