"""A group on a lane: opened, its candidates handed out, their verdicts told, and what the lane goes on with.

::

    feed ─▶ take_up ─▶ open ─▶ go ─▶ (worker) ─ Measured, BlockDone, … ─▶ ledger ─▶ publish
               ▲                ▲                                                      │
               │                └───────────── the next candidate ◀────────────────────┤
               └───── the group's follow-up, or the next group ◀── end ◀───────────────┘

What a message means for the candidates is the ledger's to say; what becomes of a dead worker's lane, the run's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.feed import Feed, Work
from aiter_tuning.pool.lane import Lane
from aiter_tuning.pool.ledger import Ledger, Verdicts
from aiter_tuning.pool.messages import BlockDone, Close, Go, Measured, NoGraph, Open, OpenFailed, Unprepared
from aiter_tuning.pool.watcher import Clocks, Watcher

if TYPE_CHECKING:
    from aiter_tuning.pool.pool import Pool

_RECYCLE_SHARE = 4
"""A worker that grew by more than this part of its lane's memory (a quarter) is replaced at the next occasion."""


class Handout:
    """Hands the groups of one run to its lanes.

    Args:
        pool: says how long a worker may take to answer, and whether the run is to stop.
        feed: the groups.
        clocks: start with each candidate.
        watcher: is told everything.
    """

    def __init__(self, pool: Pool, feed: Feed, clocks: Clocks, watcher: Watcher) -> None:
        self._pool = pool
        self._feed = feed
        self._clocks = clocks
        self._watcher = watcher
        self._closed = False
        self.handlers: dict[type, Callable[[Lane, Any], None]] = {
            OpenFailed: self._on_open_failed,
            Unprepared: self._on_unprepared,
            Measured: self._on_measured,
            BlockDone: self._on_block_done,
            NoGraph: self._on_no_graph,
        }
        """What to do about each kind of message on a group."""

    def close(self) -> None:
        """Nothing is handed out any more, and nothing follows what ends."""
        self._closed = True

    def take_up(self, lane: Lane) -> None:
        """Opens the group that the lane has, else the next one; further ones as long as they end at once."""
        while lane.state == "idle" and not (self._closed or self._pool.stop_requested):
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
            lane.kill()  # the lane's next worker takes it
            return
        work = work or self._feed.again(number, ledger)
        if work.payload is None:
            lane.enter("idle")
            self.publish(lane, ledger.open_failed(f"it cannot be sent there: {work.problem}"))
            return
        lane.rss_bytes = None
        lane.worker.worked |= not ledger.group.fresh
        lane.begin_group()
        lane.enter("busy")
        self._go(lane, Open(number, work.payload))

    def _go(self, lane: Lane, *before: Any) -> None:
        """Hands out what comes next, after what has to be said ``before`` in the same breath."""
        if self._closed:
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
            self.publish(lane, lane.ledger.open_failed(message.detail))
        else:
            lane.ledger.apart = True
            self._open(lane)

    def _on_unprepared(self, lane: Lane, message: Unprepared) -> None:
        if lane.ledger is None:
            return
        lane.outstanding = 0
        verdicts = lane.ledger.unprepared(message.candidate, message.phase, message.measurement)
        if message.leaving:
            lane.kill()
        self.publish(lane, verdicts)

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
            lane.kill()
        if waits:
            lane.outstanding = 0
        self.publish(lane, verdicts, logged=ledger.group.logbook is not None and not waits)

    def _on_block_done(self, lane: Lane, message: BlockDone) -> None:
        if lane.ledger is None or lane.group is None:
            return
        lane.ledger.block_done(message.block, lane.device.uuid)
        lane.block_done()
        self._watcher.block_done(lane.group, message.block)

    def _on_no_graph(self, lane: Lane, message: NoGraph) -> None:
        if lane.ledger is not None:
            lane.ledger.cannot_be_captured(message.candidate)
            lane.kill()

    def publish(self, lane: Lane, verdicts: Verdicts, *, logged: bool = False) -> None:
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
        if not self._closed:
            number, idle = self._feed.next_number, self._feed.is_empty
            follow_up = self._watcher.follow_up(group, ledger.results, number, idle=idle)
        self._watcher.group_ended(group, ledger.results)
        if follow_up is not None:
            lane.open_group(*self._feed.number(follow_up))
        if busy:
            lane.enter("idle")
            self._recycle_if_grown(lane)
            self.take_up(lane)
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
        lane.kill()
        return True
