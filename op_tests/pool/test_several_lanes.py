"""What op_tests/gpu/test_multi_gpu.py asks of GPUs, asked of devices that stand for them: who did what, not when."""

import json

import pytest

from aiter_tuning import Pool
from aiter_tuning.contest import Contest
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from op_tests.contexts import WhereLanesAre
from op_tests.lane_candidates import Breaks, MakesItsDeviceSick, Meeting, Noting, doubled, met
from op_tests.lane_scenarios import Entry, Operator, disturb, hold, wait_for_standbys, windows, with_sick_probe
from op_tests.pool.contest_rules import Rounds
from op_tests.pool.fake_devices import gpu

pytestmark = pytest.mark.timeout(120)

OPERATOR = Operator()
QUICK = MeasurePlan(warmup=0, iters=3)


@pytest.fixture(scope="module")
def two():
    with Pool([gpu(0), gpu(1)]) as pool:
        yield pool


@pytest.mark.parametrize(
    ("how", "status", "says"),
    [
        ("exits", Status.crash, "exited with code 7"),
        ("accesses_illegally", Status.crash, "illegal memory access"),
        ("hangs", Status.timeout, "clock"),
    ],
)
def test_a_fault_on_one_lane_costs_the_other_nothing(two, tmp_path, how, status, says):
    wait_for_standbys(two, OPERATOR, doubled)
    trouble = disturb(
        two,
        OPERATOR,
        doubled,
        lambda moment: Breaks(how, moment),
        lambda moment: Noting(doubled, moment),
        tmp_path,
        clock_s=2.0,
        plan=QUICK,
    )
    diary = trouble.diary
    assert trouble.fault.measurement.status is status and says in trouble.fault.measurement.detail
    assert diary.again == []
    assert [str(entry.measurement.status) for entry in diary.of(0)].count("ok") == len(diary.of(0)) - 1
    ((device, entries),) = diary.controls().items()
    assert device != diary.device_of_trouble == diary.of(0)[-1].measurement.device
    assert {entry.measurement.status for entry in entries} == {Status.ok}
    before, during, after = windows(entries, trouble.fault_at, trouble.back_at)
    assert len(before) >= 5 and during and after
    assert len(before) + len(during) + len(after) == len(entries)
    pid, same = trouble.workers[device]
    assert pid == same, "the lane beside the fault changed its worker"
    pid, other = trouble.workers[diary.device_of_trouble]
    assert pid != other


def test_a_lane_that_turns_sick_in_the_middle_of_a_group_hands_it_over_and_nothing_is_lost(tmp_path):
    devices = with_sick_probe([gpu(0), gpu(1)], "SickFake", tmp_path)
    sick = devices[1]
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    spoiler = MakesItsDeviceSick(doubled, sick.uuid, sick.settings["sick"])
    with Pool(devices) as pool:
        functions = [Meeting(doubled, str(meeting), 2), doubled, spoiler, doubled, doubled]
        diary = hold(pool, [OPERATOR.group(functions) for _ in range(4)], plan=QUICK)
        assert [lane.state for lane in pool.lanes] == ["idle", "retired"]
    assert (tmp_path / sick.uuid).read_text() == "ppp"
    assert any("gpu1 is retired" in note and "made to fail" in note for note in diary.notes), diary.notes
    assert diary.again == []
    results = [entry.measurement for group in range(4) for entry in diary.of(group)]
    assert sorted(str(result.status) for result in results) == ["crash"] + ["ok"] * 19
    on_sick = [result for result in results if result.device == sick.uuid]
    assert [str(result.status) for result in on_sick] == ["ok", "ok", "crash"]


def test_contests_on_several_lanes_keep_to_their_own(two, tmp_path):
    functions = [Meeting(doubled, str(tmp_path), 2), doubled, doubled]
    contest = Contest(Rounds(3), 7, block_calls=2, block_us=0)
    diary = hold(two, [OPERATOR.group(functions, contest=contest) for _ in range(2)], plan=QUICK)
    devices = [{result.device for result in results} for results in diary.results.values()]
    assert sorted(map(list, devices)) == [["fake-0"], ["fake-1"]]


def test_each_worker_is_where_its_lane_is(two, tmp_path):
    seen = WhereLanesAre.found_out(two, OPERATOR, doubled, tmp_path)
    assert json.loads(json.dumps(seen._asdict())) == seen._asdict()
    assert [(lane["uuid"], lane["count"]) for lane in seen.lanes] == [("fake-0", 1), ("fake-1", 1)]
    assert [lane["told"] for lane in seen.lanes] == ["fake-0", "fake-1"]
    assert {lane["worker"] for lane in seen.lanes} == {one["pid"] for one in met(tmp_path)}
    assert set(seen.family) > {lane["worker"] for lane in seen.lanes}


def entry(began, ended, us):
    return Entry(began, ended, Measurement(Status.ok, us))


def test_a_candidate_that_ran_when_it_happened_belongs_to_the_middle():
    entries = [entry(0, 1, 1.0), entry(1, 2, 2.0), entry(1.5, 2.5, 3.0), entry(2.5, 3, 4.0), entry(3, 4, 5.0)]
    assert windows(entries, fault_at=2, back_at=3) == ([1.0, 2.0], [3.0, 4.0], [5.0])
    assert windows(entries, fault_at=9, back_at=10) == ([1.0, 2.0, 3.0, 4.0, 5.0], [], [])
