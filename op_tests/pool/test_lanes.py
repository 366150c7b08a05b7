"""Lanes, devices, clocks: what the pool does about them."""

import os
import time

import pytest

from aiter_tuning import NoDeviceError, Pool, mp_tuner
from aiter_tuning.devices.cpu import cpu_lanes, isa_level, physical_cores
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool.watcher import Clocks, RunEnd, Watcher
from aiter_tuning.task import Group
from op_tests.pool.fake_devices import gpu
from op_tests.pool.fault_candidates import exits, right, sleeps, task, tells_its_process
from op_tests.processes import wait_for

pytestmark = pytest.mark.timeout(120)


def shapes(count, func=right, *extra):
    return [task((f"shape{i}", 0), func, *extra) for i in range(count)]


def statuses(results):
    return [str(result.status) for result in results]


def visible(x, y, file):
    with open(file, "a") as log:
        log.write(os.environ["FAKE_VISIBLE_DEVICES"] + "\n")
    time.sleep(0.05)
    y.copy_(x * 2)
    return y


def test_each_worker_sees_its_own_device_and_a_shared_standby_serves_any(tmp_path):
    file = tmp_path / "seen"
    with Pool([gpu(0), gpu(1)]) as pool:
        tasks = [task((f"s{i}", 0), visible, str(file)) for i in range(4)]

        def both_lanes_work():
            results = mp_tuner(tasks, [(1, None)] * 4, shape_grouped=True, return_status=True, pool=pool)
            assert statuses(results) == ["ok"] * 4
            assert set(file.read_text().split()) <= {"0", "1"}
            return set(file.read_text().split()) == {"0", "1"}

        wait_for(both_lanes_work, 60)
        assert list(pool._standbys) == ["op_tests.pool.fake_devices:FakeGpu"]
        results = mp_tuner(shapes(4, exits), [(1, None)] * 4, shape_grouped=True, return_status=True, pool=pool)
        assert statuses(results) == ["crash"] * 4
        file.unlink()
        wait_for(both_lanes_work, 60)


def test_only_workers_create_a_device_context_and_each_creates_one(tmp_path):
    file = tmp_path / "contexts"
    with Pool([gpu(0, "CountedGpu", file=str(file))]) as pool:
        tasks = [task(("s", i), func) for i, func in enumerate((right, exits, right))]
        results = mp_tuner(tasks, [(3, None)], return_status=True, on_fault="continue", pool=pool)
    assert statuses(results) == ["ok", "crash", "ok"]
    processes = file.read_text().split()
    assert len(processes) == len(set(processes)) == 2
    assert str(os.getpid()) not in processes


def test_a_lane_whose_probe_keeps_failing_is_retired_and_the_others_finish(tmp_path):
    sick = tmp_path / "probes"
    notes = []

    class Notes(Watcher):
        def note(self, text):
            notes.append(text)

    with Pool([gpu(0), gpu(1, "SickGpu", file=str(sick))]) as pool:
        groups = [Group((one,), (0,)) for one in shapes(6, sleeps, 0.6)]
        outcome = pool.run(groups, MeasurePlan(), watcher=Notes())
        while not pool.lanes[1].retired:
            pool.run([Group((one,), (0,)) for one in shapes(2, sleeps, 0.3)], MeasurePlan(), watcher=Notes())
        assert outcome.end is RunEnd.done
        assert sick.read_text() == "ppp"
        assert any("gpu1 is retired" in note and "the small product is wrong" in note for note in notes)


def test_with_no_lane_left_everything_is_not_run_and_the_reason_is_told(tmp_path, caplog):
    with Pool([gpu(0, "SickGpu", file=str(tmp_path / "probes"))]) as pool:
        results = mp_tuner(shapes(2), [(1, None)] * 2, shape_grouped=True, return_status=True, pool=pool)
    assert statuses(results) == ["not_run", "not_run"]
    assert "the small product is wrong" in results[0].detail
    assert "no usable device is left" in caplog.text


def test_a_probe_that_fails_once_only_delays(tmp_path, monkeypatch):
    monkeypatch.setenv("SICK_PROBES", "1")
    with Pool([gpu(0, "SickGpu", file=str(tmp_path / "probes"))]) as pool:
        assert statuses(mp_tuner(shapes(1), [(1, None)], return_status=True, pool=pool)) == ["ok"]
    assert (tmp_path / "probes").read_text() == "pp"


def test_a_worker_that_got_another_device_is_refused():
    with Pool([gpu(0, "SwappedGpu")]) as pool:
        [result] = mp_tuner(shapes(1), [(1, None)], return_status=True, pool=pool)
    assert result.status == "not_run"
    assert "got device fake-of-somebody-else instead of fake-0" in result.detail


def test_start_up_has_a_clock_of_its_own():
    """Without a standby, which may have done its imports by the time that the third start is tried."""
    started = time.monotonic()
    with Pool("cpu", 1, startup_timeout=0.02, standbys=False) as pool:
        [result] = mp_tuner(shapes(1), [(1, None)], return_status=True, pool=pool, candidate_timeout=50)
    assert result.status == "not_run"
    assert "did not answer within 0.02 s" in result.detail
    assert time.monotonic() - started < 30


