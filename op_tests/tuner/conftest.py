"""A stand-in for the pool: the tuner's side of a run without processes, scripted candidate by candidate."""

from pathlib import Path

import pytest

from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import RunEnd, RunOutcome
from aiter_tuning.status import Status
from aiter_tuning.tuner.family_reference import load_family

FAMILIES = Path(__file__).parent.parent / "families_for_tests" / "tiny.py"


class ScriptedPool:
    """Hands candidates out in order and answers from a script.

    ``script(shape, name)`` returns a latency, a Status, a Measurement, or one of the words ``stop``, ``clock`` (the
    group's clock runs out) and ``die`` (the run dies there and then).
    """

    def __init__(self, script):
        self.devices = (Device("fake:Kind", "gpu0", "GPU-0", gfx="sm90", cu_num=132, gpu_model="H200"),)
        self.lanes = []
        self.script = script
        self.calls = []
        self.stop_requested = False
        self.seen = {}

    def request_stop(self):
        self.stop_requested = True

    def run(self, groups, plan, clocks, *, on_fault, watcher, budget_s, quiet_start, precompile):
        self.seen = {"plan": plan, "clocks": clocks, "on_fault": on_fault, "budget_s": budget_s}
        for number in range(len(groups)):
            group = groups[number]
            results = []
            for index, task in enumerate(group.tasks):
                if self.stop_requested:
                    return RunOutcome(RunEnd.interrupted, "the run was stopped")
                shape, name = task.gen_args[0], task.info[-1]
                group.logbook.started(index, 1)
                self.calls.append((shape["N"], name))
                answer = self.script(shape, name)
                if answer == "die":
                    raise SystemExit("the run dies")
                if answer in ("stop", "budget"):
                    watcher.stopped(number, index, 1)
                    rest = [Measurement.failed(Status.not_run, "stopped")] * (len(group.tasks) - index)
                    watcher.group_ended(number, results + rest)
                    return RunOutcome(RunEnd.interrupted if answer == "stop" else RunEnd.budget, "ended early")
                if answer == "clock":
                    watcher.stopped(number, index, 1)
                    for _ in range(index, len(group.tasks)):
                        measurement = Measurement.failed(Status.not_run, "the group's clock")
                        results.append(measurement)
                    break
                measurement = as_measurement(answer)
                group.logbook.finished(index, measurement)
                watcher.measured(number, index, measurement, logged=True)
                results.append(measurement)
            watcher.group_ended(number, results)
            watcher.tick([])
        return RunOutcome(RunEnd.done)


def as_measurement(answer):
    if isinstance(answer, Measurement):
        return answer
    if isinstance(answer, Status):
        return Measurement.failed(answer, f"scripted {answer}")
    return Measurement(status=Status.ok, us=float(answer), err_ratio=0.0, samples=10, timer="wall", device="GPU-0")


@pytest.fixture
def scripted():
    """Makes a pool whose candidates have the latencies given by name, or what a function says."""

    def make(script):
        return ScriptedPool(script if callable(script) else lambda shape, name: script[name])

    return make


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
