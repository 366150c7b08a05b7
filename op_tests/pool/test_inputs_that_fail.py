"""Inputs and references that raise, hang or die: for the first candidate, one in the middle, and all.

Each case costs a worker, or several; what hangs is killed, so that from there on it is one that died. The default run
has it in the middle only.
"""

import pytest

from aiter_tuning import mp_tuner
from op_tests.pool import fault_candidates as f
from op_tests.pool.fault_candidates import right, task

pytestmark = pytest.mark.timeout(120)

BAD_INPUTS = [
    (f.inputs_raise, "crash", "no inputs today"),
    (f.inputs_run_out_of_memory, "oom_preflight", "too large"),
    (f.inputs_die, "crash", "exited with code 5 in inputs"),
    (f.inputs_hang, "timeout", "in inputs"),
]
BAD_REFERENCES = [
    (f.reference_raises, "crash", "no reference today"),
    (f.reference_dies, "crash", "exited with code 6 in reference"),
    (f.reference_hangs, "timeout", "in reference"),
]
WHERE = {"first": [0], "middle": [1], "all": [0, 1, 2]}


def everywhere(bad):
    """Each kind of failure at each place."""
    return [
        pytest.param(
            *case,
            where,
            id=f"{case[0].__name__}-{place}",
            marks=pytest.mark.slow if case[1] == "timeout" and place != "middle" else (),
        )
        for case in bad
        for place, where in WHERE.items()
    ]


def measure(tasks, pool, mode, **more):
    results = mp_tuner(
        [*tasks, task(("next", 0), right)],
        [(len(tasks), None), (1, None)],
        shape_grouped=True,
        return_status=True,
        on_fault=mode,
        candidate_timeout=1.5,
        pool=pool,
        **more,
    )
    assert results[-1].status == "ok"  # the next shape is measured whatever happened
    return results[:-1]


@pytest.mark.parametrize(("bad", "status", "detail", "where"), everywhere(BAD_INPUTS))
def test_inputs_that_fail_cost_those_who_share_them(two_lanes, bad, status, detail, where):
    tasks = [task(("s", i), right, gen=bad if i in where else f.make_inputs) for i in range(3)]
    results = measure(tasks, two_lanes, "continue")
    expected = [status if i in where else "ok" for i in range(3)]
    assert [result.status for result in results] == expected
    assert all(detail in result.detail and result.us == float("inf") for result in results if result.status != "ok")


@pytest.mark.parametrize(("bad", "status", "detail", "where"), everywhere(BAD_REFERENCES))
def test_references_that_fail_cost_those_who_share_them(two_lanes, bad, status, detail, where):
    tasks = [task(("s", i), right, ref=bad if i in where else f.reference) for i in range(3)]
    results = measure(tasks, two_lanes, "continue")
    assert [result.status for result in results] == [status if i in where else "ok" for i in range(3)]
    assert all(detail in result.detail for result in results if result.status != "ok")


@pytest.mark.parametrize(("bad", "status", "detail"), BAD_INPUTS, ids=lambda value: getattr(value, "__name__", None))
def test_in_abandon_inputs_that_fail_leave_the_rest_for_a_resume(one_lane, bad, status, detail):
    tasks = [task(("s", i), right, gen=bad if i == 1 else f.make_inputs) for i in range(3)]
    seen = []
    results = measure(tasks, one_lane, "abandon", result_callback=seen.append)
    assert [result.status for result in results] == ["ok", status, "not_run"]
    assert [result.info for result in seen if result.info[0] == "s"] == [("s", 0), ("s", 1)]


def test_inputs_that_kill_are_made_once_for_all_who_share_them(one_lane, tmp_path):
    file = tmp_path / "made"
    tasks = [task(("s", i), right, gen=f.inputs_count_and_die)._replace(gen_args=(str(file),)) for i in range(4)]
    results = measure(tasks, one_lane, "continue")
    assert [result.status for result in results] == ["crash"] * 4
    assert file.read_text() == "i"


def test_inputs_and_reference_are_shared_by_the_candidates_of_a_shape(one_lane, tmp_path):
    file = tmp_path / "made"
    tasks = [task(("s", i), right, gen=f.inputs_are_counted)._replace(gen_args=(0, str(file))) for i in range(4)]
    assert [result.status for result in measure(tasks, one_lane, "continue")] == ["ok"] * 4
    assert file.read_text() == "i"


def test_a_key_that_gen_data_did_not_return_is_that_candidates_own_crash(one_lane):
    assert measure([task(("s", 0), right)], one_lane, "abandon")[0].status == "ok"
    before = one_lane.lanes[0].worker
    tasks = [task(("s", 0), right), task(("s", 1), right, keys=("x", "z")), task(("s", 2), right)]
    results = measure(tasks, one_lane, "abandon")
    assert [result.status for result in results] == ["ok", "crash", "ok"]
    assert results[1].us == -1
    assert "'z'" in results[1].detail
    assert before is not None and one_lane.lanes[0].worker is before
