"""Contests with real workers: turns, deaths in the middle of one, what is told and what is on record."""

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aiter_tuning import Pool
from aiter_tuning.contest import Block, Contest, block_order
from aiter_tuning.keys import Key
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.statistics import median
from aiter_tuning.pool.watcher import Clocks, RunEnd, Watcher
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.tables.checkpoint_row import FINALS
from aiter_tuning.task import Group
from op_tests.pool.contest_candidates import (
    DOOR,
    FIRST,
    SECOND,
    at_call,
    counted,
    makes_its_gpu_sick,
    once,
    slow,
    writes_wrong,
)
from op_tests.pool.contest_rules import Broken, DropSlowest, Rounds
from op_tests.pool.fake_devices import gpu
from op_tests.pool.fault_candidates import (
    exits,
    inputs_die,
    kills_itself,
    loops_for_ever,
    raises,
    raises_illegal_access,
    raises_out_of_memory,
    right,
    segfaults,
    task,
    writes_half,
)

pytestmark = pytest.mark.timeout(120)
KEY = Key(N=int)
PRINT = "0123456789ab"
CLOCKS = Clocks(candidate_s=1.5)


class Witness(Watcher):
    """Sees and keeps everything."""

    run_ahead = True

    def __init__(self):
        self.blocks, self.results, self.ended, self.told, self.stops, self.states = {}, {}, [], [], [], set()

    def block_done(self, group, block):
        kept = [known for known in self.blocks.get(group, []) if known.number < block.number]
        self.blocks[group] = [*kept, block]

    def measured(self, group, index, measurement, *, logged):
        self.told.append((group, index))

    def stopped(self, group, index, attempt):
        self.stops.append((group, index))

    def group_ended(self, group, results):
        self.ended.append(group)
        self.results[group] = results

    def tick(self, lanes):
        self.states |= {lane.state for lane in lanes}

    def statuses(self, group=0):
        return [str(result.status) for result in self.results[group]]


def contest_of(*tasks, rule=None, logbook=None, **more):
    contest = Contest(rule or Rounds(3), seed=7, block_calls=2, block_us=0, **more)
    return Group(tuple(tasks), tuple(range(len(tasks))), contest=contest, logbook=logbook)


def hold(pool, *groups, watcher=None, clocks=CLOCKS, on_fault="continue", **more):
    watcher = watcher or Witness()
    watcher.outcome = pool.run(list(groups), MeasurePlan(), clocks, on_fault=on_fault, watcher=watcher, **more)
    return watcher


def entrant(number, action, *args):
    """An entrant that does something at its call of that number."""
    return task(
        ("s", action.__name__), at_call, number, f"{action.__name__}{number}{time.monotonic_ns()}", action, *args
    )


def good(name="good"):
    return task(("s", name), right)


def values(blocks, index):
    return [us for block in blocks for i, us in zip(block.order, block.us, strict=True) if i == index]


# --- turns ------------------------------------------------------------------------------------------------------------


def test_everyone_is_timed_once_a_block_in_the_blocks_own_order(one_lane):
    seen = hold(one_lane, contest_of(*(good(i) for i in range(4))))
    assert seen.statuses() == ["ok"] * 4 and seen.outcome.end is RunEnd.done
    assert [block.number for block in seen.blocks[0]] == [1, 2, 3]
    for block in seen.blocks[0]:
        assert block.order == block_order(range(4), 7, block.number)
        assert all(0 < us < math.inf for us in block.us)
    for index, result in enumerate(seen.results[0]):
        assert result.us == pytest.approx(median(values(seen.blocks[0], index))) and result.samples == 6
        assert result.device == one_lane.lanes[0].device.uuid and result.timer == "wall"
    assert sorted(seen.told) == [(0, index) for index in range(4)]


def test_whom_the_rule_leaves_out_is_timed_no_more_and_still_verified(one_lane):
    entrants = [task(("s", i), slow, 0.002 * 4**i) for i in range(3)]
    seen = hold(one_lane, contest_of(*entrants, rule=DropSlowest()))
    assert [set(block.order) for block in seen.blocks[0]] == [{0, 1, 2}, {0, 1, 2}, {0, 1}]
    assert seen.statuses() == ["ok"] * 3
    assert [result.samples for result in seen.results[0]] == [6, 6, 4]


