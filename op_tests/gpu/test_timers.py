"""GPU timers on a real GPU: cold caches, launch-bound kernels, what cannot be captured, and how well timers agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from aiter_tuning.measure import pristine
from aiter_tuning.measure.gpu.activity import ActivityUnavailableError
from aiter_tuning.measure.gpu.cupti_activity import CuptiActivity
from aiter_tuning.measure.gpu.ring import bytes_of
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.statistics import StopRule, median
from aiter_tuning.measure.timer import Call
from aiter_tuning.status import Status
from op_tests.gpu import timer_scenarios as scenario
from op_tests.gpu.timer_scenarios import add_call, measure, plus_one, read, slowly_launched_call

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(90)]
MB = 1 << 20
ROOT = Path(__file__).parents[2]
IMPORT_PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
"""With ours last: optional packages may have been put on it."""


def in_its_own_process(name: str) -> dict[str, object]:
    """What a scenario reports, run where nothing has touched the GPU before."""
    done = subprocess.run(
        [sys.executable, "-m", "op_tests.gpu.timer_scenarios", name],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        timeout=80,
        check=False,
    )
    assert done.returncode == 0, f"{name} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    report: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"\n{name}: {json.dumps(report, indent=1)}")
    return report


def cupti_is_missing() -> str:
    """Why there are no CUPTI records here; empty if there are."""
    try:
        CuptiActivity.open(torch.version.cuda)
    except ActivityUnavailableError as error:
        return str(error)
    return ""


MISSING = cupti_is_missing()
print(f"CUPTI: {MISSING or 'works'}")
needs_cupti = pytest.mark.skipif(bool(MISSING), reason=f"no CUPTI records: {MISSING}")
DEVICE_TIMERS = [pytest.param("kernel", marks=needs_cupti), "graph"]
ALL_TIMERS = [*DEVICE_TIMERS, "event"]


def test_the_best_timer_passes_its_check() -> None:
    began = time.perf_counter()
    choice = scenario.timers().choose("auto")
    print(f"\nchose {choice} in {time.perf_counter() - began:.3f} s")
    assert choice.name == ("kernel" if not MISSING else "graph") or torch.version.hip, choice
    assert choice.readings_us[choice.name] > 0


@pytest.mark.parametrize("name", DEVICE_TIMERS)
def test_a_copy_of_8_mb_is_slower_from_memory_than_from_the_cache(name: str) -> None:
    # aiter#211: timed again and again on the same 8 MB, a kernel never leaves the cache.
    hot_us, hot = read(name, add_call(8 * MB), cold=False)
    cold_us, cold = read(name, add_call(8 * MB))
    print(f"\n8 MB by {name}: hot {hot_us:.2f} us, rotated {cold_us:.2f} us over {cold.plan}")
    assert cold.name == hot.name == name
    assert "hot_cache" in hot.flags and "hot_cache" not in cold.flags
    assert cold_us > 1.03 * hot_us


@pytest.mark.parametrize("name", ALL_TIMERS)
def test_a_tiny_kernel_is_launch_bound_and_says_so(name: str) -> None:
    # triton#1893: the host's launch takes longer than the kernel.
    us, timer = read(name, slowly_launched_call(4096), cold=False)
    event_us, _ = read("event", slowly_launched_call(4096), cold=False)
    print(f"\ntiny kernel: {name} {us:.2f} us, events {event_us:.2f} us, flags {timer.flags}")
    assert "launch_bound" in timer.flags, f"{name} read {us:.2f} us where events read {event_us:.2f}"
    if name != "event":
        assert us < event_us / 2


@pytest.mark.parametrize("name", ALL_TIMERS)
def test_the_flush_is_not_in_the_latency(name: str) -> None:
    # triton#1679: it was, and changed the winner.
    flushed_us, timer = read(name, add_call(4096))
    plain_us, _ = read(name, add_call(4096), cold=False)
    print(f"\n4 KB by {name}: after a flush {flushed_us:.2f} us, without {plain_us:.2f} us; {timer.plan}")
    assert timer.plan.flush_bytes > 0, "4 KB cannot fill a ring"
    assert flushed_us < plain_us + 8, "writing twice the cache takes 20 us and more"


@pytest.mark.parametrize("name", ALL_TIMERS)
def test_a_hundred_iterations_of_a_tiny_kernel_take_little_time(name: str) -> None:
    # triton#3943: with a flush for each call, small kernels take longer to tune than large ones.
    read(name, add_call(4096), iters=10)
    call = add_call(4096)
    torch.cuda.synchronize()
    began = time.perf_counter()
    _, timer = read(name, call, iters=100)
    took_ms = (time.perf_counter() - began) * 1e3
    print(f"\n100 iterations of a tiny kernel by {name} ({timer.name}): {took_ms:.1f} ms")
    assert took_ms < 250


@needs_cupti
def test_kernel_and_graph_timer_agree_on_a_long_kernel() -> None:
    call = add_call(192 * MB)
    readings: dict[str, list[float]] = {"kernel": [], "graph": []}
    for _ in range(5):
        for name, values in readings.items():
            us, timer = read(name, call, iters=60)
            assert timer.name == name, f"{name} fell back to {timer.name}: {timer.flags}"
            values.append(us)
    kernel_us, graph_us = median(readings["kernel"]), median(readings["graph"])
    print(f"\n{readings}")
    assert kernel_us > 50
    assert kernel_us == pytest.approx(graph_us, rel=0.03)


@pytest.mark.parametrize("name", ALL_TIMERS)
def test_a_call_of_two_kernels_takes_about_twice_as_long(name: str) -> None:
    source = torch.ones(48 * MB // 4, device="cuda")
    out = torch.empty_like(source)

    def twice(x: torch.Tensor, y: torch.Tensor) -> None:
        torch.add(x, 1, out=y)
        torch.add(x, 2, out=y)

    one_us, _ = read(name, Call(lambda x, y: torch.add(x, 1, out=y), (source, out), {}))
    two_us, _ = read(name, Call(twice, (source, out), {}))
    print(f"\n{name}: one {one_us:.2f} us, two {two_us:.2f} us")
    assert 1.4 * one_us < two_us < 2.6 * one_us


def test_a_run_under_a_stop_rule_is_short() -> None:
    call = add_call(32 * MB)
    read("auto", call, rule=StopRule())
    began = time.perf_counter()
    rounds = 20
    for _ in range(rounds):
        us, timer = read("auto", call, rule=StopRule())
    took_ms = (time.perf_counter() - began) * 1e3 / rounds
    print(f"\n{us:.2f} us by {timer.name} under the default rule: {took_ms:.2f} ms a candidate")
    assert took_ms < 60


# --- through a group bench --------------------------------------------------------------------------------------------


def test_a_candidate_is_ok_and_its_record_names_the_timer() -> None:
    measured, bench = measure(plus_one)
    print(f"\n{measured}")
    assert measured.status is Status.ok and measured.timer == scenario.timers().choose("auto").name
    assert measured.samples >= 50 and bench.unclean == ""
    for name in ("graph", "event", "wall"):
        named, _ = measure(plus_one, plan=MeasurePlan(timer=name))
        assert (named.status, named.timer) == (Status.ok, name), named


def test_a_candidate_that_writes_its_inputs_is_timed_on_restored_ones() -> None:
    def in_place(a: torch.Tensor) -> torch.Tensor:
        return a.add_(1)

    measured, _ = measure(in_place, size_bytes=64 * MB)
    plain, _ = measure(plus_one, size_bytes=64 * MB)
    print(f"\nin place {measured}\nplain {plain}")
    assert measured.status is Status.ok and "writes_inputs" in measured.flags, measured
    assert measured.timer == ("event" if MISSING else "kernel")
    assert 0.3 * plain.us < measured.us < 2.5 * plain.us


def work_aside(a: torch.Tensor) -> torch.Tensor:
    with torch.cuda.stream(_SIDE):
        return a + 1


def work_aside_and_join(a: torch.Tensor) -> torch.Tensor:
    current = torch.cuda.current_stream()
    _SIDE.wait_stream(current)
    with torch.cuda.stream(_SIDE):
        result = a + 1
    current.wait_stream(_SIDE)
    return result


_SIDE = torch.cuda.Stream()


@pytest.mark.parametrize("name", ALL_TIMERS)
def test_work_on_another_stream_is_never_a_breakthrough(name: str) -> None:
    measured, _ = measure(work_aside, size_bytes=256 * MB, plan=MeasurePlan(timer=name))
    print(f"\n{measured}")
    assert measured.status is Status.crash and "another stream" in measured.detail, measured


@pytest.mark.parametrize("name", DEVICE_TIMERS)
def test_another_stream_that_is_waited_for_is_timed_as_any(name: str) -> None:
    measured, _ = measure(work_aside_and_join, size_bytes=64 * MB, plan=MeasurePlan(timer=name))
    plain, _ = measure(plus_one, size_bytes=64 * MB, plan=MeasurePlan(timer=name))
    print(f"\njoined {measured}\nplain {plain}")
    assert measured.status is Status.ok and measured.timer == name, measured
    assert 0.7 * plain.us < measured.us < 1.6 * plain.us


def test_a_candidate_that_cannot_be_captured_is_timed_without_a_graph() -> None:
    report = in_its_own_process("capture_failure")
    for asked, found in report.items():
        assert isinstance(found, dict)
        assert found["status"] == "ok" and "no_graph" in found["flags"], (asked, found)
        assert found["timer"] == ("event" if asked == "graph" or MISSING else "kernel"), (asked, found)
        assert found["us"] > 0


def test_candidates_leave_no_memory_behind() -> None:
    reserved = []
    for _ in range(12):
        measured, _ = measure(plus_one, size_bytes=64 * MB)
        assert measured.status is Status.ok, measured
        torch.cuda.empty_cache()
        reserved.append(torch.cuda.memory_reserved() // MB)
    print(f"\nMB reserved after each candidate: {reserved}")
    assert reserved[-1] <= reserved[2] + 64


def test_with_little_memory_the_ring_shrinks_before_anything_fails() -> None:
    scenario.timers().release()
    torch.cuda.empty_cache()
    call = add_call(32 * MB)
    assert bytes_of(call) == 64 * MB
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - 160 * MB, dtype=torch.uint8, device="cuda")
    try:
        us, timer = read("graph", call, iters=20)
        print(f"\nwith 160 MB left: {us:.2f} us, {timer.plan}, {timer.flags}")
        assert us > 0 and timer.plan.copies <= 2
    finally:
        del hog
        torch.cuda.empty_cache()


def test_inputs_are_restored_from_copies_on_the_host_where_the_device_had_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pristine, "_clone", lambda tensor: tensor.to("cpu", memory_format=torch.preserve_format))
    monkeypatch.setattr(pristine, "_CHUNK_BYTES", 1 << 20)
    dense = torch.arange(1 << 20, device="cuda", dtype=torch.float32).view(1024, 1024)
    views = [dense, dense.t(), torch.ones(3, 5, device="cuda", dtype=torch.bfloat16)[:, :3]]
    copies = pristine.Pristine(views)
    assert not copies.find_written()
    dense[1023, 1023] = -1
    views[2].zero_()
    assert copies.find_written()
    copies.settle()
    assert float(dense[1023, 1023]) == (1 << 20) - 1 and float(views[2].float().sum()) == 9


# --- trust -----------------------------------------------------------------------------------------------------------


def test_a_kernel_timed_against_itself_shows_how_far_each_timer_can_be_trusted() -> None:
    pairs = 25
    for size in (1 * MB, 16 * MB, 96 * MB):
        call = add_call(size)
        for name in ("kernel", "graph", "event"):
            if name == "kernel" and MISSING:
                continue
            differences = []
            for _ in range(pairs):
                (first, _), (second, _) = (read(name, call, rule=StopRule()) for _ in range(2))
                differences.append(abs(second / first - 1) * 100)
            middle, worst = median(differences), max(differences)
            print(
                f"\nA/A {size // MB} MB by {name}: {first:.2f} us, median {middle:.2f} %, worst {worst:.2f} %", end=""
            )
            if name != "event":
                assert middle < 3, differences
    print()


@needs_cupti
def test_a_record_costs_little() -> None:
    read("kernel", add_call(4096))
    source = scenario.timers()._source("kernel")
    assert isinstance(source, CuptiActivity)
    x = torch.ones(1024, device="cuda")
    source.start()
    for _ in range(1000):
        x.add_(1)
    torch.cuda.synchronize()
    began = time.perf_counter()
    records = source.collect()
    each_us = (time.perf_counter() - began) * 1e6 / 1000
    source.stop()
    print(f"\n{len(records)} records, {each_us:.2f} us each, buffers read: {source._buffers is not None}")
    assert len(records) == 1000
    assert source._buffers is not None, "cupti-python's objects cost 80 us each"
    assert each_us < 20


@needs_cupti
def test_what_cupti_costs() -> None:
    costs = in_its_own_process("cupti_costs")
    assert not [name for name in costs if name.startswith("lost")], costs


def test_torchs_profiler_agrees_with_events() -> None:
    report = in_its_own_process("profiler")
    assert report["choice"] == "profiler", report
    assert report["timer"] == "profiler" and report["us"] == pytest.approx(report["graph_us"], rel=0.15), report


@needs_cupti
def test_another_client_of_cupti_is_left_alone_and_the_record_says_so() -> None:
    report = in_its_own_process("other_client")
    assert report["choice"] == "graph" and report["fallback"], report
    assert "another tool uses CUPTI" in str(report["reason"])
    assert report["status"] == "ok" and report["timer"] == "graph", report
    assert "fallback_timer" in report["flags"]  # type: ignore[operator]
