"""Contests with real workers: turns, deaths in the middle of one, what is told and what is on record."""

import math

import pytest

from aiter_tuning.contest import Contest, block_order
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.statistics import median
from aiter_tuning.pool.watcher import Clocks, Watcher
from aiter_tuning.task import Group
from op_tests.pool.contest_rules import DropSlowest, Rounds
from op_tests.pool.fault_candidates import exits, raises, right, sleeps, task, writes_half

pytestmark = pytest.mark.timeout(120)


class Witness(Watcher):
    """Sees and keeps everything."""

    run_ahead = True

    def __init__(self):
        self.blocks, self.results, self.ended, self.told, self.lanes = {}, {}, [], [], []

    def block_done(self, group, block):
        kept = [known for known in self.blocks.get(group, []) if known.number < block.number]
        self.blocks[group] = [*kept, block]

    def measured(self, group, index, measurement, *, logged):
        self.told.append((group, index, str(measurement.status)))

    def group_ended(self, group, results):
        self.ended.append(group)
        self.results[group] = results


def contest_of(*tasks, rule=None, seed=7, **more):
    contest = Contest(rule or Rounds(3), seed, block_calls=2, block_us=0, **more)
    return Group(tuple(tasks), tuple(range(len(tasks))), contest=contest)


def hold(pool, *groups, watcher=None, **more):
    watcher = watcher or Witness()
    more.setdefault("clocks", Clocks(candidate_s=1.5))
    watcher.outcome = pool.run(list(groups), MeasurePlan(), on_fault="continue", watcher=watcher, **more)
    return watcher


def statuses(watcher, group=0):
    return [str(result.status) for result in watcher.results[group]]


def test_everyone_is_timed_once_a_block_in_the_blocks_own_order(one_lane):
    seen = hold(one_lane, contest_of(*(task(("s", i), right) for i in range(4))))
    assert statuses(seen) == ["ok"] * 4
    assert [block.number for block in seen.blocks[0]] == [1, 2, 3]
    for block in seen.blocks[0]:
        assert block.order == block_order(range(4), 7, block.number)
        assert all(0 < us < math.inf for us in block.us)
    for index, result in enumerate(seen.results[0]):
        values = [us for block in seen.blocks[0] for i, us in zip(block.order, block.us, strict=True) if i == index]
        assert result.us == pytest.approx(median(values)) and result.samples == 6
    assert sorted(seen.told) == [(0, index, "ok") for index in range(4)]