def test_the_candidate_clock_is_for_a_turn_and_not_for_the_contest(one_lane):
    seen = hold(
        one_lane, contest_of(*(task(("s", i), slow, 0.1) for i in range(3)), rule=Rounds(3)), clocks=Clocks(1e6, 1)
    )
    assert seen.statuses() == ["ok"] * 3, "two seconds in all"
    assert one_lane.lanes[0].busy["finals"] >= 1.8 and "finals" in seen.states


@pytest.mark.parametrize(("calls", "status"), [(1, "ok"), (10, "ok"), (20, "mismatch"), (10_000, "mismatch")])
def test_who_is_wrong_now_and_then_is_found_by_comparing_often_enough(one_lane, calls, status):
    """Calls 1 to 8 are the checked one, the warm-up's and those of three blocks; the verifying ones follow."""
    seen = hold(one_lane, contest_of(good(), entrant(25, writes_wrong), verifying_calls=calls))
    assert seen.statuses() == ["ok", status]
    if status == "mismatch":
        assert seen.results[0][1].detail.startswith("right in its first call, wrong after timing: ")


def test_comparing_often_ends_when_its_time_is_up(one_lane):
    began = time.monotonic()
    seen = hold(one_lane, contest_of(good(), verifying_calls=10**9))
    assert seen.statuses() == ["ok"] and time.monotonic() < began + 30


# --- deaths -----------------------------------------------------------------------------------------------------------

DEATHS = [
    (segfaults, Status.crash, "SIGSEGV"),
    (raises_illegal_access, Status.crash, "illegal memory access"),
    (loops_for_ever, Status.timeout, "candidate clock"),
]


@pytest.mark.parametrize(("action", "status", "detail"), DEATHS, ids=lambda part: getattr(part, "__name__", ""))
def test_a_death_in_the_second_block_costs_the_entrant_whose_turn_it_was_and_no_block(one_lane, action, status, detail):
    seen = hold(one_lane, contest_of(good(), entrant(SECOND, action), good(), good()))
    assert seen.statuses() == ["ok", str(status), "ok", "ok"]
    assert detail in seen.results[0][1].detail and seen.results[0][1].us == math.inf
    blocks = seen.blocks[0]
    assert [(block.number, 1 in block.order) for block in blocks] == [(1, True), (2, False), (3, False)]
    assert not any(math.isnan(us) for block in blocks for us in block.us)
    assert [result.us for result in seen.results[0]][::2] == [median(values(blocks, index)) for index in (0, 2)]
    assert sorted(seen.told) == [(0, index) for index in range(4)]


def test_several_may_die_each_at_its_time(one_lane):
    seen = hold(one_lane, contest_of(entrant(FIRST, exits), good(), entrant(SECOND, exits), entrant(DOOR, exits)))
    assert seen.statuses() == ["crash", "ok", "crash", "crash"]
    assert all("exited with code 7" in seen.results[0][index].detail for index in (0, 2, 3))
    assert len(seen.told) == 4
    assert [block.number for block in seen.blocks[0]] == [1, 2, 3]


def test_an_exception_in_the_second_block_leaves_a_gap_in_it(one_lane):
    seen = hold(one_lane, contest_of(good(), entrant(SECOND, raises), good()))
    assert seen.statuses() == ["ok", "crash", "ok"]
    assert seen.results[0][1].detail.startswith("RuntimeError: it broke, at ") and seen.results[0][1].us == -1
    first, second, third = seen.blocks[0]
    assert [set(block.order) for block in (first, second, third)] == [{0, 1, 2}, {0, 1, 2}, {0, 2}]
    [gone] = values([second], 1)
    assert math.isnan(gone) and not any(map(math.isnan, values([second], 0) + values([second], 2)))