def test_starting_is_not_charged_to_a_candidate():
    tasks = [task(("s", 0), exits), task(("s", 1), right), task(("s", 2), right)]
    results = mp_tuner(
        tasks, [(3, None)], return_status=True, on_fault="continue", candidate_timeout=0.7, timeout=1.2, devices="cpu"
    )
    assert statuses(results) == ["crash", "ok", "ok"]


def test_the_first_call_may_compile_under_a_clock_of_its_own(one_lane, tmp_path):
    file = tmp_path / "compiled"

    results = mp_tuner(
        [task(("s", 0), sleeps_first, str(file), 1.5), task(("s", 1), sleeps, 1.0)],
        [(2, None)],
        return_status=True,
        on_fault="continue",
        compile_timeout=10,
        candidate_timeout=0.7,
        pool=one_lane,
    )
    assert statuses(results) == ["ok", "timeout"]
    assert "(candidate clock)" in results[1].detail


def sleeps_first(x, y, file, seconds):
    if not os.path.exists(file):
        open(file, "w").close()
        time.sleep(seconds)
    y.copy_(x * 2)
    return y


def test_a_compile_that_never_ends_is_killed_by_its_own_clock(one_lane):
    results = mp_tuner(
        [task(("s", 0), sleeps, 60), task(("s", 1), right)],
        [(2, None)],
        return_status=True,
        on_fault="continue",
        compile_timeout=0.7,
        candidate_timeout=60,
        pool=one_lane,
    )
    assert statuses(results) == ["timeout", "ok"]
    assert "(compile clock)" in results[0].detail


@pytest.mark.parametrize(
    ("mode", "expected"), [("continue", ["ok", "not_run", "not_run"]), ("abandon", ["ok", "timeout", "not_run"])]
)
def test_the_groups_clock(one_lane, mode, expected):
    tasks = [task(("s", 0), right), task(("s", 1), sleeps, 30), task(("s", 2), right), task(("next", 0), right)]
    results = mp_tuner(tasks, [(3, None), (1, None)], return_status=True, on_fault=mode, timeout=1.0, pool=one_lane)
    assert statuses(results) == [*expected, "ok"]


def test_waiting_for_a_lane_is_charged_to_nobody(one_lane):
    tasks = [task((f"s{i}", 0), sleeps, 0.2, iters=1) for i in range(3)]
    results = mp_tuner(tasks, [(1, None)] * 3, return_status=True, timeout=1.5, candidate_timeout=1.5, pool=one_lane)
    assert statuses(results) == ["ok"] * 3


def test_a_slow_callback_makes_nobody_late(two_lanes):
    tasks = [task((f"s{i}", 0), right) for i in range(6)]
    results = mp_tuner(
        tasks,
        [(1, None)] * 6,
        shape_grouped=True,
        return_status=True,
        candidate_timeout=0.3,
        result_callback=lambda result: time.sleep(0.5),
        pool=two_lanes,
    )
    assert statuses(results) == ["ok"] * 6


def leaks(x, y, hoard=[]):  # noqa: B006 - the hoard is meant to stay
    import torch

    hoard.append(torch.ones(250 << 18))
    time.sleep(0.4)  # memory is looked at once a second
    y.copy_(x * 2)
    return y


def test_a_worker_that_keeps_growing_is_replaced_and_nobody_is_blamed(one_lane, tmp_path):
    file, notes = tmp_path / "pids", []

    class Notes(Watcher):
        def note(self, text):
            notes.append(text)

    def measure(func, *extra):
        one = task(("s", 0), func, *extra)._replace(kwargs={"num_warmup": 0, "num_iters": 1})
        return one_lane.run([Group((one,), (0,))], MeasurePlan(fast_mode=True), watcher=Notes())

    measure(tells_its_process, str(file))
    assert measure(leaks).end is RunEnd.done
    measure(tells_its_process, str(file))
    pids = file.read_text().split()
    assert len(set(pids)) == 2
    assert any("grew" in note for note in notes)


def test_healthy_candidates_share_one_process(one_lane, tmp_path):
    file = tmp_path / "pids"
    tasks = [task(("s", i), tells_its_process, str(file)) for i in range(5)]
    mp_tuner(tasks, [(5, None)], pool=one_lane)
    assert len(set(file.read_text().split())) == 1


def test_after_a_device_fault_the_next_candidate_runs_in_another_process(one_lane, tmp_path):
    from op_tests.pool.fault_candidates import raises_illegal_access

    file = tmp_path / "pids"
    tasks = [
        task(("s", 0), tells_its_process, str(file)),
        task(("s", 1), raises_illegal_access),
        task(("s", 2), tells_its_process, str(file)),
    ]
    results = mp_tuner(tasks, [(3, None)], return_status=True, on_fault="continue", pool=one_lane)
    assert statuses(results) == ["ok", "crash", "ok"]
    assert len(set(file.read_text().split())) == 2


