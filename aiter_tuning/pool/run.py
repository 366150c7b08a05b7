"""One run: the loop that hands out candidates, listens, and lets clocks run out.

There is no polling. The loop sleeps in one ``select`` over every worker's pipe, sentinel and output until something
happens or the next deadline comes. A worker's last words are read before its death is acted on, and a result that
arrived in time counts even if the parent was busy when its clock ran out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.feed import Feed, Work
from aiter_tuning.pool.lane import KILL_PATIENCE_S, Deadline, Lane
from aiter_tuning.pool.ledger import Ledger, OnFault, Verdicts, with_output
from aiter_tuning.pool.messages import (
    BindFailed,
    BlockDone,
    Bound,
    Close,
    Go,
    LogFailed,
    Measured,
    NoGraph,
    Open,
    OpenFailed,
    Ready,
    Unprepared,
)
from aiter_tuning.pool.process import WorkerProcess, describe_exit
from aiter_tuning.pool.watcher import Clocks, RunEnd, RunOutcome, Watcher
from aiter_tuning.status import one_line
from aiter_tuning.task import Group, LogbookError

if TYPE_CHECKING:
    from aiter_tuning.pool.pool import Pool

_SIGKILL = 9
_MOST_PACKETS = 64
_QUIET_START_S = 10.0
_LAST_WORDS_S = 0.5
"""How long a worker that is about to be killed is listened to: it may have more to say for ever."""
_HANGUP_PATIENCE_S = 1.0
"""How long after the pipe closed a worker's death may take to be seen."""
_RECYCLE_SHARE = 4
"""A worker that grew by more than this part of its lane's memory (a quarter) is replaced at the next occasion."""