def test_wrong_at_the_door_or_wrong_at_the_end_is_a_mismatch(one_lane):
    seen = hold(one_lane, contest_of(task(("s", 0), writes_half), entrant(9, writes_wrong), good()))
    assert seen.statuses() == ["mismatch", "mismatch", "ok"]
    assert seen.results[0][0].us == math.inf and seen.results[0][1].us > 0
    assert all(set(block.order) == {1, 2} for block in seen.blocks[0])


def test_memory_that_runs_out_at_the_door_is_tried_again_in_a_clean_worker(one_lane, tmp_path):
    short = task(("s", 0), once, DOOR, "short", str(tmp_path / "flag"), raises_out_of_memory)
    seen = hold(one_lane, contest_of(good(), short))
    assert seen.statuses() == ["ok", "ok"] and seen.results[0][1].attempt == 2


def test_memory_that_runs_out_in_a_block_is_final(one_lane):
    seen = hold(one_lane, contest_of(good(), entrant(SECOND, raises_out_of_memory), good()))
    assert seen.statuses() == ["ok", "oom_runtime", "ok"]
    assert [set(block.order) for block in seen.blocks[0]] == [{0, 1, 2}, {0, 1, 2}, {0, 2}]


def test_whoever_has_a_gap_on_record_does_not_come_back(one_lane):
    known = (Block(1, (0, 1, 2), (5.0, math.nan, 6.0)),)
    seen = hold(one_lane, contest_of(good(), good(), good(), blocks=known))
    assert seen.statuses() == ["ok", "crash", "ok"]
    assert seen.results[0][1].detail == "could not be timed in block 1"
    assert [set(block.order) for block in seen.blocks[0]] == [{0, 2}, {0, 2}]


def test_verdicts_that_wait_for_the_parent_do_not_bring_the_others_back(one_lane):
    both = [entrant(SECOND, raises_out_of_memory), entrant(SECOND, raises), entrant(SECOND, raises_out_of_memory)]
    seen = hold(one_lane, contest_of(*both, good()))
    assert seen.statuses() == ["oom_runtime", "crash", "oom_runtime", "ok"]
    assert [result.detail for result in seen.results[0]][1].startswith("RuntimeError: it broke, at ")
    assert len(seen.told) == 4 and [block.number for block in seen.blocks[0]] == [1, 2, 3]


def test_a_strangers_kill_in_the_second_block_is_nobodys_fault(one_lane, tmp_path):
    killed = task(("s", 0), once, SECOND, "killed", str(tmp_path / "flag"), kills_itself)
    seen = hold(one_lane, contest_of(good(), killed, good()))
    assert seen.statuses() == ["ok"] * 3
    assert [set(block.order) for block in seen.blocks[0]] == [{0, 1, 2}] * 3


class Impatient(Witness):
    """Wants the run to end after some blocks."""

    def __init__(self, pool, blocks):
        super().__init__()
        self.pool, self.left = pool, blocks

    def block_done(self, group, block):
        super().block_done(group, block)
        self.left -= 1
        if not self.left:
            self.pool.request_stop()


def test_whoever_stops_the_run_has_the_blocks_so_far(one_lane):
    entrants = [task(("s", i), slow, 0.001) for i in range(2)]
    seen = hold(one_lane, contest_of(*entrants, rule=Rounds(10**9)), watcher=Impatient(one_lane, 4))
    assert seen.outcome.end is RunEnd.interrupted and seen.statuses() == ["not_run"] * 2
    assert len(seen.blocks[0]) >= 4 and sorted(seen.stops) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    ("wants", "detail"),
    [(None, "ZeroDivisionError: the rule"), (5, "ValueError: it wants to time [5], who are not in")],
)
def test_a_rule_that_fails_ends_the_contest_and_no_process(one_lane, wants, detail):
    seen = hold(one_lane, contest_of(good(), good(), rule=Broken(wants)))
    assert seen.statuses() == ["crash", "crash"] and [block.number for block in seen.blocks[0]] == [1]
    assert {result.detail for result in seen.results[0]} == {f"the contest's rule failed: {detail}"}


def test_inputs_that_die_take_those_who_share_them(one_lane):
    seen = hold(one_lane, contest_of(good(), task(("s", 1), right, gen=inputs_die), good()))
    assert seen.statuses() == ["ok", "crash", "ok"]


