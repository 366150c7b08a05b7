"""Every kind of misbehaviour, in the middle of a shape, while another shape is measured beside it.

The whole table runs as one call: each fault gets a shape of its own, (good, fault, good), so that the verdicts of its
neighbours show what it cost them. The default run takes the two combinations that differ most; the full matrix (both
result forms, one lane and two, ``abandon`` and ``continue``) is marked slow: ``python3 tools/run_tests.py --all``.
"""

import math
from pathlib import Path

import pytest

from aiter_tuning import mp_tuner
from op_tests.pool.fault_candidates import (
    FAULTS,
    forks,
    forks_a_session,
    notices_surroundings,
    right,
    starts_a_program,
    task,
)
from op_tests.processes import descendants, open_descriptors, wait_for

CLOCK_S = 2.0

COMBINATIONS = [
    pytest.param(("continue", True, "two_lanes"), id="continue-typed-two"),
    pytest.param(("abandon", True, "one_lane"), id="abandon-typed-one"),
    *(
        pytest.param(
            (mode, typed, lanes), id=f"{mode}-{'typed' if typed else 'plain'}-{lanes[:3]}", marks=pytest.mark.slow
        )
        for mode in ("continue", "abandon")
        for typed in (True, False)
        for lanes in ("one_lane", "two_lanes")
        if (mode, typed, lanes) not in (("continue", True, "two_lanes"), ("abandon", True, "one_lane"))
    ),
]


def has_all_processes(pool):
    """Whether every lane has its worker and every worker its standby, after one small call."""
    mp_tuner([task(("warm", i), right) for i in range(4)], [(1, None)] * 4, fast_mode=True, pool=pool)
    return all(lane.worker for lane in pool.lanes) and len(pool._standbys) == len(pool.lanes)


@pytest.fixture(scope="module", params=COMBINATIONS)
def matrix(request, tmp_path_factory):
    """Runs the table once per combination; the tests look at what came back."""
    mode, typed, lanes = request.param
    pool = request.getfixturevalue(lanes)
    wait_for(lambda: has_all_processes(pool))
    before = open_descriptors()
    cwd = str(Path.cwd())
    tasks = []
    for fault in FAULTS:
        tasks += [
            task((fault.name, 0), right),
            task((fault.name, 1), fault.func),
            task((fault.name, 2), notices_surroundings, cwd),
        ]
    seen = []
    results = mp_tuner(
        tasks,
        [(3, None)] * len(FAULTS),
        shape_grouped=True,
        return_status=typed,
        on_fault=mode,
        candidate_timeout=CLOCK_S,
        result_callback=seen.append,
        pool=pool,
    )
    by_fault = {fault.name: results[3 * i : 3 * i + 3] for i, fault in enumerate(FAULTS)}
    return mode, typed, by_fault, seen, open_descriptors() - before


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_costs_the_candidate_that_faulted_and_nothing_else(matrix, fault):
    mode, typed, by_fault, seen, _ = matrix
    before, it, after = by_fault[fault.name]
    assert [result[0] for result in (before, it, after)] == [(fault.name, 0), (fault.name, 1), (fault.name, 2)]
    abandoned = mode == "abandon" and fault.is_fault
    if not typed:
        if abandoned:
            assert [result[1:] for result in (before, it, after)] == [(math.inf, 1.0)] * 3
        else:
            assert before[1] > 0 and after[1] > 0
            assert it[1] > 0 if fault.us is None else it[1] == fault.us
        return
    assert before.status == "ok", before
    assert it.status == fault.status, it
    assert fault.detail in it.detail
    if fault.us is None:
        assert 0 < it.us < math.inf
    else:
        assert it.us == fault.us
        assert it.err_ratio == 1.0
    assert after.status == ("not_run" if abandoned else "ok"), after
    told = [result.info for result in seen if result.info[0] == fault.name]
    assert sorted(told) == [(fault.name, i) for i in range(2 if abandoned else 3)]


def test_the_matrix_leaks_no_descriptor(matrix):
    assert matrix[-1] <= 0


def test_what_candidates_started_ends_with_their_worker(two_lanes):
    tasks = [task(("s", i), func) for i, func in enumerate((forks, forks_a_session, starts_a_program))]
    token = {lane.worker.token for lane in two_lanes.lanes}
    results = mp_tuner(tasks, [(3, None)], shape_grouped=True, return_status=True, pool=two_lanes)
    assert [result.status for result in results] == ["ok"] * 3
    worker = next(lane.worker for lane in two_lanes.lanes if len(descendants({lane.worker.token})) > 1)
    assert worker.token in token
    worker.kill()
    worker.reap()
    assert descendants({worker.token}) == []
