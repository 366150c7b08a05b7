"""One run: the loop that listens to workers, lets clocks run out, and gives each lane a worker and a group.

There is no polling. The loop sleeps in one ``select`` over every worker's pipe, sentinel and output until something
happens or the next deadline comes. A worker's last words are read before its death is acted on, and a result that
arrived in time counts even if the parent was busy when its clock ran out.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from aiter_tuning.pool.feed import Feed
from aiter_tuning.pool.handout import Handout
from aiter_tuning.pool.lane import KILL_PATIENCE_S, Deadline, Lane
from aiter_tuning.pool.ledger import OnFault, with_output
from aiter_tuning.pool.messages import BindFailed, Bound, LogFailed, Measured, Ready
from aiter_tuning.pool.process import WorkerProcess, describe_exit
from aiter_tuning.pool.watcher import Clocks, RunEnd, RunOutcome, Watcher
from aiter_tuning.status import one_line, says_gpu_was_reset
from aiter_tuning.task import Group, LogbookError

if TYPE_CHECKING:
    from aiter_tuning.pool.pool import Pool

_MOST_PACKETS = 64
_QUIET_START_S = 10.0
_LAST_WORDS_S = 0.5
"""How long a worker that is about to be killed is listened to: it may have more to say for ever."""
_HANGUP_PATIENCE_S = 1.0
"""How long after the pipe closed a worker's death may take to be seen."""


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
        self._handout = Handout(pool, self._feed, clocks, watcher)
        self._next_tick = time.monotonic() + watcher.tick_s
        self._handlers: dict[type, Callable[[Lane, Any], None]] = {
            Ready: self._on_ready,
            Bound: self._on_bound,
            BindFailed: self._on_bind_failed,
            LogFailed: self._on_log_failed,
            **self._handout.handlers,
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
                        self._handout.take_up(lane)
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
                        message = Measured(*message)
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
        running = lane.running
        verdicts = lane.ledger.timed_out(lane.phase, deadline.clock, deadline.seconds, lane.worker.last_output())
        lane.kill()
        if running is not None and any(
            index == running[1] and not measurement.status.is_terminal for index, measurement in verdicts
        ):
            self._watcher.stopped(*running)
        self._handout.publish(lane, verdicts)

    def _lost(self, lane: Lane, what: str) -> None:
        """The worker is alive but of no use."""
        assert lane.worker is not None
        if lane.ledger is None or lane.state != "busy":
            self._start_failed(lane, f"worker {what}")
            return
        verdicts = lane.ledger.died(lane.phase, what, lane.worker.last_output(), stranger=False)
        lane.kill()
        self._handout.publish(lane, verdicts)

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
            self._handout.take_up(lane)

    def _on_bind_failed(self, lane: Lane, message: BindFailed) -> None:
        self._start_failed(lane, message.detail)

    def _on_log_failed(self, lane: Lane, message: LogFailed) -> None:
        raise LogbookError(message.errno, message.reason)

    def _start_failed(self, lane: Lane, reason: str) -> None:
        assert lane.worker is not None
        self._pool.failed_start(lane, one_line(reason))
        lane.kill()

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
            stranger = returncode == -signal.SIGKILL and not worker.killed_here
            stranger |= returncode == -signal.SIGABRT and says_gpu_was_reset(output)
            self._handout.publish(lane, ledger.died(phase, exit_text, output, stranger=stranger))
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

    # Stopping

    def _stop(self, end: RunEnd, reason: str) -> RunOutcome:
        """Kills what is running; whatever has no verdict is ``not_run``. Groups never begun are left to the caller."""
        self._handout.close()
        for lane in self._pool.lanes:
            if lane.worker is not None:
                self._hear_out(lane.worker, _LAST_WORDS_S)  # what is measured already counts
        busy = [lane for lane in self._pool.lanes if lane.state == "busy" and lane.worker is not None]
        for worker in [lane.worker for lane in busy if lane.worker is not None]:
            worker.kill()
            worker.reap(KILL_PATIENCE_S)
            self._hear_out(worker)
        running = [place for lane in busy for place in lane.begun]  # now that nobody begins anything any more
        unfinished = [(lane.group, lane.ledger) for lane in self._pool.lanes]
        self._kill_busy_lanes()
        for place in running:
            self._watcher.stopped(*place)
        for group, ledger in (*unfinished, *self._feed.returned):
            if group is not None and ledger is not None:
                ledger.close_with(reason)
                self._watcher.group_ended(group, ledger.results)
        return RunOutcome(end, reason)

    def _kill_busy_lanes(self) -> None:
        """When this returns nothing is running any more, and nothing writes into a logbook."""
        killed = [lane.worker for lane in self._pool.lanes if lane.state == "busy" and lane.worker is not None]
        for lane in self._pool.lanes:
            if lane.state == "busy" and lane.worker is not None:
                lane.kill()
        for worker in killed:
            worker.reap(KILL_PATIENCE_S)
        for lane in self._pool.lanes:
            lane.announced = None
            lane.drop_group()
