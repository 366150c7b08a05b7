"""Rows that workers write themselves."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from aiter_tuning.keys import Key
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool.watcher import Clocks, Watcher
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.task import Group, LogbookError
from op_tests.pool.fault_candidates import (
    exits,
    inputs_raise,
    loops_for_ever,
    right,
    runs_out_of_memory_first,
    sleeps,
    task,
    writes_half,
)

pytestmark = pytest.mark.timeout(120)
KEY = Key(N=int)
PRINT = "0123456789ab"


class Recorder(Watcher):
    """What a tuner does: rows of verdicts that no worker could write."""

    run_ahead = True

    def __init__(self, checkpoint, shape, names):
        self.checkpoint, self.shape, self.names = checkpoint, shape, names
        self.logged = []

    def measured(self, group, index, measurement, *, logged):
        self.logged.append(logged)
        if not logged:
            self.checkpoint.finished(self.shape, self.names[index], measurement, fingerprint=PRINT)

    def stopped(self, group, index, attempt):
        self.checkpoint.stopped(self.shape, self.names[index], attempt=attempt, fingerprint=PRINT)


@pytest.fixture
def logged(tmp_path):
    """A checkpoint, and a way to measure candidates with its logbook."""
    checkpoint = Checkpoint.open(tmp_path / "out.csv", KEY, RunFingerprint({"a": "b"}))

    def measure(pool, *tasks, attempts=None, **more):
        names = [f"c{index}" for index in range(len(tasks))]
        shape = {"N": 8}
        logbook = checkpoint.logbook(shape, names, dict.fromkeys(names, PRINT), attempts or {})
        watcher = Recorder(checkpoint, shape, names)
        group = Group(tuple(tasks), tuple(range(len(tasks))), logbook=logbook)
        more.setdefault("clocks", Clocks(candidate_s=1.5))
        pool.run([group], MeasurePlan(), on_fault="continue", watcher=watcher, **more)
        return watcher

    measure.checkpoint = checkpoint
    measure.rows = lambda: [
        line.split(",")[:6] for line in checkpoint.path.read_text().splitlines()[2:]
    ]  # event, N, candidate, phase, attempt, status
    yield measure
    checkpoint.close()


def events(rows):
    return [(row[0], row[2], row[4], row[5]) for row in rows]


def test_each_candidate_has_a_row_before_and_one_after(one_lane, logged):
    logged(one_lane, task("a", right), task("b", writes_half))
    assert events(logged.rows()) == [
        ("started", "c0", "1", ""),
        ("finished", "c0", "1", "ok"),
        ("started", "c1", "1", ""),
        ("finished", "c1", "1", "mismatch"),
    ]


def test_verdicts_about_the_dead_are_the_parents_to_write(one_lane, logged):
    watcher = logged(one_lane, task("a", exits), task("b", loops_for_ever), task("c", right))
    assert watcher.logged == [False, False, True]
    assert [row for row in events(logged.rows()) if row[0] == "finished"] == [
        ("finished", "c0", "1", "crash"),
        ("finished", "c1", "1", "timeout"),
        ("finished", "c2", "1", "ok"),
    ]


def test_a_try_that_is_repeated_has_no_verdict_of_its_own(one_lane, logged, tmp_path):
    logged(one_lane, task("a", runs_out_of_memory_first, str(tmp_path / "flag")))
    assert events(logged.rows()) == [
        ("started", "c0", "1", ""),
        ("started", "c0", "2", ""),
        ("finished", "c0", "2", "ok"),
    ]


def test_inputs_that_fail_give_every_sharer_one_row(one_lane, logged):
    logged(one_lane, task("a", right, gen=inputs_raise), task("b", right, gen=inputs_raise))
    assert [row for row in events(logged.rows()) if row[0] == "finished"] == [
        ("finished", "c0", "1", "crash"),
        ("finished", "c1", "1", "crash"),
    ]


def test_attempts_of_earlier_runs_are_counted_on(one_lane, logged):
    logged(one_lane, task("a", right), attempts={"c0": 3})
    assert events(logged.rows()) == [("started", "c0", "4", ""), ("finished", "c0", "4", "ok")]


def test_what_a_budget_stopped_is_no_suspect(one_lane, logged):
    logged(one_lane, task("a", right), task("b", sleeps, 30), clocks=Clocks(), budget_s=1.0)
    rows = events(logged.rows())
    assert rows[-2:] == [("started", "c1", "1", ""), ("stopped", "c1", "1", "")]


def test_a_logbook_that_cannot_be_written_ends_the_run_and_leaves_whole_rows(one_lane, logged, tmp_path):
    logged.checkpoint.path.rename(tmp_path / "moved.csv")
    logged.checkpoint.path.write_text("somebody else's file\n")
    with pytest.raises(LogbookError) as caught:
        logged(one_lane, task("a", right))
    assert caught.value.errno == errno.ESTALE
    assert "was replaced while the run went on" in caught.value.strerror
    assert logged.checkpoint.path.read_text() == "somebody else's file\n"
    logged.checkpoint.path.unlink()


def test_a_candidate_that_closes_the_logbook_loses_no_row(one_lane, logged):
    logged(one_lane, task("a", right), task("b", closes_the_logbook), task("c", right))
    assert [row[3] for row in events(logged.rows()) if row[0] == "finished"] == ["ok", "ok", "ok"]


def test_a_candidate_that_closes_everything_has_one_verdict_on_file(one_lane, logged):
    logged(one_lane, task("a", closes_everything_but_answers), task("b", right))
    finished = [row for row in events(logged.rows()) if row[0] == "finished"]
    assert finished == [("finished", "c0", "1", "crash"), ("finished", "c1", "1", "ok")]


def closes_everything_but_answers(x, y):
    os.closerange(3, 1024)
    y.copy_(x * 2)
    return y


def closes_the_logbook(x, y):
    for fd in os.listdir("/proc/self/fd"):
        if "checkpoint" in os.path.realpath(f"/proc/self/fd/{fd}"):
            os.close(int(fd))
    y.copy_(x * 2)
    return y


KILLED = """
import os, sys
sys.path[:0] = [{root!r}]
from aiter_tuning import Pool
from aiter_tuning.keys import Key
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool.watcher import Watcher
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.task import Group
from op_tests.pool.fault_candidates import right, sleeps, task

class Ahead(Watcher):
    run_ahead = True

checkpoint = Checkpoint.open({out!r}, Key(N=int), RunFingerprint({{"a": "b"}}))
names = ["c0", "c1", "c2"]
logbook = checkpoint.logbook({{"N": 8}}, names, dict.fromkeys(names, "0123456789ab"), {{}})
group = Group((task("a", right), task("b", right), task("c", sleeps, 3600)), (0, 1, 2), logbook=logbook)
with Pool("cpu", 1) as pool:
    pool.run([group], MeasurePlan(), watcher=Ahead())
"""


def test_kill_9_of_the_parent_keeps_every_row_and_the_one_that_ran_is_a_suspect(tmp_path):
    out = tmp_path / "out.csv"
    code = KILLED.format(root=os.getcwd(), out=str(out))
    parent = subprocess.Popen([sys.executable, "-c", code])
    path = tmp_path / "out.checkpoint.csv"
    deadline = time.monotonic() + 60
    while not (path.exists() and "started,8,c2" in path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    with Checkpoint.open(out, KEY, RunFingerprint({"a": "b"})) as checkpoint:
        prints = dict.fromkeys(["c0", "c1", "c2"], PRINT)
        assert set(checkpoint.finished_results({"N": 8}, prints)) == {"c0", "c1"}
        assert checkpoint.suspects({"N": 8}) == {"c2": 1}
