"""Groups that come into being while others run: what follows a group on its lane, whatever became of that one."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aiter_tuning import Pool
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool.feed import Feed
from aiter_tuning.pool.watcher import RunEnd, Watcher
from aiter_tuning.task import Group
from aiter_tuning.tuner.review import Waiting
from op_tests.lane_candidates import Breaks, Meeting, doubled
from op_tests.lane_scenarios import Operator, with_sick_probe
from op_tests.pool.fake_devices import gpu
from op_tests.pool.fault_candidates import right, task, waits_for

pytestmark = pytest.mark.timeout(60)
OPERATOR = Operator()


def group_of(*tasks, **more):
    return Group(tuple(tasks), tuple(range(len(tasks))), **more)


def sound(name):
    return group_of(task((name, 0), right))


def unsendable(name):
    return group_of(task((name, 0), right), data=threading.Lock())


class WaitsForAnIdleLane(Watcher):
    """Has groups that wait until a lane has nothing else to do; keeps what the run tells."""

    run_ahead = True

    def __init__(self, *waiting):
        self.waiting, self.statuses, self.stops, self.ended = list(waiting), {}, [], []

    def measured(self, group, index, measurement, *, logged):
        self.statuses[group, index] = str(measurement.status)

    def stopped(self, group, index, attempt):
        self.stops.append((group, index))

    def follow_up(self, group, results, number, *, idle):
        return self.waiting.pop(0) if idle and self.waiting else None

    def group_ended(self, group, results):
        self.ended.append(group)


def watch(pool, watcher, *groups):
    watcher.outcome = pool.run(list(groups), MeasurePlan(), on_fault="continue", watcher=watcher)
    return watcher


def test_nothing_is_left_once_the_last_group_was_taken():
    feed = Feed([sound("a"), sound("b")], MeasurePlan(), "continue", 0, ahead=1)
    feed.take()
    assert not feed.is_empty
    feed.take()
    assert feed.is_empty, "whoever waits for a lane with nothing else to do is never asked again"


def test_whoever_waits_is_taken_although_the_last_group_could_not_be_sent(one_lane):
    seen = watch(
        one_lane, WaitsForAnIdleLane(sound("waits"), unsendable("too"), sound("last")), sound("a"), unsendable("b")
    )
    assert seen.statuses == {(0, 0): "ok", (1, 0): "crash", (2, 0): "ok", (3, 0): "crash", (4, 0): "ok"}
    assert seen.ended == [0, 1, 2, 3, 4] and not seen.waiting and seen.outcome.end is RunEnd.done


def test_whoever_waits_for_a_fresh_worker_is_taken_although_the_last_group_could_not_be_sent(one_lane):
    waits = group_of(task(("waits", 0), right), fresh=True)
    seen = watch(one_lane, WaitsForAnIdleLane(waits), sound("a"), unsendable("b"))
    assert seen.statuses == {(0, 0): "ok", (1, 0): "crash", (2, 0): "ok"}


class StopsWithTheLastWord(WaitsForAnIdleLane):
    """Stops the run when the only group's verdict has arrived and nobody has read it yet."""

    tick_s = 0.01

    def __init__(self, pool, door, *waiting):
        super().__init__(*waiting)
        self.pool, self.door = pool, door

    def tick(self, lanes):
        if lanes[0].candidate == 0 and not self.door.exists():
            self.door.touch()
            while not self.pool.lanes[0].worker.has_message():
                time.sleep(0.001)
            self.pool.request_stop()


def test_nothing_follows_the_last_words_of_a_run_that_is_stopped(one_lane, tmp_path):
    door = tmp_path / "door"
    held = group_of(task(("a", 0), waits_for, str(door)))
    seen = watch(one_lane, StopsWithTheLastWord(one_lane, door, sound("next")), held)
    assert seen.outcome.end is RunEnd.interrupted
    assert (seen.statuses, seen.ended, seen.stops) == ({(0, 0): "ok"}, [0], [])


class LooksAgain(Watcher):
    """Has every group of the list followed by one for a fresh worker, as decisions that change rows are."""

    run_ahead = True
    expected_s = 0.0

    def __init__(self, follow_ups):
        self.follow_ups, self.waiting, self.ended = follow_ups, Waiting(), {}

    def follow_up(self, group, results, number, *, idle):
        if group < len(self.follow_ups):
            self.waiting.add(self.follow_ups[group], expected_s=self.expected_s)
        else:
            self.waiting.ended()
        return self.waiting.take(idle=idle, is_fresh=group >= len(self.follow_ups))

    def group_ended(self, group, results):
        self.ended[group] = [str(result.status) for result in results]


def fresh(*functions):
    return replace(OPERATOR.group(functions), fresh=True)


def test_whoever_waits_is_taken_whichever_workers_die(one_lane, tmp_path):
    dies = Breaks("exits", str(tmp_path / "moment"))
    groups = [OPERATOR.group([doubled, last]) for last in (doubled, dies, dies)]
    seen = watch(one_lane, LooksAgain([fresh(doubled, dies), fresh(dies), fresh(doubled)]), *groups)
    assert [seen.ended[group] for group in range(3)] == [["ok", "ok"], ["ok", "crash"], ["ok", "crash"]]
    assert [seen.ended[group] for group in range(3, 6)] == [["ok", "crash"], ["crash"], ["ok"]]


class SickensItsLane(LooksAgain):
    """Makes a device sick once both lanes have had a group: its lane gets no other worker."""

    expected_s = 60.0  # so long that both lanes want a fresh worker

    def __init__(self, device, follow_ups):
        super().__init__(follow_ups)
        self.device = device

    def measured(self, group, index, measurement, *, logged):
        if measurement.device == self.device.uuid:
            Path(self.device.settings["sick"]).touch()


def test_what_a_lane_had_taken_up_when_it_was_retired_is_taken_by_another(tmp_path):
    devices = with_sick_probe([gpu(0), gpu(1)], "SickFake", tmp_path)
    (tmp_path / "meeting").mkdir()
    groups = [OPERATOR.group([Meeting(doubled, str(tmp_path / "meeting"), 2), doubled]) for _ in range(4)]
    with Pool(devices) as pool:
        seen = watch(pool, SickensItsLane(devices[1], [fresh(doubled) for _ in groups]), *groups)
        assert [lane.state for lane in pool.lanes] == ["idle", "retired"]
    assert seen.outcome.end is RunEnd.done and list(seen.ended.values()).count(["ok"]) == 4 and len(seen.ended) == 8


def test_a_lane_without_work_leaves_what_waits_to_the_one_that_has_a_fresh_worker(tmp_path):
    """Two lanes with nothing else to do would start a worker each, for what takes one of them a moment."""

    class Where(LooksAgain):
        def measured(self, group, index, measurement, *, logged):
            devices.setdefault(group, set()).add(measurement.device)

    devices = {}
    (tmp_path / "meeting").mkdir()
    groups = [OPERATOR.group([Meeting(doubled, str(tmp_path / "meeting"), 2), doubled]) for _ in range(2)]
    with Pool([gpu(0), gpu(1)]) as pool:
        seen = watch(pool, Where([fresh(doubled), fresh(doubled)]), *groups)
    assert seen.outcome.end is RunEnd.done and seen.ended[2] == seen.ended[3] == ["ok"]
    assert devices[0] != devices[1] and devices[2] == devices[3] and len(devices[2]) == 1
