"""Timing on a GPU made of numbers: what is read, what is left out, and what happens when something does not work."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aiter_tuning.measure.gpu.accelerator import CaptureError
from aiter_tuning.measure.gpu.device_timer import DeviceTimer, Mode
from aiter_tuning.measure.sampling import sample_in_bursts
from aiter_tuning.measure.statistics import StopRule
from aiter_tuning.measure.timer import Call, NothingTimedError
from op_tests.measure.fake_gpu import FakeGpu, FakeSource

MB = 1 << 20


def call_of(gpu: FakeGpu, us: float, *, size: int = MB, kernels: int = 1) -> Call:
    """A candidate of ``kernels`` kernels on one input of ``size`` bytes; the fake notes which copy each one read."""

    def func(x: torch.Tensor) -> None:
        for _ in range(kernels):
            gpu.launch(us, buffer=x.data_ptr())

    return Call(func, (torch.zeros(size, dtype=torch.uint8),), {})


def timed(timer: DeviceTimer, call: Call, *, warmup: int = 3, iters: int = 60, **more: Any) -> float:
    return sample_in_bursts(timer, call, warmup=warmup, iters=iters, **more).us


def event(**more: Any) -> Mode:
    return Mode("event", None, wants_graph=False, **more)


def graph(**more: Any) -> Mode:
    return Mode("graph", None, wants_graph=True, **more)


def kernel(gpu: FakeGpu, source: FakeSource | None = None, **more: Any) -> Mode:
    return Mode("kernel", source or FakeSource(gpu), wants_graph=True, **more)


# --- what is read -----------------------------------------------------------------------------------------------------


def test_a_tiny_kernel_is_launch_bound_between_events_and_not_in_a_graph(gpu: FakeGpu) -> None:
    # triton#1893: the host's launches hide the kernel.
    read = {mode.name: timed(DeviceTimer(gpu, mode), call_of(gpu, 2.0)) for mode in (event(), graph(), kernel(gpu))}
    assert read["event"] > 9, "each call waits for the host"
    assert read["kernel"] == pytest.approx(2.0)
    assert 2.0 < read["graph"] < 4.5, "gaps between kernels count, launches don't"


@pytest.mark.parametrize("mode", ["event", "graph", "kernel"])
def test_a_launch_bound_candidate_is_flagged_by_every_timer_and_a_long_one_by_none(gpu: FakeGpu, mode: str) -> None:
    modes: dict[str, Callable[[], Mode]] = {"event": event, "graph": graph, "kernel": lambda: kernel(gpu)}
    short, long = DeviceTimer(gpu, modes[mode]()), DeviceTimer(gpu, modes[mode]())
    timed(short, call_of(gpu, 2.0))
    timed(long, call_of(gpu, 400.0))
    assert "launch_bound" in short.flags
    assert "launch_bound" not in long.flags


def test_a_call_of_several_kernels_counts_from_the_first_to_the_last(gpu: FakeGpu) -> None:
    assert timed(DeviceTimer(gpu, kernel(gpu)), call_of(gpu, 5.0, kernels=3)) == pytest.approx(3 * 5.0 + 2 * gpu.gap_us)


def test_what_torch_launches_before_a_replay_is_no_part_of_a_call(gpu: FakeGpu) -> None:
    gpu.kernels_before_replay = 2
    assert timed(DeviceTimer(gpu, kernel(gpu)), call_of(gpu, 5.0)) == pytest.approx(5.0)


@pytest.mark.parametrize("size", [MB, 64])
def test_records_that_know_no_graphs_are_told_apart_by_counting(gpu: FakeGpu, size: int) -> None:
    gpu.marks_graphs = False
    assert timed(DeviceTimer(gpu, kernel(gpu)), call_of(gpu, 5.0, size=size)) == pytest.approx(5.0)


def test_iterations_count_calls_and_not_replays(gpu: FakeGpu) -> None:
    for mode in (graph(), kernel(gpu)):
        timer = DeviceTimer(gpu, mode)
        call = call_of(gpu, 50.0)
        timer.prepare(call, warmup=3, iters=60, restore=None, hurry=False)
        before = len(gpu.executed)
        sampled = sample_in_bursts(timer, call, warmup=3, iters=60)
        assert len(gpu.executed) - before == sampled.calls
        assert 60 <= sampled.calls < 60 + timer.launches.calls_each


def test_events_make_exactly_the_calls_asked_for(gpu: FakeGpu) -> None:
    sampled = sample_in_bursts(DeviceTimer(gpu, event()), call_of(gpu, 5.0), warmup=2, iters=7)
    assert sampled.calls == 7 and len(gpu.executed) == 9


def test_a_timer_reads_single_calls_like_any_other(gpu: FakeGpu) -> None:
    assert DeviceTimer(gpu, kernel(gpu)).read(call_of(gpu, 6.0), 10) == pytest.approx(6.0)


def test_a_steady_candidate_stops_early_and_a_hopeless_one_at_once(gpu: FakeGpu) -> None:
    rule = StopRule(min_ms=0.0)
    steady = sample_in_bursts(DeviceTimer(gpu, kernel(gpu)), call_of(gpu, 100.0), warmup=5, iters=101, rule=rule)
    assert steady.us == pytest.approx(100) and steady.calls < 40 and not steady.censored
    hopeless = sample_in_bursts(
        DeviceTimer(gpu, kernel(gpu)), call_of(gpu, 1000.0), warmup=5, iters=101, rule=rule, leader_us=100.0
    )
    assert hopeless.censored and 150 < hopeless.us <= 1001 and hopeless.calls < 15


@pytest.mark.parametrize(("us", "warmup", "condemned"), [(1000.0, 5, True), (150.0, 5, False), (1000.0, 2, False)])
def test_one_that_its_warm_up_shows_to_be_hopeless_is_neither_captured_nor_timed(
    gpu: FakeGpu, us: float, warmup: int, condemned: bool
) -> None:
    timer = DeviceTimer(gpu, kernel(gpu))
    sampled = sample_in_bursts(
        timer, call_of(gpu, us), warmup=warmup, iters=101, rule=StopRule(min_ms=0.0), leader_us=100.0
    )
    assert (gpu.replays == 0, len(gpu.executed) == warmup) == (condemned, condemned)
    if condemned:
        assert sampled.censored and sampled.calls == warmup and 0.95 * us < sampled.us <= us


def test_a_slow_candidate_is_warmed_up_with_fewer_calls_when_there_is_a_rule(gpu: FakeGpu) -> None:
    call = call_of(gpu, 50_000.0, size=8 * MB)
    DeviceTimer(gpu, event()).prepare(call, warmup=5, iters=10, restore=None, hurry=True)
    assert len(gpu.executed) == 1
    DeviceTimer(gpu, event()).prepare(call, warmup=5, iters=10, restore=None, hurry=False)
    assert len(gpu.executed) == 1 + 5


# --- the cache ----------------------------------------------------------------------------------------------------


def test_each_call_finds_another_copy_of_its_inputs_until_the_cache_has_forgotten_the_first(gpu: FakeGpu) -> None:
    for mode in (event(), graph(), kernel(gpu)):
        gpu.executed.clear()
        timer = DeviceTimer(gpu, mode)
        timed(timer, call_of(gpu, 5.0, size=MB), warmup=0, iters=30)
        assert len(set(gpu.executed)) == 3, "three copies of 1 MB are three times the cache"
        assert all(len(set(gpu.executed[i : i + 3])) == 3 for i in range(len(gpu.executed) - 2))
        assert not gpu.flushes and "hot_cache" not in timer.flags


@pytest.mark.parametrize("mode", ["event", "graph", "kernel"])
def test_the_flush_between_replays_of_small_inputs_is_not_in_the_latency(gpu: FakeGpu, mode: str) -> None:
    # triton#1679: the flush of a cache was timed with the kernel, and changed the winner.
    modes: dict[str, Callable[[], Mode]] = {"event": event, "graph": graph, "kernel": lambda: kernel(gpu)}
    read = {}
    for cost in (40.0, 4000.0):
        gpu.flush_us = cost
        gpu.flushes.clear()
        timer = DeviceTimer(gpu, modes[mode]())
        read[cost] = timed(timer, call_of(gpu, 20.0, size=64), iters=128)
        assert gpu.flushes and timer.flags.count("hot_cache") == 0
        timer.close()
    assert read[40.0] == pytest.approx(read[4000.0], rel=0.01)
    assert read[4000.0] < 35


def test_a_small_graph_is_flushed_once_for_all_its_calls(gpu: FakeGpu) -> None:
    # triton#3943: with a flush for each call, small kernels take longer to tune than large ones.
    timed(DeviceTimer(gpu, graph()), call_of(gpu, 1.0, size=64), iters=100)
    assert gpu.seconds() < 0.01
    assert len(gpu.flushes) == 1 + 2, "one to make room for the buffer, then one for each replay of 64 calls"


def test_a_cache_that_may_stay_hot_is_left_alone_and_said_so(gpu: FakeGpu) -> None:
    timer = DeviceTimer(gpu, kernel(gpu, cold_cache=False))
    timed(timer, call_of(gpu, 50.0))
    assert len(set(gpu.executed)) == 1 and not gpu.flushes and timer.flags == ("hot_cache",)


def test_a_ring_shrinks_to_the_memory_there_is_and_without_any_the_cache_stays_hot(gpu: FakeGpu) -> None:
    gpu.memory_bytes = 2 * MB
    timer = DeviceTimer(gpu, graph())
    timed(timer, call_of(gpu, 50.0, size=MB))
    assert len(set(gpu.executed)) == 2 and "hot_cache" not in timer.flags
    gpu.memory_bytes = MB
    timer = DeviceTimer(gpu, graph())
    assert timed(timer, call_of(gpu, 50.0, size=MB)) > 0
    assert "hot_cache" in timer.flags


def test_copies_that_run_out_of_memory_after_all_make_room_for_a_flush(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(call: Call) -> Call:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("aiter_tuning.measure.gpu.launches.copy_of", no_memory)
    timer = DeviceTimer(gpu, graph())
    assert timed(timer, call_of(gpu, 50.0)) == pytest.approx(50, rel=0.2)
    assert gpu.flushes and timer.flags == ()


# --- what cannot be captured ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_a_failed_capture_is_timed_by_single_calls_and_may_ask_for_a_clean_worker(gpu: FakeGpu, clean: bool) -> None:
    gpu.cannot_capture = CaptureError("operation not permitted when stream is capturing", clean=clean)
    timer = DeviceTimer(gpu, graph())
    assert timed(timer, call_of(gpu, 100.0)) == pytest.approx(100, rel=0.05)
    assert timer.name == "event" and "no_graph" in timer.flags
    assert ("not permitted" in timer.unclean) is not clean


def test_records_need_no_graph(gpu: FakeGpu) -> None:
    gpu.cannot_capture = CaptureError("no", clean=False)
    timer = DeviceTimer(gpu, kernel(gpu))
    assert timed(timer, call_of(gpu, 2.0, kernels=2)) == pytest.approx(2 * 2.0 + 10 - 2), "the host's gap is in it"
    assert timer.name == "kernel" and "no_graph" in timer.flags and timer.unclean


@pytest.mark.parametrize("records", [True, False])
def test_a_candidate_that_writes_its_inputs_is_timed_on_restored_ones_without_a_graph(
    gpu: FakeGpu, records: bool
) -> None:
    order: list[str] = []
    x = torch.zeros(MB, dtype=torch.uint8)

    def accumulate(x: torch.Tensor) -> None:
        order.append("call")
        gpu.launch(30.0)

    def restore() -> None:
        order.append("restore")
        gpu.launch(7.0)
        gpu.launch(3.0)

    timer = DeviceTimer(gpu, kernel(gpu) if records else graph())
    us = timed(timer, Call(accumulate, (x,), {}), iters=20, restore=restore)
    assert us == pytest.approx(30.0, abs=1.6)
    assert gpu.captures == 0 and timer.name == ("kernel" if records else "event")
    calls = [i for i, what in enumerate(order) if what == "call"]
    assert all(order[i - 1] == "restore" for i in calls) and len(calls) == 23
    assert len(gpu.flushes) >= 20, "what was just restored is in the cache"


# --- work that is not where it is timed -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["graph", "kernel"])
def test_work_on_another_stream_is_no_zero_time_but_an_error(gpu: FakeGpu, mode: str) -> None:
    timer = DeviceTimer(gpu, graph() if mode == "graph" else kernel(gpu))
    aside = Call(lambda: gpu.launch(50.0, stream="side"), (), {})
    with pytest.raises(NothingTimedError, match="another stream"):
        timed(timer, aside)


def test_long_work_on_another_stream_is_noticed_by_events_as_well(gpu: FakeGpu) -> None:
    aside = Call(lambda: gpu.launch(500.0, stream="side"), (), {})
    with pytest.raises(NothingTimedError):
        timed(DeviceTimer(gpu, event()), aside)


def test_a_candidate_that_does_nothing_is_not_timed_as_zero(gpu: FakeGpu) -> None:
    with pytest.raises(NothingTimedError):
        timed(DeviceTimer(gpu, kernel(gpu)), Call(lambda: None, (), {}))


def test_a_host_that_was_busy_once_condemns_nobody(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    hiccups = iter([5000.0])
    wait = gpu.synchronize

    def synchronize() -> None:
        wait()
        if gpu.executed:
            gpu.host_us += next(hiccups, 0.0)

    monkeypatch.setattr(gpu, "synchronize", synchronize)
    timer = DeviceTimer(gpu, graph())
    timer.prepare(call_of(gpu, 20.0), warmup=0, iters=20, restore=None, hurry=False)
    gpu.executed.append(0)
    assert math.isfinite(timer.burst(20).samples_us[0])


# --- records that get lost --------------------------------------------------------------------------------------------


def test_records_lost_once_are_collected_again(gpu: FakeGpu) -> None:
    timer = DeviceTimer(gpu, kernel(gpu, FakeSource(gpu, lose=[1])))
    assert timed(timer, call_of(gpu, 30.0)) == pytest.approx(30.0)
    assert timer.name == "kernel" and timer.flags == ()


def test_records_lost_again_and_again_make_it_events_and_the_record_says_so(gpu: FakeGpu) -> None:
    source = FakeSource(gpu, lose=range(2, 100))
    timer = DeviceTimer(gpu, kernel(gpu, source))
    sampled = sample_in_bursts(
        timer, call_of(gpu, 300.0), warmup=3, iters=60, rule=StopRule(min_ms=50.0, target_se_pct=0.0)
    )
    assert sampled.us == pytest.approx(300.0, rel=0.02) and sampled.us > 300.0, "events only, none of the first burst"
    assert timer.name == "graph" and "fallback_timer" in timer.flags and not source.is_on


def test_a_source_that_has_gone_deaf_is_not_the_candidates_fault(gpu: FakeGpu) -> None:
    timer = DeviceTimer(gpu, kernel(gpu, FakeSource(gpu, deaf=True)))
    assert timed(timer, call_of(gpu, 300.0)) == pytest.approx(300.0, rel=0.02)
    assert timer.name == "graph" and "fallback_timer" in timer.flags


def test_closing_lets_go_of_copies_and_stops_collecting(gpu: FakeGpu) -> None:
    import weakref

    source = FakeSource(gpu)
    timer = DeviceTimer(gpu, kernel(gpu, source))
    call = call_of(gpu, 5.0)
    timed(timer, call)
    copy = weakref.ref(timer.launches.ring[1].args[0])
    timer.close()
    assert copy() is None and not source.is_on


def test_what_a_candidate_raises_while_it_is_timed_comes_out(gpu: FakeGpu) -> None:
    calls: list[int] = []

    def late(x: torch.Tensor) -> None:
        calls.append(1)
        gpu.launch(5.0)
        if len(calls) == 5:
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        timed(DeviceTimer(gpu, event()), Call(late, (torch.zeros(4),), {}))