def test_when_all_are_gone_the_contest_is_over(one_lane):
    seen = hold(one_lane, contest_of(entrant(SECOND, raises), entrant(FIRST, raises)))
    assert seen.statuses() == ["crash", "crash"] and [block.number for block in seen.blocks[0]] == [1, 2]


def test_abandon_leaves_the_others_not_run(one_lane):
    seen = hold(one_lane, contest_of(good(), entrant(SECOND, exits), good()), on_fault="abandon")
    assert seen.statuses() == ["not_run", "crash", "not_run"]


def test_the_groups_clock_ends_a_contest_without_blame(one_lane):
    endless = contest_of(*(task(("s", i), slow, 0.001) for i in range(2)), rule=Rounds(10**9))
    seen = hold(one_lane, endless, clocks=Clocks(group_s=1.0))
    assert seen.statuses() == ["not_run"] * 2 and seen.blocks[0] and len(seen.stops) == 1


def test_a_budget_in_the_middle_ends_it_with_the_blocks_so_far(one_lane):
    hold(one_lane, contest_of(good()))  # the lane is up
    seen = hold(
        one_lane, contest_of(*(task(("s", i), slow, 0.001) for i in range(2)), rule=Rounds(10**9)), budget_s=0.7
    )
    assert seen.outcome.end is RunEnd.budget and seen.statuses() == ["not_run"] * 2
    assert len(seen.blocks[0]) > 2 and sorted(seen.stops) == [(0, 0), (0, 1)]


# --- blocks on record -------------------------------------------------------------------------------------------------


def test_blocks_on_record_are_not_measured_again_and_lead_to_the_same_end(one_lane):
    entrants = [task(("s", i), slow, 0.001 * i) for i in range(1, 5)]
    whole = hold(one_lane, contest_of(*entrants, rule=DropSlowest()))
    blocks = tuple(whole.blocks[0])
    device = one_lane.lanes[0].device.uuid
    for known in range(len(blocks) + 1):
        seen = hold(one_lane, contest_of(*entrants, rule=DropSlowest(), blocks=blocks[:known], device=device))
        assert [block.number for block in seen.blocks.get(0, [])] == list(range(known + 1, len(blocks) + 1))
        assert [block.order for block in seen.blocks.get(0, [])][:1] == [block.order for block in blocks[known:]][:1]
        assert seen.statuses() == ["ok"] * 4
    assert [result.us for result in seen.results[0]] == [median(values(blocks, index)) for index in range(4)]


def test_blocks_of_another_device_do_not_count(one_lane):
    old = hold(one_lane, contest_of(good(), good())).blocks[0]
    seen = hold(one_lane, contest_of(good(), good(), blocks=tuple(old), device="GPU-of-somebody-else"))
    assert [block.number for block in seen.blocks[0]] == [1, 2, 3]


def test_a_contest_whose_lane_is_retired_begins_anew_on_another_device(tmp_path):
    file = str(tmp_path / "sick")
    kind = "op_tests.pool.contest_candidates:SickLater"
    devices = [replace(gpu(index, file=file), kind=kind) for index in range(2)]
    with Pool(devices) as pool:
        seen = hold(pool, contest_of(good(), entrant(SECOND, makes_its_gpu_sick, file), good(), rule=Rounds(2)))
        [sick] = [lane.device.uuid for lane in pool.lanes if lane.retired]
    assert seen.statuses() == ["ok", "crash", "ok"]
    assert [(block.number, set(block.order)) for block in seen.blocks[0]] == [(1, {0, 2}), (2, {0, 2})]
    assert seen.results[0][0].device == seen.results[0][2].device != sick


# --- follow-ups -------------------------------------------------------------------------------------------------------


