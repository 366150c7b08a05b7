"""Which timer a GPU gets, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from aiter_tuning.devices.cpu import CpuKind
from aiter_tuning.measure.gpu.accelerator import CaptureError
from aiter_tuning.measure.gpu.activity import ActivitySource, ActivityUnavailableError
from aiter_tuning.measure.gpu.device_timer import DeviceTimer
from aiter_tuning.measure.gpu.timer_choice import GpuTimers, disagreement
from aiter_tuning.measure.timer import TIMERS, Call, WallTimer, check_timer, timer_factory
from op_tests.measure.fake_gpu import FakeGpu, FakeSource


def timers_of(gpu: FakeGpu, *, known_us: float = 8.0, **sources: Callable[[], ActivitySource]) -> GpuTimers:
    every: dict[str, Callable[[], ActivitySource]] = {"kernel": lambda: FakeSource(gpu), **sources}
    return GpuTimers(CpuKind(), gpu, every, lambda: Call(lambda: gpu.launch(known_us), (), {}))


def unavailable(reason: str, cause: BaseException | None = None) -> Callable[[], ActivitySource]:
    def open_it() -> ActivitySource:
        raise ActivityUnavailableError(reason) from cause

    return open_it


def test_records_of_kernels_are_best_and_the_check_is_made_once(gpu: FakeGpu) -> None:
    timers = timers_of(gpu)
    choice = timers.choose("auto")
    assert (choice.name, choice.reason, choice.fallback) == ("kernel", "", False)
    assert choice.readings_us["kernel"] == pytest.approx(8.0) and choice.readings_us["event"] > 8.0
    before = len(gpu.executed)
    timer = timers.new("auto")
    assert isinstance(timer, DeviceTimer) and timer.name == "kernel" and len(gpu.executed) == before


@pytest.mark.parametrize(("asked", "fallback"), [("auto", False), ("kernel", True)])
def test_an_optional_package_that_is_missing_is_news_only_to_who_asked_for_it(
    asked: str, fallback: bool, gpu: FakeGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    timers = timers_of(gpu, kernel=unavailable("cupti-python cannot be loaded", ImportError()))
    choice = timers.choose(asked)
    assert (choice.name, choice.fallback) == ("graph", fallback) and "cupti-python" in choice.reason
    assert ("cupti-python cannot be loaded" in capsys.readouterr().err) is fallback


def test_another_tool_in_the_process_is_always_news(gpu: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    timers = timers_of(gpu, kernel=unavailable("another tool uses CUPTI in this process"))
    timer = timers.new("auto")
    assert timer.name == "graph"
    assert capsys.readouterr().err == "timing with 'graph': another tool uses CUPTI in this process\n"
    assert isinstance(timer, DeviceTimer) and "fallback_timer" in timer.flags


@pytest.mark.parametrize("scale", [0.0, 0.01, 5.0, math.nan])
def test_records_that_disagree_with_events_are_not_believed(scale: float, gpu: FakeGpu) -> None:
    choice = timers_of(gpu, kernel=lambda: FakeSource(gpu, scale=scale)).choose("auto")
    assert choice.name == "graph" and choice.fallback and "kernel timer" in choice.reason


def test_a_gpu_that_captures_nothing_is_timed_by_events(gpu: FakeGpu) -> None:
    gpu.cannot_capture = CaptureError("no graphs here", clean=True)
    timers = timers_of(gpu, kernel=unavailable("none", ImportError()))
    assert timers.choose("auto").name == "event"
    assert timers.choose("event") == ("event", "", False, timers.choose("event").readings_us)


def test_hip_has_graphs_and_then_torchs_profiler(gpu: FakeGpu) -> None:
    gpu.is_hip = True
    timers = timers_of(gpu, profiler=lambda: FakeSource(gpu))
    assert timers.choose("auto").name == "graph"
    gpu.cannot_capture = CaptureError("no graphs here", clean=True)
    assert timers_of(gpu, profiler=lambda: FakeSource(gpu)).choose("auto").name == "profiler"


def test_a_device_that_fails_the_check_is_not_a_timer_that_does_not_work(gpu: FakeGpu) -> None:
    def fault() -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    timers = GpuTimers(CpuKind(), gpu, {}, lambda: Call(fault, (), {}))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        timers.choose("auto")


def test_where_nothing_works_the_host_clock_does(gpu: FakeGpu) -> None:
    def broken() -> Any:
        raise RuntimeError("events are broken")

    timers = GpuTimers(CpuKind(), gpu, {}, lambda: Call(broken, (), {}))
    choice = timers.choose("auto")
    assert choice.name == "wall" and choice.fallback and "events are broken" in choice.reason
    assert isinstance(timers.new("auto"), WallTimer)


@pytest.mark.parametrize(
    ("us", "event_us", "agrees"),
    [(8, 20, True), (20, 20, True), (27, 20, True), (30, 20, False), (1.9, 20, False), (0, 20, False)],
)
def test_a_timer_agrees_with_events_if_it_is_shorter_by_launching_and_no_longer(
    us: float, event_us: float, agrees: bool
) -> None:
    assert (disagreement("kernel", us, event_us) == "") is agrees


def test_on_a_cpu_auto_is_the_host_clock_and_gpu_timers_are_refused_with_what_to_do() -> None:
    assert isinstance(timer_factory("auto")(CpuKind()), WallTimer)
    for name in set(TIMERS) - {"auto", "wall"}:
        with pytest.raises(ValueError, match=rf"the {name} timer needs a GPU; on a CPU choose 'wall'"):
            timer_factory(name)
        check_timer(name, "cuda")
    with pytest.raises(ValueError, match=r"sundial.*kernel"):
        check_timer("sundial", "cuda")


def test_memory_that_timers_share_is_let_go(gpu: FakeGpu) -> None:
    timers_of(gpu).release()
    assert gpu.released
