"""Workers that die of something other than a candidate, at every moment of their lives."""

import os
import signal
import threading
import time

import pytest

from aiter_tuning import Pool, mp_tuner
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool.process import describe_exit
from aiter_tuning.pool.watcher import Watcher
from aiter_tuning.task import Group
from op_tests.conftest import small_lanes
from op_tests.pool.fault_candidates import (
    aborts,
    announces_and_waits,
    counts_and_runs_out_of_memory,
    exits,
    fails_first,
    is_always_reset,
    is_reset_first,
    loops_for_ever,
    right,
    right_and_counted,
    runs_out_of_memory_first,
    segfaults,
    task,
    tells_its_limits,
    tells_its_process,
)
from op_tests.processes import descendants, read_pid, wait_for

pytestmark = pytest.mark.timeout(120)


def kill_when_written(file):
    """A bystander that kills the process whose id appears in ``file``."""
    thread = threading.Thread(target=lambda: os.kill(read_pid(file), signal.SIGKILL))
    thread.start()
    return thread


@pytest.mark.parametrize("mode", ["continue", "abandon"])
def test_a_worker_killed_by_a_stranger_while_busy_costs_nothing(two_lanes, tmp_path, mode):
    file, log = tmp_path / "pid", tmp_path / "log"
    bystander = kill_when_written(file)
    tasks = [
        task(("killed", 0), right),
        task(("killed", 1), announces_and_waits, str(file)),
        task(("killed", 2), right),
        *(task(("beside", i), right_and_counted, str(log)) for i in range(3)),
    ]
    results = mp_tuner(
        tasks, [(3, None), (3, None)], shape_grouped=True, return_status=True, on_fault=mode, pool=two_lanes
    )
    bystander.join()
    assert [result.status for result in results] == ["ok"] * 6
    calls_of_one = 1 + 2 + 1  # checked, timed, verified
    assert log.read_text() == "x" * (3 * calls_of_one)


@pytest.mark.parametrize("mode", ["continue", "abandon"])
def test_a_reset_of_the_gpu_is_forgiven_once_since_another_lanes_hang_may_be_behind_it(one_lane, tmp_path, mode):
    """amdgpu resets all GPUs of an XGMI hive together, and ROCm aborts every process that has one of them."""
    tasks = [
        task(("reset", 0), right),
        task(("reset", 1), is_reset_first, str(tmp_path / "tries")),
        task(("reset", 2), is_always_reset),
    ]
    results = mp_tuner(tasks, [(3, None)], shape_grouped=True, return_status=True, on_fault=mode, pool=one_lane)
    assert [result.status for result in results] == ["ok", "ok", "crash"]
    assert "SIGABRT" in results[2].detail and "GPU Hang" in results[2].detail


def test_the_attempt_that_was_killed_is_counted(one_lane, tmp_path):
    seen = []

    class Attempts(Watcher):
        def measured(self, group, index, measurement, *, logged):
            seen.append(measurement.attempt)

    group = Group((task(("s", 0), fails_first, str(tmp_path / "flag")), task(("s", 1), right)), (0, 1))
    one_lane.run([group], MeasurePlan(), retries=1, watcher=Attempts())
    assert seen == [2, 1]


@pytest.mark.parametrize("mode", ["continue", "abandon"])
def test_a_candidate_that_kills_its_worker_once_is_ok_with_one_retry(one_lane, tmp_path, mode):
    tasks = [task(("s", 0), fails_first, str(tmp_path / "flag")), task(("s", 1), right)]
    results = mp_tuner(tasks, [(2, None)], return_status=True, on_fault=mode, retries=1, pool=one_lane)
    assert [result.status for result in results] == ["ok", "ok"]


def test_memory_that_runs_out_once_is_ok_in_a_clean_worker(one_lane, tmp_path):
    file = tmp_path / "pids"
    tasks = [
        task(("s", 0), tells_its_process, str(file)),
        task(("s", 1), runs_out_of_memory_first, str(tmp_path / "flag")),
        task(("s", 2), tells_its_process, str(file)),
    ]
    results = mp_tuner(tasks, [(3, None)], return_status=True, pool=one_lane)
    assert [result.status for result in results] == ["ok"] * 3
    assert len(set(file.read_text().split())) == 2


def test_a_candidate_that_always_runs_out_of_memory_is_tried_twice(one_lane, tmp_path):
    file = tmp_path / "tries"
    tasks = [task(("s", 0), counts_and_runs_out_of_memory, str(file)), task(("s", 1), right)]
    results = mp_tuner(tasks, [(2, None)], return_status=True, pool=one_lane)
    assert [(result.status, result.us > 0) for result in results] == [("oom_runtime", False), ("ok", True)]
    assert file.read_text() == "xx"


