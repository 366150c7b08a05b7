"""What goes on around a lane becomes flags of what is measured meanwhile."""

import pytest

from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool.board import CIRCUMSTANCES, STANDBY, bits_of
from aiter_tuning.pool.watcher import Watcher
from aiter_tuning.task import Group
from op_tests.pool.fault_candidates import right, sleeps, task


class FlagsSeen(Watcher):
    def __init__(self):
        self.seen = []

    def measured(self, group, index, measurement, *, logged):
        self.seen.append(set(measurement.flags) - {"standby"})


class ScriptedMonitor:
    """Says what it is told to say."""

    def __init__(self, *flags):
        self.now = flags
        self.workers = []

    def flags(self, device):
        return self.now

    def know(self, workers):
        self.workers = list(workers)

    def close(self):
        pass


def groups(func=right, *extra):
    return [Group((task(("s", 0), func, *extra),), (0,))]


@pytest.fixture
def around(one_lane, monkeypatch):
    def make(*flags):
        monitor = ScriptedMonitor(*flags)
        monkeypatch.setattr(one_lane, "monitor", monitor)
        return monitor

    yield make
    monkeypatch.undo()
    one_lane.post_circumstances()


def test_every_circumstance_has_a_bit_of_its_own():
    assert len(CIRCUMSTANCES) == bits_of(CIRCUMSTANCES.values()).bit_count()
    assert bits_of(("standby",)) == STANDBY
    assert bits_of(()) == bits_of(("unheard of",)) == 0


def test_what_is_measured_beside_a_stranger_on_a_slow_gpu_says_so(one_lane, around):
    monitor, watcher = around("throttled", "foreign"), FlagsSeen()
    one_lane.run(groups(), MeasurePlan())  # the lane has its worker now
    one_lane.post_circumstances()
    one_lane.run(groups(), MeasurePlan(), watcher=watcher)
    assert watcher.seen == [{"throttled", "foreign"}]
    assert monitor.workers == [(one_lane.devices[0].uuid, one_lane.lanes[0].worker.pid)]
    monitor.now = ()
    one_lane.post_circumstances()
    one_lane.run(groups(), MeasurePlan(), watcher=watcher)
    assert watcher.seen[1] == set()


def test_throttling_that_begins_while_a_candidate_runs_is_flagged(one_lane, around):
    class Heats(FlagsSeen):
        tick_s = 0.05

        def tick(self, lanes):
            if lanes[0].state in ("compiling", "measuring"):
                monitor.now = ("throttled",)

    monitor, watcher = around(), Heats()
    one_lane.run(groups(sleeps, 0.1), MeasurePlan(warmup=0, iters=5), watcher=watcher)
    assert watcher.seen == [{"throttled"}]
