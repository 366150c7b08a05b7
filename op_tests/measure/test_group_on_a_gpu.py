"""A group whose candidates are timed by a GPU's timers: what of it reaches the record."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aiter_tuning.measure.gpu.accelerator import CaptureError
from aiter_tuning.measure.gpu.device_timer import DeviceTimer, Mode
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.plausibility import Limits
from aiter_tuning.measure.statistics import StopRule
from aiter_tuning.status import Status
from aiter_tuning.tuner.family import Work
from op_tests.measure.fake_gpu import FakeGpu, FakeSource

Make = Callable[..., Any]
FAST = MeasurePlan(fast_mode=True)


def gen_data(*, device: torch.device) -> dict[str, torch.Tensor]:
    return {"a": torch.ones(1 << 18), "b": torch.ones(1 << 18)}


def double(a: torch.Tensor) -> torch.Tensor:
    return a + a


A: dict[str, Any] = {
    "gen_data": gen_data,
    "args": (["a"],),
    "kwargs": {"num_warmup": 2, "num_iters": 30},
    "ref_func": double,
    "ref_args": (["a"],),
}


class OnGpu:
    """A lane on which timers of the fake GPU time."""

    def __init__(self, lane: Any, gpu: FakeGpu) -> None:
        self._lane, self.gpu = lane, gpu
        self.mode = Mode("kernel", FakeSource(gpu), wants_graph=True)
        self.limits: Limits | None = None

    def run(self, task: Any, plan: MeasurePlan | None = None) -> Any:
        self.bench = self._lane.bench(task, plan=plan)
        self.bench._bench = self.bench._bench._replace(
            new_timer=lambda kind: DeviceTimer(self.gpu, self.mode), on_gpu=True, limits=self.limits
        )
        assert self.bench.prepare(0, print) is None
        measured, fault = self.bench.measure(0, lambda: None, math.inf)
        assert fault is None
        return measured


@pytest.fixture
def on_gpu(lane: Any, gpu: FakeGpu) -> OnGpu:
    return OnGpu(lane, gpu)


def test_the_record_names_the_timer_and_how_many_calls_it_rests_on(on_gpu: OnGpu, task: Make) -> None:
    def func(a: torch.Tensor) -> torch.Tensor:
        on_gpu.gpu.launch(30.0)
        return a + a

    measured = on_gpu.run(task(func, **A))
    assert (measured.status, measured.timer, measured.samples) == (Status.ok, "kernel", 30)
    assert measured.us == pytest.approx(30.0) and measured.flags == ()
    assert on_gpu.bench.unclean == ""


def test_a_launch_bound_candidate_is_ok_and_flagged(on_gpu: OnGpu, task: Make) -> None:
    def func(a: torch.Tensor) -> torch.Tensor:
        on_gpu.gpu.launch(1.0)
        return a + a

    measured = on_gpu.run(task(func, **A), MeasurePlan(early_stop=StopRule()))
    assert measured.status is Status.ok and "launch_bound" in measured.flags


def test_a_failed_capture_costs_the_candidate_nothing_and_the_bench_asks_for_a_clean_worker(
    on_gpu: OnGpu, task: Make
) -> None:
    def func(a: torch.Tensor) -> torch.Tensor:
        on_gpu.gpu.launch(80.0)
        return a + a

    on_gpu.gpu.cannot_capture = CaptureError("AcceleratorError: operation not permitted", clean=False)
    measured = on_gpu.run(task(func, **A))
    assert measured.status is Status.ok and measured.us == pytest.approx(80.0) and "no_graph" in measured.flags
    assert on_gpu.bench.unclean == "a capture failed: AcceleratorError: operation not permitted"


@pytest.mark.parametrize("source", [True, False])
def test_a_candidate_that_writes_its_inputs_gets_them_restored_before_each_timed_call(
    source: bool, on_gpu: OnGpu, task: Make
) -> None:
    if not source:
        on_gpu.mode = Mode("graph", None, wants_graph=True)
    seen: list[float] = []

    def func(a: torch.Tensor) -> torch.Tensor:
        seen.append(float(a[0]))
        on_gpu.gpu.launch(50.0)
        result = a + a
        a += 1
        return result

    measured = on_gpu.run(task(func, **A))
    assert measured.status is Status.ok and "writes_inputs" in measured.flags
    assert measured.timer == ("kernel" if source else "event") and set(seen) == {1.0}
    assert on_gpu.gpu.captures == 0


def test_work_that_nobody_can_time_is_a_crash_that_says_so(on_gpu: OnGpu, task: Make) -> None:
    def func(a: torch.Tensor) -> torch.Tensor:
        on_gpu.gpu.launch(50.0, stream="side")
        return a + a

    measured = on_gpu.run(task(func, **A))
    assert (measured.status, measured.us) == (Status.crash, -1.0)
    assert "another stream" in measured.detail


def test_a_latency_that_cannot_be_is_a_crash_with_both_numbers(on_gpu: OnGpu, task: Make) -> None:
    class Func:
        work = Work(flops=1e12, bytes=0.0)

        def __call__(self, a: torch.Tensor) -> torch.Tensor:
            on_gpu.gpu.launch(100.0)
            return a + a

    on_gpu.limits = Limits({4: 1e15})
    measured = on_gpu.run(task(Func(), **A))
    assert (measured.status, measured.us) == (Status.crash, -1.0)
    assert "100.000 us cannot be: that is 1e+04 TFLOP/s, and the device's peak is 1000" in measured.detail
    on_gpu.limits = Limits({4: 1e16})
    assert on_gpu.run(task(Func(), **A)).status is Status.ok


def test_an_attribute_that_only_happens_to_be_called_work_says_nothing(on_gpu: OnGpu, task: Make) -> None:
    class Func:
        def work(self) -> None:
            raise AssertionError("called")

        def __call__(self, a: torch.Tensor) -> torch.Tensor:
            on_gpu.gpu.launch(100.0)
            return a + a

    on_gpu.limits = Limits({4: 1.0})
    assert on_gpu.run(task(Func(), **A)).status is Status.ok


def test_a_workspace_that_does_not_fit_never_launches(on_gpu: OnGpu, task: Make, monkeypatch: Any) -> None:
    class Func:
        work = Work(flops=0.0, bytes=0.0, workspace_bytes=8.0 * (1 << 30))

        def __call__(self, a: torch.Tensor) -> torch.Tensor:
            raise AssertionError("launched")

    monkeypatch.setattr("aiter_tuning.measure.gpu.accelerator.free_bytes", lambda: 1 << 30)
    bench = on_gpu._lane.bench(task(Func(), **A))
    assert bench.prepare(0, print) is None
    bench._bench = bench._bench._replace(on_gpu=True)
    measured, _ = bench.measure(0, lambda: None, math.inf)
    assert (measured.status, measured.us) == (Status.oom_preflight, math.inf)
    assert measured.detail == "needs 8.00 GiB of workspace beside its inputs, and 1.00 GiB are free"


def test_a_task_may_ask_for_events(on_gpu: OnGpu, task: Make, monkeypatch: Any) -> None:
    asked: list[tuple[str, str]] = []

    def factory(name: str, device_type: str, **more: Any) -> Any:
        asked.append((name, device_type))
        return lambda kind: DeviceTimer(on_gpu.gpu, Mode("event", None, wants_graph=False))

    monkeypatch.setattr("aiter_tuning.measure.timing.timer_factory", factory)
    func = task(lambda a: on_gpu.gpu.launch(9.0), **{**A, "kwargs": {"num_iters": 5, "use_cuda_event": True}})
    bench = on_gpu._lane.bench(func._replace(ref_func=None), plan=FAST)
    assert bench.prepare(0, print) is None
    bench._bench = bench._bench._replace(on_gpu=True)
    measured, _ = bench.measure(0, lambda: None, math.inf)
    assert measured.timer == "event" and asked == [("event", "cpu")], "as torch calls the device"


def test_pristine_copies_go_to_the_host_where_the_device_has_no_room(monkeypatch: Any) -> None:
    from aiter_tuning.measure import pristine

    # A meta device would have no bits: the host stands for the device, and another tensor for its copy.
    monkeypatch.setattr(pristine, "_CHUNK_BYTES", 64)
    there, copy = torch.arange(1000, dtype=torch.int32), torch.arange(1000, dtype=torch.int32)
    assert pristine._same(there, copy)

    class Elsewhere:
        device = "host"

        def __init__(self, tensor: torch.Tensor) -> None:
            self._tensor = tensor

        def reshape(self, size: int) -> torch.Tensor:
            return self._tensor.reshape(size)

    assert pristine._same(there, Elsewhere(copy))  # type: ignore[arg-type]
    copy[999] += 1
    assert not pristine._same(there, Elsewhere(copy))  # type: ignore[arg-type]
