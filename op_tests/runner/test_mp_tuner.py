"""``mp_tuner`` as its callers see it: forms, order, counts, callbacks, arguments."""

import math
import os

import pytest

from aiter_tuning import MpTunerTask, Pool, TuneResult, mp_tuner
from op_tests.pool.fault_candidates import (
    exits,
    raises_key_error,
    raises_value_error,
    returns_nan,
    right,
    right_and_counted,
    sleeps,
    task,
    writes_half,
)

pytestmark = pytest.mark.timeout(120)


def statuses(results):
    return [str(result.status) for result in results]


def test_no_tasks_give_no_results_and_start_nothing():
    assert mp_tuner([], []) == []
    assert mp_tuner([], [], 4, devices="cuda") == []


def test_the_plain_form_is_a_tuple_of_three(one_lane):
    [result] = mp_tuner([task(("s", 0), right)], [(1, None)], pool=one_lane)
    assert type(result) is tuple
    info, us, err_ratio = result
    assert info == ("s", 0)
    assert us > 0
    assert us == round(us, 4)
    assert err_ratio == 0.0


def test_the_typed_form_is_a_tuple_of_five(one_lane):
    [result] = mp_tuner([task(("s", 0), right)], [(1, None)], return_status=True, pool=one_lane)
    assert isinstance(result, TuneResult)
    assert result.status == "ok"
    assert result.detail == ""


def test_plain_tuples_are_tasks(one_lane):
    [result] = mp_tuner([tuple(task(("s", 0), right))[:10]], [(1, None)], pool=one_lane)
    assert result[1] > 0


def test_grouped_results_come_in_group_order_and_others_in_task_order(two_lanes):
    tasks = [task((shape, i), right) for i, shape in enumerate("abab")]
    grouped = mp_tuner(tasks, [(2, None), (2, None)], shape_grouped=True, pool=two_lanes)
    assert [result[0] for result in grouped] == [("a", 0), ("a", 2), ("b", 1), ("b", 3)]
    single = mp_tuner(tasks, [(2, None), (2, None)], pool=two_lanes)
    assert [result[0] for result in single] == [("a", 0), ("b", 1), ("a", 2), ("b", 3)]


def test_one_lane_without_fast_mode_always_groups(one_lane):
    tasks = [task((shape, i), right) for i, shape in enumerate("abab")]
    results = mp_tuner(tasks, [(2, None), (2, None)], pool=one_lane)
    assert [result[0] for result in results] == [("a", 0), ("a", 2), ("b", 1), ("b", 3)]


def test_apart_from_grouping_a_fault_is_its_own_groups_only(two_lanes):
    tasks = [task(("s", i), func) for i, func in enumerate((right, exits, right))]
    assert statuses(mp_tuner(tasks, [(3, None)], return_status=True, pool=two_lanes)) == ["ok", "crash", "ok"]


def test_os_exit_in_all_three_forms(two_lanes):
    def run(**more):
        tasks = [task(("s", i), func) for i, func in enumerate((right, exits, right))]
        tasks.append(task(("next", 0), right))
        return mp_tuner(tasks, [(3, None), (1, None)], shape_grouped=True, pool=two_lanes, **more)

    assert statuses(run(on_fault="continue", return_status=True)) == ["ok", "crash", "ok", "ok"]
    assert statuses(run(return_status=True)) == ["ok", "crash", "not_run", "ok"]
    *failed, survivor = run()
    assert [result[1:] for result in failed] == [(math.inf, 1.0)] * 3
    assert survivor[1] > 0


@pytest.mark.parametrize("declared", [3, 1])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_wrong_count_is_an_error_that_names_both_numbers(two_lanes, declared, grouped):
    tasks = [task(("s", i), right) for i in range(2)]
    with pytest.raises(ValueError, match=rf"declares {declared} kernels .* 2 tasks"):
        mp_tuner(tasks, [(declared, None)], shape_grouped=grouped, pool=two_lanes)


def test_counts_that_add_up_but_belong_to_other_shapes_are_an_error(two_lanes):
    tasks = [task((shape, i), right) for i, shape in enumerate("aab")]
    with pytest.raises(ValueError, match=r"declares 1 kernels but contains 2 tasks \(shape 'a'\)"):
        mp_tuner(tasks, [(1, None), (2, None)], shape_grouped=True, pool=two_lanes)


def test_entries_for_another_number_of_shapes_are_an_error(two_lanes):
    tasks = [task(("a", 0), right), task(("b", 0), right)]
    with pytest.raises(ValueError, match="1 entries but the tasks have 2 shapes"):
        mp_tuner(tasks, [(2, None)], shape_grouped=True, pool=two_lanes)


