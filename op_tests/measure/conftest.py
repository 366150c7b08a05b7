"""A group bench on this process's CPU, closed after the test."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiter_tuning.devices.cpu import CpuKind
from aiter_tuning.measure.gpu import device_timer
from aiter_tuning.measure.group import GroupBench
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement
from aiter_tuning.task import Group, MpTunerTask
from op_tests.measure.fake_gpu import FakeGpu


class Lane:
    """Measures tasks one after another as a worker does, and keeps what it announced."""

    def __init__(self) -> None:
        self.announced: list[str] = []
        self.first_calls = 0
        self.faults: list[BaseException | None] = []
        self._open: list[GroupBench] = []

    def bench(self, *tasks: MpTunerTask, data: Any = None, plan: MeasurePlan | None = None) -> GroupBench:
        group = Group(tuple(tasks), tuple(range(len(tasks))), data)
        bench = GroupBench(
            group.tasks, group.inputs_ids, group.reference_ids, group.data, plan or MeasurePlan(), CpuKind(), "cpu"
        )
        self._open.append(bench)
        return bench

    def run(
        self, *tasks: MpTunerTask, data: Any = None, plan: MeasurePlan | None = None, leader_us: float = math.inf
    ) -> list[Measurement]:
        bench = self.bench(*tasks, data=data, plan=plan)
        results = []
        for index in range(len(tasks)):
            failed = bench.prepare(index, self.announced.append)
            if failed is None:
                failed, fault = bench.measure(index, self._first_call_done, leader_us)
                self.faults.append(fault)
            results.append(failed)
        return results

    def _first_call_done(self) -> None:
        self.first_calls += 1

    def close(self) -> None:
        for bench in self._open:
            bench.close()


@pytest.fixture
def lane() -> Iterator[Lane]:
    opened = Lane()
    yield opened
    opened.close()


@pytest.fixture
def task() -> Callable[..., MpTunerTask]:
    """Makes a task from the fields that matter to a test."""

    def make(func: Callable[..., Any], **fields: Any) -> MpTunerTask:
        defaults: dict[str, Any] = {
            "info": ("shape", func),
            "gen_data": None,
            "gen_args": (),
            "args": (),
            "kwargs": {"num_warmup": 1, "num_iters": 3},
            "ref_func": None,
            "ref_args": (),
            "ref_kwargs": {},
            "ref": None,
        }
        return MpTunerTask(**{**defaults, "func": func, **fields})

    return make


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A fake GPU whose host clock is the one that timers look at."""
    fake = FakeGpu()
    monkeypatch.setattr(device_timer, "perf_counter", fake.seconds)
    return fake