class Finalists(Witness):
    """Holds a contest of each group's correct candidates, and another one after it."""

    def __init__(self, tasks, first, depth=1):
        super().__init__()
        self.tasks, self.first, self.depth, self.of = tasks, first, depth, {}

    def follow_up(self, group, results, number, *, idle):
        assert group not in self.ended
        generation = 0 if group < self.first else self.of[group][1]
        if generation == self.depth:
            return None
        tasks = self.tasks[group] if group < self.first else self.tasks[self.of[group][0]]
        self.of[number] = (group if group < self.first else self.of[group][0], generation + 1)
        self.tasks.setdefault(number, tasks)
        return contest_of(*tasks)


def test_a_follow_up_comes_next_on_the_same_lane_in_the_same_process(one_lane, tmp_path):
    files = [str(tmp_path / f"{group}") for group in range(3)]
    tasks = {group: [task((group, i), counted, files[group]) for i in range(2)] for group in range(3)}
    groups = [Group(tuple(tasks[group]), (0, 1)) for group in range(3)]
    seen = hold(one_lane, *groups, watcher=Finalists(tasks, 3))
    assert seen.ended == [0, 3, 1, 4, 2, 5]
    assert all(seen.statuses(group) == ["ok", "ok"] for group in range(6))
    for file in files:
        assert len(set(Path(file).read_text().split())) == 1
    assert len(seen.told) == len(set(seen.told)) == 12


def test_follow_ups_on_two_lanes_and_follow_ups_of_follow_ups(two_lanes):
    tasks = {group: [task((group, i), right) for i in range(2)] for group in range(6)}
    groups = [Group(tuple(tasks[group]), (0, 1)) for group in range(6)]
    seen = hold(two_lanes, *groups, watcher=Finalists(tasks, 6, depth=2))
    assert sorted(seen.ended) == list(range(18)) and len(seen.told) == len(set(seen.told)) == 36
    for number, (group, _) in seen.of.items():
        assert seen.results[number][0].device == seen.results[group][0].device, "where it was screened"


def test_a_follow_up_is_carried_out_after_a_death_too(one_lane):
    last_dies = [good(), task(("s", 1), exits)]
    seen = hold(one_lane, Group(tuple(last_dies), (0, 1)), watcher=Finalists({0: [good(), good()]}, 1))
    assert seen.statuses(0) == ["ok", "crash"] and seen.statuses(1) == ["ok", "ok"]


def test_a_budget_in_a_follow_up_ends_it_and_asks_for_no_more(one_lane):
    seen = Finalists({0: [task(("s", 0), slow, 0.2)]}, 1, depth=50)
    hold(one_lane, Group((good(),), (0,)), watcher=seen, budget_s=1.5)
    assert seen.outcome.end is RunEnd.budget
    assert sorted(seen.ended) == list(range(max(seen.of) + 1)) and seen.statuses(max(seen.of)) == ["not_run"]


def test_groups_made_one_by_one_have_follow_ups_numbered_behind_them(one_lane):
    tasks = {group: [task((group, 0), right)] for group in range(3)}

    seen = Finalists(tasks, 3)
    one_lane.run(_Lazy(tasks), MeasurePlan(), CLOCKS, on_fault="continue", watcher=seen)
    assert seen.ended == [0, 3, 1, 4, 2, 5]


class _Lazy:
    """A sequence that is neither a list nor a tuple."""

    def __init__(self, tasks):
        self._tasks = dict(tasks)

    def __len__(self):
        return len(self._tasks)

    def __getitem__(self, number):
        return Group(tuple(self._tasks[number]), (0,))


# --- on record --------------------------------------------------------------------------------------------------------


class Recorded:
    """A checkpoint, and contests that are written into it."""

    def __init__(self, path):
        self.out = path
        self.checkpoint = Checkpoint.open(path, KEY, RunFingerprint({"a": "b"}))

    def names(self, count):
        return [f"c{index}" for index in range(count)]

    def logbook(self, count, attempts=None):
        prints = dict.fromkeys(self.names(count), PRINT)
        return self.checkpoint.logbook({"N": 8}, self.names(count), prints, attempts or {}, phase=FINALS)

    def rows(self, phase):
        lines = [line.split(",") for line in self.checkpoint.path.read_text().splitlines()[2:]]
        return [(line[0], line[2], line[4], line[5]) for line in lines if line[3] == phase]

    def reopened(self):
        self.checkpoint.close()
        return Checkpoint.open(self.out, KEY, RunFingerprint({"a": "b"}))