@pytest.mark.parametrize("grouped", [True, False])
def test_inputs_that_the_caller_made_are_used_as_they_are(two_lanes, grouped):
    import torch

    data = {"x": torch.arange(4.0), "y": torch.empty(4)}
    never = MpTunerTask(("s", 0), None, (), right, (["x", "y"],), {"num_iters": 1}, doubled, (["x"],), {}, None)
    tasks = [never._replace(gen_data=never_called, info=("s", i)) for i in range(2)]
    results = mp_tuner(tasks, [(2, data)], shape_grouped=grouped, return_status=True, pool=two_lanes)
    assert statuses(results) == ["ok", "ok"]


def never_called(device=None):
    raise AssertionError("gen_data was called although the inputs were there")


def doubled(x):
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
    return x * 2


def test_a_candidate_is_called_exactly_as_often_as_documented(one_lane, tmp_path):
    log = tmp_path / "calls"
    counted = task(("s", 0), right_and_counted, str(log))._replace(kwargs={"num_warmup": 3, "num_iters": 7})
    mp_tuner([counted], [(1, None)], pool=one_lane)
    assert log.read_text() == "x" * (1 + 3 + 7 + 1)


def test_the_callback_sees_each_result_as_it_was_measured_and_never_not_run(one_lane):
    tasks = [task(("s", i), func) for i, func in enumerate((right, exits, right))]
    seen = []
    results = mp_tuner(tasks, [(3, None)], result_callback=seen.append, pool=one_lane)
    assert [result[1] for result in results] == [math.inf] * 3
    assert [info for info, _, _ in seen] == [("s", 0), ("s", 1)]
    assert seen[0][1] > 0
    typed = []
    mp_tuner(tasks, [(3, None)], result_callback=typed.append, return_status=True, pool=one_lane)
    assert statuses(typed) == ["ok", "crash"]


def test_a_lane_starts_nothing_before_the_callback_returned(one_lane, tmp_path):
    log = tmp_path / "calls"
    calls_when_told = []
    tasks = [task(("s", i), right_and_counted, str(log)) for i in range(3)]
    per_candidate = 1 + 2 + 1

    def callback(result):
        calls_when_told.append(len(log.read_text()) // per_candidate)

    mp_tuner(tasks, [(3, None)], result_callback=callback, pool=one_lane)
    assert calls_when_told == [1, 2, 3]


def test_without_a_reference_fast_mode_is_needed(one_lane):
    bare = task(("s", 0), right)._replace(ref_func=None)
    with pytest.raises(ValueError, match=r"task 0 .*fast_mode"):
        mp_tuner([bare], [(1, None)], pool=one_lane)
    [result] = mp_tuner([bare], [(1, None)], fast_mode=True, return_status=True, pool=one_lane)
    assert (result.status, result.err_ratio) == ("ok", 0.0)


def test_a_ready_reference_wins_over_a_function(one_lane):
    import torch

    wrong = torch.zeros(64)
    [result] = mp_tuner([task(("s", 0), right)._replace(ref=wrong)], [(1, None)], return_status=True, pool=one_lane)
    assert result.status == "mismatch"


def test_verbose_changes_no_value(one_lane):
    tasks = [task(("s", i), func) for i, func in enumerate((writes_half, returns_nan, raises_value_error))]
    quiet = mp_tuner(tasks, [(3, None)], return_status=True, pool=one_lane)
    loud = mp_tuner(tasks, [(3, None)], return_status=True, verbose=True, pool=one_lane)
    assert [result._replace(us=0) for result in quiet] == [result._replace(us=0) for result in loud]
    assert [result.us > 0 for result in quiet] == [result.us > 0 for result in loud]


def test_the_first_failure_of_each_cause_is_told_once_with_its_count(one_lane, caplog):
    tasks = [task(("s", i), raises_key_error) for i in range(5)]
    mp_tuner(tasks, [(5, None)], pool=one_lane)
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("5 of 5 candidates failed (5 crash)") for line in lines)
    (told,) = [line for line in lines if "KeyError" in line]
    assert told.startswith("crash ×5, first ('s', 0): KeyError: 'x', at fault_candidates.py:")


def test_fifty_mismatches_are_one_line(one_lane, caplog):
    tasks = [task(("s", i), writes_half) for i in range(50)]
    results = mp_tuner(tasks, [(50, None)], return_status=True, pool=one_lane)
    assert statuses(results) == ["mismatch"] * 50
    assert [record.getMessage() for record in caplog.records] == ["50 of 50 candidates failed (50 mismatch)"]


def test_what_cannot_be_sent_to_a_worker_is_a_crash_with_the_reason(one_lane):
    import threading

    lock = threading.Lock()
    tasks = [task(("s", 0), lambda x, y: lock and right(x, y)), task(("next", 0), right)]
    results = mp_tuner(tasks, [(1, None), (1, None)], return_status=True, pool=one_lane)
    assert statuses(results) == ["crash", "ok"]
    assert "cannot" in results[0].detail
    assert "lock" in results[0].detail


def test_closures_and_lambdas_travel_by_value(one_lane):
    factor = 2
    [result] = mp_tuner(
        [task(("s", 0), lambda x, y: y.copy_(x * factor))], [(1, None)], return_status=True, pool=one_lane
    )
    assert result.status == "ok"