class Run:
    """The state of one :meth:`Pool.run`."""

    def __init__(
        self,
        pool: Pool,
        groups: Sequence[Group],
        plan: Any,
        clocks: Clocks,
        on_fault: OnFault,
        retries: int,
        watcher: Watcher,
        budget_s: float | None,
        quiet_start: bool,
        precompile: bool,
    ) -> None:
        self._pool = pool
        self._clocks = clocks
        self._watcher = watcher
        self._budget_at = math.inf if budget_s is None else time.monotonic() + budget_s
        self._quiet_until = time.monotonic() + _QUIET_START_S if quiet_start else 0.0
        self._precompiler = pool.precompiler(groups) if precompile else None
        slots = self._precompiler.slots if self._precompiler is not None else lambda number: None
        self._feed = Feed(groups, plan, on_fault, retries, ahead=len(pool.lanes), slots=slots)
        self._stopping = False
        self._next_tick = time.monotonic() + watcher.tick_s
        self._handlers: dict[type, Callable[[Lane, Any], None]] = {
            Ready: self._on_ready,
            Bound: self._on_bound,
            BindFailed: self._on_bind_failed,
            OpenFailed: self._on_open_failed,
            Unprepared: self._on_unprepared,
            LogFailed: self._on_log_failed,
            BlockDone: self._on_block_done,
            NoGraph: self._on_no_graph,
        }

    def loop(self) -> RunOutcome:
        """Runs until every candidate has a verdict, or until there is a reason to stop."""
        try:
            for lane in self._pool.lanes:
                if lane.state == "idle":
                    self._pool.adopt(lane)
            while True:
                for lane in self._pool.lanes:
                    if lane.state == "idle" and self._is_quiet(lane):
                        self._take_group(lane)
                if self._finished():
                    return RunOutcome(RunEnd.done)
                if self._pool.stop_requested:
                    return self._stop(RunEnd.interrupted, "the run was stopped")
                if time.monotonic() >= self._budget_at:
                    return self._stop(RunEnd.budget, "the run's budget was used up")
                if all(lane.retired for lane in self._pool.lanes):
                    reasons = "; ".join(f"{lane.name}: {lane.last_failure}" for lane in self._pool.lanes)
                    return self._stop(RunEnd.no_lanes, f"no usable device is left ({reasons})")
                self._feed.make_ready_ahead()
                self._listen()
                self._expire()
        except BaseException:
            self._kill_busy_lanes()
            raise
        finally:
            if self._precompiler is not None:
                self._precompiler.close()

    def _is_quiet(self, lane: Lane) -> bool:
        """Whether the first standby has done its imports, so that they are not timed along; not waited for for ever."""
        return time.monotonic() >= self._quiet_until or not self._pool.standby_starting(lane)

    def _finished(self) -> bool:
        return self._feed.is_empty and all(lane.ledger is None for lane in self._pool.lanes)

    # Waiting

    def _listen(self) -> None:
        wake_at = min(self._next_tick, self._budget_at, *(lane.wake_at for lane in self._pool.lanes))
        deaths: list[WorkerProcess] = []
        for key, _ in self._pool.selector.select(max(0.0, wake_at - time.monotonic())):
            if key.data is None:
                self._pool.drain_wakeups()
                continue
            worker, what = key.data
            if what == "message":
                self._hear(worker)
            else:
                deaths.append(worker)
        for worker in deaths:
            self._on_death(worker)
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + self._watcher.tick_s
            for lane in self._pool.lanes:
                if lane.worker is not None:
                    lane.worker.bound_output()
            self._pool.post_circumstances()
            self._watcher.tick([lane.view() for lane in self._pool.lanes])

    def _hear(self, worker: WorkerProcess) -> None:
        """Handles what the worker has said, in order; a bounded part of it, so that all are heard in turn."""
        for _ in range(_MOST_PACKETS):
            try:
                messages = worker.channel.receive(wait=False)
            except (EOFError, OSError):
                self._on_hangup(worker)
                return
            if not messages:
                return
            lane = self._pool.lane_of(worker)
            for message in messages:
                if isinstance(message, Ready):
                    worker.ready = True
                    self._pool.post_circumstances()
                # A verdict was given when a worker was killed; what it said meanwhile is late.
                if lane is not None and lane.state != "dying":
                    if type(message) is tuple:
                        self._on_measured(lane, Measured(*message))
                    else:
                        self._handlers[type(message)](lane, message)

    def _hear_out(self, worker: WorkerProcess, patience_s: float = math.inf) -> None:
        """All that it has said and will not say again; of one that still talks, what it has said so far."""
        until = time.monotonic() + patience_s
        while worker.has_message() and time.monotonic() < until:
            self._hear(worker)

    def _on_hangup(self, worker: WorkerProcess) -> None:
        """The pipe is closed: the process is ending and its sentinel follows, or a candidate closed all descriptors."""
        worker.mute = True
        self._pool.selector.unregister(worker.channel)
        lane = self._pool.lane_of(worker)
        if lane is None:
            worker.kill()
        elif lane.state != "dying":
            lane.limit("pipe", _HANGUP_PATIENCE_S)

    def _expire(self) -> None:
        now = time.monotonic()
        for lane in self._pool.lanes:
            if now < lane.wake_at:
                continue
            deadline = lane.expired(now, self._pool.startup_timeout_s, self._clocks)
            worker = lane.worker
            if deadline is None or worker is None:
                continue
            if deadline.clock == "kill":
                self._retire(lane, f"process {worker.pid} survived SIGKILL for {deadline.seconds:g} s")
            elif deadline.clock == "pipe":
                self._lost(lane, "closed its result pipe and was killed")
            elif worker.has_message():
                continue  # it answered in time; the answer is read first
            elif deadline.clock == "start-up":
                self._lost(lane, f"did not answer within {deadline.seconds:g} s and was killed")
            else:
                self._overran(lane, deadline)

    def _overran(self, lane: Lane, deadline: Deadline) -> None:
        """A candidate's or a group's clock ran out."""
        assert lane.ledger is not None and lane.worker is not None
        running = self._running(lane)
        verdicts = lane.ledger.timed_out(lane.phase, deadline.clock, deadline.seconds, lane.worker.last_output())
        self._kill(lane)
        if running is not None and any(
            index == running[1] and not measurement.status.is_terminal for index, measurement in verdicts
        ):
            self._watcher.stopped(*running)
        self._publish(lane, verdicts)

    def _lost(self, lane: Lane, what: str) -> None:
        """The worker is alive but of no use."""
        assert lane.worker is not None
        if lane.ledger is None or lane.state != "busy":
            self._start_failed(lane, f"worker {what}")
            return
        verdicts = lane.ledger.died(lane.phase, what, lane.worker.last_output(), stranger=False)
        self._kill(lane)
        self._publish(lane, verdicts)

    # A lane's life

    def _on_ready(self, lane: Lane, message: Ready) -> None:
        self._pool.bind(lane)

    def _on_bound(self, lane: Lane, message: Bound) -> None:
        if message.uuid != lane.device.uuid:
            self._start_failed(lane, f"got device {message.uuid} instead of {lane.device.uuid}")
            return
        lane.failed_starts = 0
        if lane.worker is not None:
            lane.worker.bound_bytes = lane.worker.resident_bytes()
        waits = lane.ledger is None and time.monotonic() < self._quiet_until
        self._pool.ensure_standby(lane, background=not waits)
        lane.enter("idle")
        if lane.ledger is not None:
            self._take_group(lane)

    def _on_bind_failed(self, lane: Lane, message: BindFailed) -> None:
        self._start_failed(lane, message.detail)

    def _start_failed(self, lane: Lane, reason: str) -> None:
        assert lane.worker is not None
        self._pool.failed_start(lane, one_line(reason))
        self._kill(lane)

    def _on_death(self, worker: WorkerProcess) -> None:
        """The process has ended: first its last words, then what its death means."""
        self._hear_out(worker)
        lane = self._pool.lane_of(worker)
        output = worker.last_output()
        returncode = worker.reap()
        if lane is None:
            self._pool.drop_standby(worker)
            return
        state, ledger, phase = lane.state, lane.ledger, lane.phase
        lane.end_group_clock()
        lane.enter("dying")
        self._pool.release(worker)
        lane.worker = None
        exit_text = describe_exit(returncode)
        if state in ("starting", "binding"):
            self._pool.failed_start(lane, with_output(f"worker {exit_text} while {state}", output))
        elif state == "idle":
            self._watcher.note(f"{lane.name}: the idle worker {exit_text}; a standby takes its place")
        elif state == "busy" and ledger is not None:
            stranger = returncode == -_SIGKILL and not worker.killed_here
            self._publish(lane, ledger.died(phase, exit_text, output, stranger=stranger))
        self._replace(lane)

    def _replace(self, lane: Lane) -> None:
        if self._pool.out_of_starts(lane):
            self._retire(lane, f"{lane.failed_starts} starts failed in a row, the last because {lane.last_failure}")
        else:
            self._pool.start_lane(lane)

    def _retire(self, lane: Lane, reason: str) -> None:
        lane.last_failure = lane.last_failure or reason
        self._watcher.note(f"{lane.name} is retired: {reason}")
        worker, lane.worker = lane.worker, None
        if worker is not None:
            self._pool.release(worker)
        if lane.ledger is not None and lane.group is not None:
            self._feed.give_back(lane.group, lane.ledger)
        lane.drop_group()
        lane.enter("retired")

    def _kill(self, lane: Lane) -> None:
        assert lane.worker is not None
        lane.end_group_clock()
        lane.worker.kill()
        lane.enter("dying", "kill", KILL_PATIENCE_S)

    # A group's life

    def _take_group(self, lane: Lane) -> None:
        """Opens the group that the lane has, else the next one; further ones as long as they end at once."""
        while lane.state == "idle" and not (self._stopping or self._pool.stop_requested):
            work = None
            if lane.ledger is None:
                work = self._feed.take()
                if work is None:
                    return
                lane.open_group(work.number, work.ledger)
            self._open(lane, work)

    def _open(self, lane: Lane, work: Work | None = None) -> None:
        """Sends the lane's group and what comes first in one go."""
        ledger, number = lane.ledger, lane.group
        assert ledger is not None and number is not None and lane.worker is not None
        if ledger.group.fresh and lane.worker.worked:
            self._kill(lane)  # the lane's next worker takes it
            return
        work = work or self._feed.again(number, ledger)
        if work.payload is None:
            lane.enter("idle")
            self._publish(lane, ledger.open_failed(f"it cannot be sent there: {work.problem}"))
            return
        lane.rss_bytes = None
        lane.worker.worked |= not ledger.group.fresh
        lane.begin_group()
        lane.enter("busy")
        self._go(lane, Open(number, work.payload))

    def _go(self, lane: Lane, *before: Any) -> None:
        """Hands out what comes next, after what has to be said ``before`` in the same breath."""
        if self._stopping:
            return
        worker, ledger, group = lane.worker, lane.ledger, lane.group
        assert worker is not None and ledger is not None and group is not None
        candidates = ledger.remaining
        if not self._watcher.run_ahead and ledger.contest is None:
            candidates = candidates[:1]
            index, attempt = candidates[0]
            if lane.announced != (index, attempt):
                lane.announced = (index, attempt)
                self._watcher.before_start(group, index, attempt, lane.name)
        lane.outstanding = len(candidates)
        lane.hand(self._pool.startup_timeout_s, self._clocks)
        worker.send(*before, Go(candidates, ledger.leader_us))

    def _on_open_failed(self, lane: Lane, message: OpenFailed) -> None:
        if lane.ledger is None:
            return
        if lane.ledger.apart:
            self._publish(lane, lane.ledger.open_failed(message.detail))
        else:
            lane.ledger.apart = True
            self._open(lane)

    def _on_unprepared(self, lane: Lane, message: Unprepared) -> None:
        if lane.ledger is None:
            return
        lane.outstanding = 0
        verdicts = lane.ledger.unprepared(message.candidate, message.phase, message.measurement)
        if message.leaving:
            self._kill(lane)
        self._publish(lane, verdicts)

    def _on_measured(self, lane: Lane, message: Measured) -> None:
        ledger, worker, group = lane.ledger, lane.worker, lane.group
        if ledger is None or worker is None or group is None:
            return
        measurement = Measurement.unpacked(message.measurement)
        lane.outstanding -= 1
        lane.done(measurement)
        if message.output:
            self._watcher.output(group, message.candidate, message.output)
        verdicts, clean_worker = ledger.measured(message.candidate, measurement, leaving=message.leaving)
        waits = message.leaving or measurement.may_be_the_process
        if message.leaving or clean_worker:
            self._kill(lane)
        if waits:
            lane.outstanding = 0
        self._publish(lane, verdicts, logged=ledger.group.logbook is not None and not waits)

    def _on_block_done(self, lane: Lane, message: BlockDone) -> None:
        if lane.ledger is None or lane.group is None:
            return
        lane.ledger.block_done(message.block, lane.device.uuid)
        lane.block_done()
        self._watcher.block_done(lane.group, message.block)

    def _on_no_graph(self, lane: Lane, message: NoGraph) -> None:
        if lane.ledger is not None:
            lane.ledger.cannot_be_captured(message.candidate)
            self._kill(lane)

    def _on_log_failed(self, lane: Lane, message: LogFailed) -> None:
        raise LogbookError(message.errno, message.reason)

    def _publish(self, lane: Lane, verdicts: Verdicts, *, logged: bool = False) -> None:
        """Tells the verdicts, then goes on: with the next candidate, or with the end of the group."""
        ledger, group = lane.ledger, lane.group
        assert ledger is not None and group is not None
        for index, measurement in verdicts:
            if measurement.status.is_terminal:
                if not measurement.device:  # a verdict that was given here, about a worker that could not
                    measurement = replace(measurement, device=lane.device.uuid)
                self._watcher.measured(group, index, measurement, logged=logged)
        if ledger.ended:
            self._end_group(lane, group, ledger)
        elif lane.state == "busy" and lane.outstanding == 0 and not self._recycle_if_grown(lane):
            self._go(lane)

    def _end_group(self, lane: Lane, group: int, ledger: Ledger) -> None:
        lane.announced = None
        busy = lane.state == "busy"
        lane.drop_group()
        follow_up = None
        if not self._stopping:
            number, idle = self._feed.next_number, self._feed.is_empty
            follow_up = self._watcher.follow_up(group, ledger.results, number, idle=idle)
        self._watcher.group_ended(group, ledger.results)
        if follow_up is not None:
            lane.open_group(*self._feed.number(follow_up))
        if busy:
            lane.enter("idle")
            self._recycle_if_grown(lane)
            self._take_group(lane)
            if lane.state == "idle" and lane.worker is not None:
                lane.worker.send(Close())

    def _recycle_if_grown(self, lane: Lane) -> bool:
        """Replaces a worker whose memory grew by more than a quarter of its lane's.

        Inside a group it is compared with what it was after the first verdict, since inputs are no leak; between groups
        with what it was when it took the device.
        """
        worker = lane.worker
        if not lane.device.memory_bytes or worker is None or not lane.due_for_memory_check():
            return False
        resident = worker.resident_bytes()
        base = lane.rss_bytes if lane.state == "busy" else worker.bound_bytes
        if base is None:
            base = lane.rss_bytes = resident
        if resident - base <= lane.device.memory_bytes // _RECYCLE_SHARE:
            return False
        self._watcher.note(f"{lane.name}: the worker grew from {base >> 20} to {resident >> 20} MiB and is replaced")
        self._kill(lane)
        return True

    # Stopping

    def _stop(self, end: RunEnd, reason: str) -> RunOutcome:
        """Kills what is running; whatever has no verdict is ``not_run``. Groups never begun are left to the caller."""
        self._stopping = True
        for lane in self._pool.lanes:
            if lane.worker is not None:
                self._hear_out(lane.worker, _LAST_WORDS_S)  # what is measured already counts
        running = [self._running(lane) for lane in self._pool.lanes]
        unfinished = [(lane.group, lane.ledger) for lane in self._pool.lanes]
        self._kill_busy_lanes()
        for place in running:
            if place is not None:
                self._watcher.stopped(*place)
        for group, ledger in (*unfinished, *self._feed.returned):
            if group is not None and ledger is not None:
                ledger.close_with(reason)
                self._watcher.group_ended(group, ledger.results)
        return RunOutcome(end, reason)

    @staticmethod
    def _running(lane: Lane) -> tuple[int, int, int] | None:
        """Group, index and attempt of the candidate that the lane's worker has begun."""
        ledger, group, posted = lane.ledger, lane.group, lane.posted
        if lane.state != "busy" or ledger is None or group is None or ledger.next is None or posted is None:
            return None
        return (group, ledger.next, ledger.attempt(ledger.next)) if posted.candidate == ledger.next else None

    def _kill_busy_lanes(self) -> None:
        """When this returns nothing is running any more, and nothing writes into a logbook."""
        killed = [lane.worker for lane in self._pool.lanes if lane.state == "busy" and lane.worker is not None]
        for lane in self._pool.lanes:
            if lane.state == "busy" and lane.worker is not None:
                self._kill(lane)
        for worker in killed:
            worker.reap(KILL_PATIENCE_S)
        for lane in self._pool.lanes:
            lane.announced = None
            lane.drop_group()
