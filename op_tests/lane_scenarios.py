"""What several lanes do at a time, and what is to be found out about it: scenarios for any devices.

::

    lane of the trouble   meeting  good × n ┌─▶ FAULT   good × n ┐ over
    every other lane      meeting  good × n ┘ good good good …   └ good × a few more, then the end

The parent's clock says when a candidate was handed out and when its verdict came; a fault leaves its moment in a file.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import Clocks, RunEnd, Watcher
from aiter_tuning.task import ALL_INPUTS, Group, MpTunerTask
from op_tests.lane_candidates import Meeting, Noting, WaitsFor, doubled, make_inputs

CONTROLS = 10
"""Candidates in a group of those that nothing is to happen to."""
CONTROLS_AFTER = 3
"""Such groups that are begun when the trouble is over."""
LONGEST_S = 60.0


class Operator(NamedTuple):
    """How candidates get their inputs and what they are compared with."""

    make_inputs: Callable[..., Any] = make_inputs
    gen_args: tuple[Any, ...] = (1,)
    reference: Callable[..., Any] = doubled

    def group(self, functions: Sequence[Callable[..., Any]], *, label: str = "", **more: Any) -> Group:
        tasks = tuple(
            MpTunerTask(
                ((label,), index),
                self.make_inputs,
                self.gen_args,
                function,
                (ALL_INPUTS,),
                {},
                self.reference,
                (ALL_INPUTS,),
                {},
                None,
            )
            for index, function in enumerate(functions)
        )
        return Group(tasks, tuple(range(len(tasks))), label=label, **more)


class Entry(NamedTuple):
    """A candidate that has its verdict, with what the parent's clock said."""

    began: float
    """When it was handed to a worker."""
    ended: float
    measurement: Measurement


class Diary(Watcher):
    """Keeps everything, and what must not happen: a candidate that is handed out again, a second verdict."""

    def __init__(self):
        self.began, self.entries, self.results = {}, {}, {}
        self.again, self.notes = [], []

    def before_start(self, group, index, attempt, lane):
        if (group, index) in self.began:
            self.again.append((group, index, attempt, lane))
        self.began[group, index] = time.monotonic()

    def measured(self, group, index, measurement, *, logged):
        if (group, index) in self.entries:
            self.again.append((group, index, "a second verdict", str(measurement.status)))
        began = self.began.get((group, index), 0.0)
        self.entries[group, index] = Entry(began, time.monotonic(), measurement)

    def group_ended(self, group, results):
        self.results[group] = list(results)

    def note(self, text):
        self.notes.append(text)

    def of(self, group):
        """The group's entries, in order."""
        return [entry for (number, _), entry in sorted(self.entries.items()) if number == group]


def hold(pool, groups, watcher=None, plan=None, clocks=None):
    """A run to its end; returns its diary."""
    watcher = watcher or Diary()
    clocks = clocks or Clocks(candidate_s=60.0)
    outcome = pool.run(list(groups), plan or MeasurePlan(), clocks, on_fault="continue", watcher=watcher)
    assert outcome.end is RunEnd.done, f"{outcome}; {watcher.notes}; {[lane.last_failure for lane in pool.lanes]}"
    return watcher


class Disturbed(Diary):
    """Keeps the other lanes busy until the trouble, group 0, is over, and for a while longer."""

    def __init__(self, controls):
        super().__init__()
        self._controls = controls
        self._over_at = None
        self._began_at = time.monotonic()
        self._after = {}
        self.device_of_trouble = ""

    def follow_up(self, group, results, number, *, idle):
        if group == 0:
            self._over_at = time.monotonic()
            self.device_of_trouble = results[0].device
            return None
        device = results[0].device
        if self._over_at is not None:
            self._after[device] = self._after.get(device, 0) + 1
        late = time.monotonic() > self._began_at + LONGEST_S
        return None if late or self._after.get(device, 0) > CONTROLS_AFTER else self._controls()

    def controls(self):
        """Entries of the other lanes by device, in order of time."""
        by_device = {}
        for (group, _), entry in self.entries.items():
            if group:
                by_device.setdefault(entry.measurement.device, []).append(entry)
        return {device: sorted(entries) for device, entries in by_device.items()}