def test_the_longest_group_is_handed_out_first(one_lane):
    order = []

    class Order(Watcher):
        def before_start(self, group, index, attempt, lane):
            order.append(group)

    groups = [Group((one,), (0,), cost=cost) for one, cost in zip(shapes(4), (1.0, 5.0, 3.0, 5.0), strict=True)]
    one_lane.run(groups, MeasurePlan(), watcher=Order())
    assert order == [1, 3, 2, 0]


def test_a_budget_ends_the_run_with_what_it_has(one_lane):
    ended, stopped = {}, []

    class Ends(Watcher):
        def group_ended(self, group, results):
            ended[group] = [str(result.status) for result in results]

        def stopped(self, group, index, attempt):
            stopped.append((group, index, attempt))

    groups = [Group(tuple(task(("s", i), sleeps, 0.3 if i else 0.0, iters=1) for i in range(9)), tuple(range(9)))]
    outcome = one_lane.run(groups, MeasurePlan(), watcher=Ends(), budget_s=2.0)
    assert outcome.end is RunEnd.budget
    assert ended[0][0] == "ok"
    assert ended[0][-1] == "not_run"
    assert stopped == [(0, ended[0].index("not_run"), 1)]


def test_a_watcher_that_raises_ends_the_run_with_its_error_and_the_pool_lives_on(two_lanes):
    seen = []

    def callback(result):
        seen.append(result.info)
        if len(seen) == 2:
            raise OSError("disk full")

    tasks = shapes(6)
    with pytest.raises(OSError, match="disk full"):
        mp_tuner(
            tasks, [(1, None)] * 6, shape_grouped=True, return_status=True, result_callback=callback, pool=two_lanes
        )
    assert len(seen) == 2
    results = mp_tuner(tasks, [(1, None)] * 6, shape_grouped=True, return_status=True, pool=two_lanes)
    assert statuses(results) == ["ok"] * 6


def test_a_tick_tells_what_runs_where(one_lane):
    views = []

    class Ticks(Watcher):
        tick_s = 0.1

        def tick(self, lanes):
            views.extend(lanes)

    group = Group((task(("s", 0), sleeps, 0.4, iters=1),), (0,))
    one_lane.run([group], MeasurePlan(), Clocks(candidate_s=30), watcher=Ticks())
    busy = [view for view in views if view.state == "measuring"]
    assert busy
    assert (busy[-1].name, busy[-1].group, busy[-1].candidate) == ("cpu0", 0, 0)
    assert busy[-1].since_s > 0


def test_a_pool_serves_one_run_at_a_time(one_lane):
    def nested(result):
        mp_tuner(shapes(1), [(1, None)], pool=one_lane)

    with pytest.raises(RuntimeError, match="busy"):
        mp_tuner(shapes(1), [(1, None)], result_callback=nested, pool=one_lane)


def test_workers_adopt_what_the_parent_sees_now(one_lane, tmp_path, monkeypatch):
    file = tmp_path / "seen"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOLD_LATER", "yes")
    assert statuses(
        mp_tuner([task(("s", 0), tells_surroundings, str(file))], [(1, None)], return_status=True, pool=one_lane)
    ) == ["ok"]
    assert file.read_text() == f"{tmp_path} yes"


def tells_surroundings(x, y, file):
    with open(file, "w") as log:
        log.write(f"{os.getcwd()} {os.environ.get('TOLD_LATER')}")
    y.copy_(x * 2)
    return y


def test_a_lane_is_a_set_of_physical_cores_and_a_remainder_stays_idle():
    lanes = cpu_lanes(2, cores=(0, 2, 4, 6, 8))
    assert [lane.cores for lane in lanes] == [(0, 2), (4, 6)]
    assert {lane.cu_num for lane in lanes} == {2}
    assert cpu_lanes(0, cores=(0, 1, 2))[0].cores == (0, 1, 2)
    assert len(cpu_lanes(9, cores=(0, 1))) == 2


def test_of_two_hyperthreads_one_is_a_core(tmp_path):
    mine = sorted(os.sched_getaffinity(0))
    for cpu in mine:
        (tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}/topology/thread_siblings_list").write_text(f"{mine[0]}-{mine[-1]}\n")
    assert physical_cores(tmp_path) == (mine[0],)


def test_the_instruction_set_has_a_level():
    assert isa_level("aarch64", set()) == "aarch64"
    assert isa_level("x86_64", {"sse4_2"}) == "x86-64"
    v3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
    assert isa_level("x86_64", v3) == "x86-64-v3"
    assert isa_level("x86_64", v3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}) == "x86-64-v4"


@pytest.mark.parametrize("request_", ["cuda", "hip", [0], ["GPU-1234"]])
def test_a_gpu_that_is_not_there_is_one_clear_error(request_):
    with pytest.raises(NoDeviceError, match="no visible GPU"):
        Pool(request_)


@pytest.mark.parametrize("request_", ["tpu", []])
def test_a_request_that_means_nothing_is_a_value_error(request_):
    with pytest.raises(ValueError, match="devices"):
        Pool(request_)
