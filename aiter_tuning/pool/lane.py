"""A device's lane: which worker it has, what that is doing, and until when it may.

::

    starting ── Ready ──▶ binding ── Bound ──▶ idle ── Open, Go ──▶ busy ─┐
        ▲                                       ▲        Go ◀── verdict ──┤
        │                                       └──────── group ended ────┘
        └── dying (killed, or dead by itself) ◀── from anywhere; three failed starts in a row ──▶ retired

What a busy worker does stands on its board. The lane only keeps states and clocks; what to do when a clock runs out is
the run's to decide.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from aiter_tuning.devices.device import Device, DeviceKind, load_kind
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.board import Posted
from aiter_tuning.pool.ledger import Ledger
from aiter_tuning.pool.process import WorkerProcess
from aiter_tuning.pool.watcher import Clocks, LaneView

MOST_FAILED_STARTS = 3
KILL_PATIENCE_S = 10.0
"""A process that is still there this long after SIGKILL is stuck in the driver; its lane is given up."""

_OF_A_CANDIDATE = ("compiling", "measuring", "finals")
_SHOWN = {"binding": "starting", "dying": "starting", "opening": "inputs", "handed": "inputs"}


class Deadline(NamedTuple):
    """When a clock runs out."""

    at: float
    clock: str
    """``start-up``, ``group``, ``candidate``, ``compile``, ``pipe`` or ``kill``."""
    seconds: float


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
        self.wake_at = math.inf
        """When to look at the clocks next."""
        self.outstanding = 0
        """Candidates that the worker was told to measure and has not answered for."""
        self.announced: tuple[int, int] | None = None
        """Candidate and attempt that were announced last."""
        self.rss_bytes: int | None = None
        """The worker's memory after the group's first verdict."""
        self._limit: Deadline | None = None
        self._handed_at = 0.0
        self._posts_before = 0
        self._opens_before = 0.0
        self._since = time.monotonic()
        self._memory_checked = self._since

    @property
    def name(self) -> str:
        return self.device.name

    @property
    def retired(self) -> bool:
        return self.state == "retired"

    # States

    def enter(self, state: str, clock: str = "", seconds: float | None = None) -> None:
        """Changes the state; the time spent in the old one is added up. ``clock`` ends the new one."""
        now = time.monotonic()
        self.busy[_SHOWN.get(self.state, self.state)] += now - self._since
        self._since = now
        self.state = state
        self.limit(clock, seconds)

    def limit(self, clock: str, seconds: float | None) -> None:
        """Starts a clock of the lane's own: a start, a kill, a closed pipe."""
        self._limit = None if seconds is None else Deadline(time.monotonic() + seconds, clock, seconds)
        self.wake_at = math.inf if self._limit is None else self._limit.at

    def hand(self, patience_s: float, clocks: Clocks) -> None:
        """The next candidate is handed to the worker; its clocks start when the worker posts that it began."""
        assert self.worker is not None
        now = time.monotonic()
        self._limit = None
        self._handed_at = now
        self._posts_before = self.worker.board.read().posts
        self.wake_at = now + self._shortest(patience_s, clocks)

    def done(self, measurement: Measurement) -> None:
        """A candidate came back; the time since it was handed out is divided by what it says itself."""
        now = time.monotonic()
        self.busy["inputs"] += measurement.setup_s
        self.busy["compiling"] += measurement.first_call_s
        rest = now - self._since - measurement.setup_s - measurement.first_call_s
        in_contest = self.ledger is not None and self.ledger.contest is not None
        self.busy["finals" if in_contest else "measuring"] += max(0.0, rest)
        self._since = now

    def block_done(self) -> None:
        """The time since the last news went into a contest's block."""
        now = time.monotonic()
        self.busy["finals"] += now - self._since
        self._since = now

    @property
    def posted(self) -> Posted | None:
        """What the worker posted since the candidate was handed out; None: nothing, it has not begun."""
        if self.worker is None:
            return None
        posted = self.worker.board.read()
        if posted.posts <= self._posts_before:
            return None
        if self.ledger is not None:
            self.ledger.turn_to(posted.candidate)
        return posted

    @property
    def phase(self) -> str:
        """Where the next candidate is, in the ledger's words."""
        posted = self.posted
        if posted is None or self.ledger is None:
            return "handed"
        if posted.phase == "opening":
            return "opening"
        if posted.candidate != self.ledger.next:  # it has answered for that one and not begun the next
            return "handed"
        return "candidate" if posted.phase in _OF_A_CANDIDATE else posted.phase

    @property
    def running(self) -> tuple[int, int, int] | None:
        """Group, index and attempt of the candidate that the worker has begun."""
        ledger, group, posted = self.ledger, self.group, self.posted
        if self.state != "busy" or ledger is None or group is None or ledger.next is None or posted is None:
            return None
        return (group, ledger.next, ledger.attempt(ledger.next)) if posted.candidate == ledger.next else None

    @property
    def begun(self) -> Sequence[tuple[int, int, int]]:
        """The same of all whose end may not be on file: of a contest whoever is left, since turns change quickly."""
        ledger, group = self.ledger, self.group
        if self.state != "busy" or ledger is None or group is None or self.posted is None:
            return ()
        if ledger.contest is None:
            return () if self.running is None else (self.running,)
        return [(group, index, attempt) for index, attempt in ledger.remaining]

    def kill(self) -> None:
        """Ends the worker, with all that it started; the lane's group stays."""
        assert self.worker is not None
        self.end_group_clock()
        self.worker.kill()
        self.enter("dying", "kill", KILL_PATIENCE_S)

    # Groups

    def open_group(self, group: int, ledger: Ledger) -> None:
        self.group, self.ledger = group, ledger

    def begin_group(self) -> None:
        """The group is about to be sent: what the board says of an older one is no news."""
        assert self.worker is not None
        self._opens_before = self.worker.board.read().opened

    def end_group_clock(self) -> None:
        """Adds to the group's time how long this worker had it open: restarts are nobody's fault in it."""
        if self.ledger is not None and self.state == "busy":
            opened = self._group_opened()
            if opened is not None:
                self.ledger.spent_s += time.monotonic() - opened

    def drop_group(self) -> None:
        self.group, self.ledger = None, None

    def _group_opened(self) -> float | None:
        opened = self.worker.board.read().opened if self.worker is not None else 0.0
        return opened if opened > self._opens_before else None

    # Clocks

    def expired(self, now: float, patience_s: float, clocks: Clocks) -> Deadline | None:
        """The clock that has run out, if one has; else sets when to look again."""
        if self._limit is not None:
            return self._limit if now >= self._limit.at else None
        if self.state != "busy":
            self.wake_at = math.inf
            return None
        deadlines = [self._phase_deadline(patience_s, clocks)]
        opened = self._group_opened() if clocks.group_s is not None else None
        if opened is not None and clocks.group_s is not None and self.ledger is not None:
            deadlines.append(Deadline(opened + clocks.group_s - self.ledger.spent_s, "group", clocks.group_s))
        first = min(deadlines)
        if now >= first.at:
            return first
        # The worker may go on to a phase with a shorter clock: never sleep longer than the shortest.
        self.wake_at = min(first.at, now + self._shortest(patience_s, clocks))
        return None

    def _phase_deadline(self, patience_s: float, clocks: Clocks) -> Deadline:
        posted = self.posted
        if posted is None:
            return Deadline(self._handed_at + patience_s, "start-up", patience_s)
        timing = posted.phase in ("measuring", "finals")
        if timing or clocks.compile_s is None:
            clock, seconds = "candidate", clocks.candidate_s
        else:
            clock, seconds = "compile", clocks.compile_s
        # Without a clock for the first call, one clock covers it and the rest.
        since = posted.started if timing and clocks.compile_s is None else posted.since
        return Deadline(math.inf if seconds is None else since + seconds, clock, seconds or math.inf)

    def _shortest(self, patience_s: float, clocks: Clocks) -> float:
        return min([patience_s, *(seconds for seconds in clocks if seconds is not None)])

    # What others see

    def due_for_memory_check(self) -> bool:
        """At most once a second: reading another process's memory costs as much as a short candidate."""
        now = time.monotonic()
        if now < self._memory_checked + 1.0:
            return False
        self._memory_checked = now
        return True

    def view(self) -> LaneView:
        now = time.monotonic()
        state, since, candidate = self.state, self._since, None
        if state == "busy" and self.ledger is not None:
            posted = self.posted
            state, candidate = (posted.phase, self.ledger.next) if posted is not None else ("handed", self.ledger.next)
            since = posted.since if posted is not None else since
        shown = _SHOWN.get(state, state)
        busy = dict(self.busy)
        busy[shown] = busy.get(shown, 0.0) + now - self._since
        return LaneView(self.name, shown, self.group, candidate, now - since, busy)