class Trouble(NamedTuple):
    """What came of a fault on one lane while all others measured."""

    diary: Disturbed
    fault: Entry
    fault_at: float
    """When it broke; of one that hangs, when its clock had run out."""
    handed_after_s: float
    """From there until the next candidate was handed to a worker that had taken the device."""
    running_after_s: float
    """The same until that candidate's first call."""
    workers: dict[str, tuple[int, int]]
    """Processes of each lane before and after, by device."""

    @property
    def back_at(self):
        return self.fault_at + self.running_after_s


def disturb(pool, operator, good, fault, noting, folder, *, clock_s, plan=None, around=5):
    """A fault on one lane while the others measure ``good`` again and again.

    Args:
        pool: lanes on several devices, standbys ready.
        operator: see there.
        good: a candidate that is right.
        fault: makes the candidate that breaks, from the path of the file for its moment.
        noting: makes the candidate behind it, likewise.
        folder: an empty folder.
        clock_s: what ends a candidate that hangs.
        plan: how to measure.
        around: good candidates before and behind the fault, and on every other lane before it.
    """
    meeting, moment, following = folder / "meeting", folder / "fault", folder / "next"
    meeting.mkdir(parents=True)
    together = Meeting(good, str(meeting), len(pool.lanes))
    goods = [good] * around
    far_enough = [str(folder / f"control-{number}") for number in range(1, len(pool.lanes))]
    before = [together, *goods, WaitsFor(good, tuple(far_enough))]
    trouble = [*before, fault(str(moment)), noting(str(following)), *goods]
    controls = [
        operator.group([together, *goods, Noting(good, file), *[good] * CONTROLS], label="control")
        for file in far_enough
    ]
    diary = Disturbed(lambda: operator.group([good] * CONTROLS, label="control"))
    workers = {lane.device.uuid: lane.worker for lane in pool.lanes if lane.worker is not None}
    groups = [operator.group(trouble, label="trouble", cost=2.0), *controls]
    hold(pool, groups, diary, plan, Clocks(candidate_s=clock_s, compile_s=clock_s))
    place = len(before)
    entry = diary.entries[0, place]
    assert moment.exists(), f"the fault never ran: {entry}"
    at = float(moment.read_text())
    if entry.measurement.status == "timeout":
        at = max(at, diary.began[0, place]) + clock_s
    after = {lane.device.uuid: lane.worker.pid for lane in pool.lanes if lane.worker is not None}
    return Trouble(
        diary,
        entry,
        at,
        diary.began[0, place + 1] - at,
        float(following.read_text()) - at,
        {uuid: (worker.pid, after.get(uuid, 0)) for uuid, worker in workers.items()},
    )


def windows(entries, fault_at, back_at):
    """Latencies before a fault, between it and the lane's return, and after that.

    A candidate counts to what its time overlaps with: one that was running when it happened belongs to the middle.
    """
    before = [entry.measurement.us for entry in entries if entry.ended <= fault_at]
    after = [entry.measurement.us for entry in entries if entry.began >= back_at]
    during = [entry.measurement.us for entry in entries if entry.ended > fault_at and entry.began < back_at]
    return before, during, after


def with_sick_probe(devices, kind, folder):
    """The devices with a probe that fails once ``folder/<uuid>`` is there."""
    return [
        dataclasses.replace(
            device,
            kind=f"op_tests.sick_devices:{kind}",
            settings={**device.settings, "sick": str(Path(folder) / device.uuid)},
        )
        for device in devices
    ]


def wait_for_standbys(pool, operator, good, timeout_s=60.0):
    """Runs small groups until a standby that has done its imports is there: only a run hears of it."""
    deadline = time.monotonic() + timeout_s
    while not pool.standbys_ready:
        assert time.monotonic() < deadline, f"no standby after {timeout_s:g} s"
        hold(pool, [operator.group([good] * 2) for _ in pool.lanes])
