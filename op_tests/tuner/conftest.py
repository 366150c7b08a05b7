"""A stand-in for the pool: the tuner's side of a run without processes, scripted candidate by candidate."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from aiter_tuning.contest import Block, block_order
from aiter_tuning.devices.device import Device
from aiter_tuning.devices.monitor import Monitor
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import RunEnd, RunOutcome
from aiter_tuning.status import Status
from aiter_tuning.tuner.family_reference import load_family

FAMILIES = Path(__file__).parent.parent / "families_for_tests" / "tiny.py"


class ScriptedPool:
    """Hands candidates out in order and answers from a script.

    ``script(shape, name)`` returns a latency, a Status, a Measurement, or one of the words ``stop``, ``clock`` (the
    group's clock runs out) and ``die`` (the run dies there and then). ``finals_script(shape, name, block)`` does so for
    turns in finals, which have the latencies of the screening without it, ``again_script`` for turns in a fresh worker,
    which have those of the finals without it.
    """

    def __init__(self, script, finals_script=None, again_script=None):
        self.devices = (Device("fake:Kind", "gpu0", "GPU-0", gfx="sm90", cu_num=132, gpu_model="H200"),)
        self.lanes = []
        self.script = script
        self.finals_script = finals_script or (lambda shape, name, block: script(shape, name))
        self.again_script = again_script or self.finals_script
        self.calls = []
        self.contests = []
        """Size, entrants and the number of blocks on record of each contest."""
        self.fresh = []
        """Those of them that asked for a fresh worker."""
        self.monitor = Monitor(())
        self.stop_requested = False
        self.seen = {}

    @property
    def finals(self):
        """Contests that did not."""
        return [contest for contest in self.contests if contest not in self.fresh]

    def request_stop(self):
        self.stop_requested = True

    def run(self, groups, plan, clocks, *, on_fault, watcher, budget_s, quiet_start, precompile):
        self.seen = {"plan": plan, "clocks": clocks, "on_fault": on_fault, "budget_s": budget_s}
        next_number = len(groups)
        for first in range(len(groups)):
            group, number, idle = groups[first], first, first == len(groups) - 1
            while group is not None:
                end, results = self._group(number, group, watcher)
                if end is not None:
                    watcher.group_ended(number, results)
                    return end
                follow_up = watcher.follow_up(number, results, next_number, idle=idle)
                watcher.group_ended(number, results)
                watcher.tick([])
                group, number = follow_up, next_number
                next_number += follow_up is not None
        return RunOutcome(RunEnd.done)

    def _group(self, number, group, watcher):
        """How the run ended, if it did, and the results of one group."""
        if group.contest is not None:
            return self._contest(number, group, watcher)
        results = []
        for index, task in enumerate(group.tasks):
            shape, name = task.gen_args[0], task.info[-1]
            if self.stop_requested:
                answer = "stop"
            else:
                group.logbook.started(index, 1)
                self.calls.append((shape["N"], name))
                answer = self.script(shape, name)
            if answer == "die":
                raise SystemExit("the run dies")
            if answer in ("stop", "budget"):
                watcher.stopped(number, index, 1)
                rest = [Measurement.failed(Status.not_run, "stopped")] * (len(group.tasks) - index)
                end = RunOutcome(RunEnd.interrupted if answer == "stop" else RunEnd.budget, "ended early")
                return end, results + rest
            if answer == "clock":
                watcher.stopped(number, index, 1)
                rest = [Measurement.failed(Status.not_run, "the group's clock")] * (len(group.tasks) - index)
                return None, results + rest
            measurement = as_measurement(answer)
            group.logbook.finished(index, measurement)
            watcher.measured(number, index, measurement, logged=True)
            results.append(measurement)
        return None, results

    def _contest(self, number, group, watcher):
        """As a worker does it: the script's latency for everybody in each block; a failure ends an entrant's part."""
        contest, blocks, entered = group.contest, list(group.contest.blocks), list(range(len(group.tasks)))
        shape, names = group.tasks[0].gen_args[0], [task.info[-1] for task in group.tasks]
        self.contests.append((shape["N"], tuple(names), len(blocks)))
        if group.fresh:
            self.fresh.append(self.contests[-1])
        script = self.again_script if group.fresh else self.finals_script
        results, said = {}, {}

        def end(index, measurement):
            group.logbook.finished(index, measurement)
            watcher.measured(number, index, measurement, logged=True)
            results[index] = measurement

        while active := contest.rule.active(tuple(entered), tuple(blocks)):
            block_number = blocks[-1].number + 1 if blocks else 1
            order = block_order(active, contest.seed, block_number)
            timed = []
            for index in order:
                group.logbook.turn(None, (index, 1))
                answer = script(shape, names[index], block_number)
                if answer == "die":
                    raise SystemExit("the run dies")
                if answer in ("stop", "budget"):
                    watcher.stopped(number, index, 1)
                    rest = Measurement.failed(Status.not_run, "stopped")
                    outcome = RunOutcome(RunEnd.interrupted if answer == "stop" else RunEnd.budget, "ended early")
                    return outcome, [results.get(i, rest) for i in range(len(names))]
                group.logbook.turn((index, 1), None)
                timed.append(as_measurement(answer))
            us = tuple(one.us if one.status is Status.ok else math.nan for one in timed)
            block = Block(block_number, order, us)
            group.logbook.block(block, timed)
            blocks.append(block)
            watcher.block_done(number, block)
            said |= zip(order, timed, strict=True)
            for index, one in zip(order, timed, strict=True):
                if one.status is not Status.ok:
                    entered.remove(index)
                    end(index, one)
        for index in entered:
            values = [us for b in blocks for i, us in zip(b.order, b.us, strict=True) if i == index]
            flags = said[index].flags if index in said else ()
            end(index, replace(as_measurement(median(values)), flags=flags))
        return None, [results[index] for index in range(len(names))]


def as_measurement(answer):
    if isinstance(answer, Measurement):
        return answer
    if isinstance(answer, Status):
        return Measurement.failed(answer, f"scripted {answer}")
    return Measurement(status=Status.ok, us=float(answer), err_ratio=0.0, samples=10, timer="wall", device="GPU-0")


@pytest.fixture
def scripted():
    """Makes a pool whose candidates have the latencies given by name, or what a function says."""

    def make(script, *contests):
        return ScriptedPool(script if callable(script) else lambda shape, name: script[name], *contests)

    return make


@pytest.fixture
def out(tmp_path):
    """A tuned CSV to be, in a directory of its own."""
    directory = tmp_path / "out"
    directory.mkdir()
    return directory / "tuned.csv"


@pytest.fixture
def tiny():
    return lambda name="Tiny": load_family(f"{FAMILIES}:{name}")


@pytest.fixture
def shapes(tmp_path):
    """Writes a file of shapes with these sizes; returns its path."""

    def write(*sizes):
        path = tmp_path / "shapes.csv"
        path.write_text("N\n" + "".join(f"{size}\n" for size in sizes))
        return path

    return write
