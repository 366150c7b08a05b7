"""Every kind of misbehaviour, in the middle of a shape, while another shape is measured beside it.

The whole table runs as one call: each fault gets a shape of its own, (good, fault, good), so that the verdicts of its
neighbours show what it cost them. The default run takes the whole table in ``continue``, and in ``abandon`` one fault
of each way to lose a worker; the full matrix (both result forms, one lane and two, ``abandon`` and ``continue``) is
marked slow: ``python3 tools/run_tests.py --all``.
"""

import math
from pathlib import Path
from typing import NamedTuple

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
    pytest.param(
        (mode, typed, lanes),
        id=f"{mode}-{'typed' if typed else 'plain'}-{lanes[:3]}",
        marks=() if (mode, typed, lanes) == ("continue", True, "two_lanes") else pytest.mark.slow,
    )
    for mode in ("continue", "abandon")
    for typed in (True, False)
    for lanes in ("one_lane", "two_lanes")
]

KINDS = [
    fault for fault in FAULTS if fault.name in ("raises", "raises_illegal_access", "exits", "segfaults", "stops_itself")
]
"""One that only fails, and those whose worker leaves by itself, has left, was killed, is killed by its clock."""


def has_all_processes(pool):
    """Whether every lane has its worker and every worker its standby, after one small call."""
    mp_tuner([task(("warm", i), right) for i in range(4)], [(1, None)] * 4, fast_mode=True, pool=pool)
    return all(lane.worker for lane in pool.lanes) and len(pool._standbys) == len(pool.lanes)


class Table(NamedTuple):
    """What a call over some faults gave."""

    mode: str
    typed: bool
    by_fault: dict
    seen: list
    """What the callback was told."""
    leaked: int
    """Descriptors that are open after it and were not before."""


def measure(pool, faults, mode, typed):
    wait_for(lambda: has_all_processes(pool))
    before = open_descriptors()
    cwd = str(Path.cwd())
    tasks = []
    for fault in faults:
        tasks += [
            task((fault.name, 0), right),
            task((fault.name, 1), fault.func),
            task((fault.name, 2), notices_surroundings, cwd),
        ]
    seen = []
    results = mp_tuner(
        tasks,
        [(3, None)] * len(faults),
        shape_grouped=True,
        return_status=typed,
        on_fault=mode,
        candidate_timeout=CLOCK_S,
        result_callback=seen.append,
        pool=pool,
    )
    by_fault = {fault.name: results[3 * i : 3 * i + 3] for i, fault in enumerate(faults)}
    return Table(mode, typed, by_fault, seen, open_descriptors() - before)


@pytest.fixture(scope="module", params=COMBINATIONS)
def matrix(request):
    """Runs the table once per combination; the tests look at what came back."""
    mode, typed, lanes = request.param
    return measure(request.getfixturevalue(lanes), FAULTS, mode, typed)


@pytest.fixture(scope="module")
def abandoning(one_lane):
    return measure(one_lane, KINDS, "abandon", typed=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_costs_the_candidate_that_faulted_and_nothing_else(matrix, fault):
    costs_what_it_may(matrix, fault)


@pytest.mark.parametrize("fault", KINDS, ids=lambda fault: fault.name)
def test_in_abandon_a_fault_costs_the_rest_of_its_group_too(abandoning, fault):
    costs_what_it_may(abandoning, fault)


def costs_what_it_may(table, fault):
    before, it, after = table.by_fault[fault.name]
    assert [result[0] for result in (before, it, after)] == [(fault.name, 0), (fault.name, 1), (fault.name, 2)]
    abandoned = table.mode == "abandon" and fault.is_fault
    if not table.typed:
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
    told = [result.info for result in table.seen if result.info[0] == fault.name]
    assert sorted(told) == [(fault.name, i) for i in range(2 if abandoned else 3)]


def test_the_matrix_leaks_no_descriptor(matrix):
    assert matrix.leaked <= 0


def test_what_candidates_started_ends_with_their_worker(two_lanes):
    tasks = [task(("s", i), func) for i, func in enumerate((forks, forks_a_session, starts_a_program))]
    token = {lane.worker.token for lane in two_lanes.lanes}
    results = mp_tuner(tasks, [(3, None)], shape_grouped=True, return_status=True, pool=two_lanes)
    assert [result.status for result in results] == ["ok"] * 3
    worker = next(lane.worker for lane in two_lanes.lanes if len(descendants({lane.worker.token})) > 1)
    assert worker.token in token
    worker.kill()
    worker.reap()
    wait_for(lambda: descendants({worker.token}) == [])  # a killed process takes a moment to be gone