@pytest.fixture
def recorded(tmp_path):
    recorded = Recorded(tmp_path / "out.csv")
    yield recorded
    recorded.checkpoint.close()


def test_blocks_turns_and_verdicts_are_on_file(one_lane, recorded):
    seen = hold(one_lane, contest_of(good(), entrant(SECOND, raises), good(), logbook=recorded.logbook(3)))
    with recorded.reopened() as checkpoint:
        prints = dict.fromkeys(recorded.names(3), PRINT)
        blocks = checkpoint.blocks({"N": 8}, prints)
        assert [block.number for block in blocks] == [1, 2, 3]
        for read, told in zip(blocks, seen.blocks[0], strict=True):
            assert list(read.us) == [f"c{index}" for index in told.order]
            assert list(read.us.values()) == pytest.approx([round(us, 6) for us in told.us], nan_ok=True)
            assert read.device_uuid == one_lane.lanes[0].device.uuid
        verdicts = checkpoint.finished_results({"N": 8}, prints, FINALS)
        assert [str(verdicts[name].status) for name in recorded.names(3)] == ["ok", "crash", "ok"]
        assert checkpoint.finished_results({"N": 8}, prints) == {}, "screening is another phase"
        assert checkpoint.suspects({"N": 8}, phase=FINALS) == {}


def test_every_start_has_its_end(one_lane, recorded):
    hold(one_lane, contest_of(good(), good(), logbook=recorded.logbook(2, {"c1": 4})))
    rows = recorded.rows(FINALS)
    running = None
    for event, candidate, attempt, _ in rows:
        assert attempt == ("5" if candidate == "c1" else "1")
        if event == "started":
            assert running is None
            running = candidate
        else:
            assert running == candidate
            running = None
    assert running is None
    # the door, getting ready, three blocks, verified
    assert sum(row[0] == "started" for row in rows) == 2 * (1 + 1 + 3 + 1)
    assert [row[1] for row in rows if row[0] == "finished"] == ["c0", "c1"]


class Writing(Impatient):
    """Puts on record what the workers could not."""

    def __init__(self, pool, blocks, recorded):
        super().__init__(pool, blocks)
        self.recorded = recorded

    def measured(self, group, index, measurement, *, logged):
        super().measured(group, index, measurement, logged=logged)
        if not logged:
            name = f"c{index}"
            self.recorded.checkpoint.finished({"N": 8}, name, measurement, phase=FINALS, fingerprint=PRINT)

    def stopped(self, group, index, attempt):
        super().stopped(group, index, attempt)
        self.recorded.checkpoint.stopped({"N": 8}, f"c{index}", phase=FINALS, attempt=attempt, fingerprint=PRINT)


def test_after_deaths_and_a_stop_there_is_no_suspect(one_lane, recorded):
    entrants = [task(("s", 0), slow, 0.001), entrant(SECOND, exits), good()]
    group = contest_of(*entrants, rule=Rounds(10**9), logbook=recorded.logbook(3))
    seen = hold(one_lane, group, watcher=Writing(one_lane, 4, recorded))
    assert seen.statuses() == ["not_run", "crash", "not_run"]
    with recorded.reopened() as checkpoint:
        assert checkpoint.suspects({"N": 8}, phase=FINALS) == {}
        blocks = checkpoint.blocks({"N": 8}, dict.fromkeys(recorded.names(3), PRINT))
        assert [block.number for block in blocks] == list(range(1, len(blocks) + 1)) and len(blocks) > 2
        told = seen.blocks[0]
        assert len(told) <= len(blocks) <= len(told) + 1, "the last may be on file and not told"
        assert [list(block.us) for block in blocks[: len(told)]] == [[f"c{i}" for i in block.order] for block in told]