def test_a_worker_killed_between_groups_costs_nothing(one_lane):
    ask = lambda: mp_tuner([task(("s", 0), right)], [(1, None)], return_status=True, pool=one_lane)  # noqa: E731
    assert ask()[0].status == "ok"
    os.kill(one_lane.lanes[0].worker.pid, signal.SIGKILL)
    assert ask()[0].status == "ok"


def test_a_worker_that_dies_after_its_answer_costs_the_next_candidate_nothing(one_lane):
    class Ahead(Watcher):
        run_ahead = True

        def __init__(self):
            self.seen = []

        def measured(self, group, index, measurement, *, logged):
            self.seen.append((index, str(measurement.status), measurement.attempt))
            if index == 0:  # the worker has gone on by itself: kill it while it waits to begin, or has begun, the next
                os.kill(one_lane.lanes[0].worker.pid, signal.SIGKILL)

    watcher = Ahead()
    group = Group(tuple(task(("s", i), right) for i in range(3)), (0, 1, 2))
    one_lane.run([group], MeasurePlan(), watcher=watcher)
    assert [(index, status) for index, status, _ in watcher.seen] == [(0, "ok"), (1, "ok"), (2, "ok")]


def test_a_worker_killed_while_starting_is_replaced():
    with Pool(small_lanes(1)) as pool:
        os.kill(pool.lanes[0].worker.pid, signal.SIGKILL)
        [result] = mp_tuner([task(("s", 0), right)], [(1, None)], return_status=True, pool=pool)
        assert result.status == "ok"


def test_dead_standbys_are_replaced_when_they_are_needed(one_lane, tmp_path):
    mp_tuner([task(("s", 0), right)], [(1, None)], pool=one_lane)
    standby = next(iter(one_lane._standbys.values()))
    os.kill(standby.pid, signal.SIGKILL)
    tasks = [task(("s", 0), fails_first, str(tmp_path / "flag")), task(("s", 1), right)]
    results = mp_tuner(tasks, [(2, None)], return_status=True, on_fault="continue", pool=one_lane)
    assert [result.status for result in results] == ["crash", "ok"]


def test_a_deaf_candidate_is_killed_on_time_and_its_neighbour_measured(one_lane):
    started = time.monotonic()
    tasks = [task(("s", 0), loops_for_ever), task(("s", 1), right)]
    results = mp_tuner(tasks, [(2, None)], return_status=True, on_fault="continue", candidate_timeout=2, pool=one_lane)
    assert [result.status for result in results] == ["timeout", "ok"]
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("timeout", [None, 600])
def test_a_dead_worker_is_noticed_at_once_whatever_the_clocks(one_lane, timeout):
    started = time.monotonic()
    tasks = [task((f"shape{i}", 0), func) for i, func in enumerate((right, exits, right))]
    results = mp_tuner(tasks, [(1, None)] * 3, shape_grouped=True, return_status=True, timeout=timeout, pool=one_lane)
    assert [result.status for result in results] == ["ok", "crash", "ok"]
    assert time.monotonic() - started < 30


def test_a_segmentation_fault_is_called_by_its_name(one_lane):
    [result] = mp_tuner([task(("s", 0), segfaults)], [(1, None)], return_status=True, timeout=600, pool=one_lane)
    assert result.status == "crash"
    assert "signal 11" in result.detail
    assert "hang" not in result.detail
    assert "string_at" in result.detail  # the Python frame that it happened in


def test_closing_a_pool_ends_all_it_started():
    pool = Pool(small_lanes(2))
    mp_tuner([task((i, 0), right) for i in range(2)], [(1, None)] * 2, shape_grouped=True, pool=pool)
    tokens = {lane.worker.token for lane in pool.lanes} | {standby.token for standby in pool._standbys.values()}
    assert len(descendants(tokens)) == len(tokens) >= 2
    pool.close()
    wait_for(lambda: descendants(tokens) == [])
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        mp_tuner([task(("s", 0), right)], [(1, None)], pool=pool)


def test_workers_dump_no_core(one_lane, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "limits"
    tasks = [task(("s", 0), tells_its_limits, str(file)), task(("s", 1), aborts)]
    results = mp_tuner(tasks, [(2, None)], return_status=True, pool=one_lane)
    assert [result.status for result in results] == ["ok", "crash"]
    assert "Max core file size        0                    0" in file.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["limits"]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (7, "exited with code 7"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (-77, "was killed by signal 77"),
        (None, "is gone"),
    ],
)
def test_an_exit_code_is_put_into_words(code, text):
    assert describe_exit(code) == text