class FailsToLoad:
    """Pickles, and raises or dies when it is loaded."""

    def __init__(self, how):
        self.how = how

    def __setstate__(self, state):
        if state["how"] == "die":
            os._exit(4)
        raise RuntimeError("cannot be loaded")

    def __call__(self, x, y):
        return right(x, y)


@pytest.mark.parametrize("mode", ["continue", "abandon"])
@pytest.mark.parametrize(
    ("bad", "us", "told"),
    [
        (lambda lock: lambda x, y: lock, -1, "cannot be sent to a worker"),
        (lambda lock: FailsToLoad("raise"), -1, "cannot be loaded in a worker: RuntimeError"),
        (lambda lock: FailsToLoad("die"), math.inf, "exited with code 4"),
    ],
    ids=["unsendable", "unloadable", "deadly"],
)
def test_one_that_cannot_travel_costs_its_neighbours_nothing(one_lane, bad, us, told, mode):
    import threading

    tasks = [task(("s", i), func) for i, func in enumerate((right, bad(threading.Lock()), right))]
    results = mp_tuner(tasks, [(3, None)], return_status=True, on_fault=mode, pool=one_lane)
    after = "not_run" if mode == "abandon" and us == math.inf else "ok"
    assert statuses(results) == ["ok", "crash", after]
    assert results[1].us == us
    assert told in results[1].detail


@pytest.mark.parametrize("in_datas", [None, [2], [("2", None)], [(1, None, None)]])
def test_in_datas_of_another_form_are_value_errors(in_datas):
    with pytest.raises(ValueError, match="in_datas"):
        mp_tuner([task(("s", 0), right)], in_datas)


def test_counts_may_be_numbers_of_numpy(one_lane):
    import numpy

    tasks = [task(("s", i), right) for i in range(2)]
    assert statuses(mp_tuner(tasks, [(numpy.int64(2), None)], return_status=True, pool=one_lane)) == ["ok", "ok"]


@pytest.mark.parametrize("shape", ["tuple", "list", "tensor", "text"])
def test_data_of_a_shape_that_names_nothing_is_a_value_error(shape):
    import torch

    data = {"tuple": (torch.ones(4),), "list": [torch.ones(4)], "tensor": torch.ones(4), "text": "a"}[shape]
    with pytest.raises(ValueError, match=r"the data of in_datas\[0\] is a \w+; expected a mapping of names to values"):
        mp_tuner([task(("s", 0), right)], [(1, data)])


def test_a_large_reference_travels(one_lane):
    import torch

    big = torch.ones(1 << 20)
    tasks = [MpTunerTask(("s", 0), None, (), torch.ones_like, (big,), {"num_iters": 1}, None, (), {}, big)]
    [result] = mp_tuner(tasks, [(1, None)], return_status=True, pool=one_lane)
    assert result.status == "ok"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"mp_num": 0.5}, "mp_num"),
        ({"mp_num": True}, "mp_num"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"candidate_timeout": -1}, "candidate_timeout"),
        ({"compile_timeout": math.nan}, "compile_timeout"),
        ({"on_fault": "ignore"}, "on_fault"),
        ({"retries": -1}, "retries"),
        ({"err_ratio": 2}, "err_ratio"),
        ({"devices": "tpu"}, "devices"),
        ({"startup_timeout": 0}, "startup_timeout"),
        ({"timeout": "x"}, "timeout"),
        ({"result_callback": 5}, "result_callback"),
        ({"pool": 5}, "pool"),
    ],
)
def test_arguments_without_meaning_are_value_errors_that_name_them(wrong, named):
    with pytest.raises(ValueError, match=named):
        mp_tuner([task(("s", 0), right)], [(1, None)], **wrong)


def test_an_unsupported_and_a_hung_candidate_differ_in_numbers_too(one_lane):
    tasks = [task(("s", 0), raises_value_error), task(("s", 1), sleeps, 60)]
    results = mp_tuner(
        tasks, [(2, None)], return_status=True, on_fault="continue", candidate_timeout=1.0, pool=one_lane
    )
    assert [(str(result.status), result.us) for result in results] == [("unsupported", -1), ("timeout", math.inf)]


def test_two_calls_on_one_open_pool_use_the_same_worker():
    with Pool("cpu", 1) as pool:
        mp_tuner([task(("s", 0), right)], [(1, None)], pool=pool)
        worker = pool.lanes[0].worker
        mp_tuner([task(("s", 0), right)], [(1, None)], pool=pool)
        assert pool.lanes[0].worker is worker


def test_ninety_two_of_ninety_three_shapes_survive_one_that_aborts(two_lanes):
    from op_tests.pool.fault_candidates import aborts

    tasks = [task((f"shape{i}", 0), aborts if i == 40 else right) for i in range(93)]
    results = mp_tuner(tasks, [(1, None)] * 93, shape_grouped=True, return_status=True, pool=two_lanes)
    assert statuses(results).count("ok") == 92
    assert results[40].status == "crash"