KILLED = """
import sys
sys.path[:0] = [{root!r}]
from aiter_tuning import Pool
from aiter_tuning.contest import Contest
from aiter_tuning.keys import Key
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool.watcher import Watcher
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.tables.checkpoint_row import FINALS
from aiter_tuning.task import Group
from op_tests.pool.contest_candidates import at_call, SECOND, slow
from op_tests.pool.contest_rules import Rounds
from op_tests.pool.fault_candidates import right, task

class Ahead(Watcher):
    run_ahead = True

checkpoint = Checkpoint.open({out!r}, Key(N=int), RunFingerprint({{"a": "b"}}))
names = ["c0", "c1", "c2"]
logbook = checkpoint.logbook({{"N": 8}}, names, dict.fromkeys(names, "0123456789ab"), {{}}, phase=FINALS)
tasks = (task("a", right), task("b", at_call, SECOND, "b", slow, 3600), task("c", right))
group = Group(tasks, (0, 1, 2), logbook=logbook, contest=Contest(Rounds(9), seed=7, block_calls=2, block_us=0))
with Pool("cpu", 1) as pool:
    pool.run([group], MeasurePlan(), watcher=Ahead())
"""


def test_kill_9_of_everyone_in_a_block_keeps_the_blocks_before_and_suspects_whose_turn_it_was(tmp_path):
    out = tmp_path / "out.csv"
    parent = subprocess.Popen([sys.executable, "-c", KILLED.format(root=os.getcwd(), out=str(out))])
    path = tmp_path / "out.checkpoint.csv"
    deadline = time.monotonic() + 60

    def last_started():
        rows = [line.split(",") for line in path.read_text().splitlines()] if path.exists() else []
        in_second = any(row[3] == "finalist:1" for row in rows)
        return in_second and rows[-1][0] == "started" and rows[-1][2] == "c1"

    while not last_started():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    with Checkpoint.open(out, KEY, RunFingerprint({"a": "b"})) as checkpoint:
        prints = dict.fromkeys(["c0", "c1", "c2"], PRINT)
        [block] = checkpoint.blocks({"N": 8}, prints)
        assert list(block.us) == [f"c{index}" for index in block_order(range(3), 7, 1)]
        assert checkpoint.suspects({"N": 8}, phase=FINALS) == {"c1": 1}


# --- groups for a fresh worker ----------------------------------------------------------------------------------------


def test_a_fresh_group_gets_a_worker_that_has_carried_out_nothing_but_such_groups(one_lane, tmp_path):
    files = [str(tmp_path / f"{group}") for group in range(5)]
    fresh = {1, 2, 4}
    groups = [
        Group((task((group, 0), counted, files[group]),), (0,), fresh=group in fresh) for group in range(len(files))
    ]
    seen = hold(one_lane, *groups)
    assert seen.ended == [0, 1, 2, 3, 4] and all(seen.statuses(group) == ["ok"] for group in range(5))
    (first,), (second,), (third,), (fourth,), (fifth,) = (set(Path(file).read_text().split()) for file in files)
    assert first != second == third == fourth != fifth


class OneFresh(Witness):
    """Follows up its first group with one for a fresh worker, and is told when the lane has nothing else to do."""

    def __init__(self, follow_up):
        super().__init__()
        self.group, self.idle = follow_up, []

    def follow_up(self, group, results, number, *, idle):
        self.idle.append(idle)
        return self.group if group == 0 else None


def test_a_fresh_follow_up_waits_for_the_lanes_next_worker_and_a_death_in_it_costs_nobody_else(one_lane, tmp_path):
    files = [str(tmp_path / f"{group}") for group in range(3)]
    first, last = (Group((task((group, 0), counted, files[group]),), (0,)) for group in (0, 2))
    doomed = Group((task((1, 0), exits), task((1, 1), counted, files[1])), (0, 1), fresh=True)
    seen = hold(one_lane, first, last, watcher=OneFresh(doomed))
    assert seen.ended == [0, 2, 1]
    assert (seen.statuses(0), seen.statuses(2), seen.statuses(1)) == (["ok"], ["crash", "ok"], ["ok"])
    assert len({tuple(sorted(set(Path(file).read_text().split()))) for file in files[:2]}) == 2
    assert seen.idle == [False, False, True]
