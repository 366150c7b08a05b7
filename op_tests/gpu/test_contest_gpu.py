"""Contests on a real GPU: how alike equals are timed, what a block costs, how much memory entrants share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from aiter_tuning.measure.gpu.timer_choice import release_timers
from aiter_tuning.measure.statistics import median
from aiter_tuning.status import Status
from op_tests.gpu import contest_scenarios as scenario
from op_tests.gpu.contest_scenarios import blocks_of, floor_of, plus_one, plus_one_in_place, plus_one_in_two_kernels

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(60)]
MB = 1 << 20
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("size", [MB, 8 * MB, 64 * MB])
def test_entrants_that_are_the_same_kernel_differ_by_little(size: int) -> None:
    floor = floor_of(*[plus_one] * 4, size_bytes=size)
    values, took_ms = blocks_of(floor, 30)
    verdicts = floor.conclude()
    differences = [
        abs(median([b / a - 1 for a, b in zip(values[0], values[index], strict=True)])) * 100 for index in (1, 2, 3)
    ]
    print(
        f"\nA/A {size // MB} MB by {verdicts[0].timer}: {verdicts[0].us:.2f} us, paired medians differ by "
        f"{[round(d, 3) for d in differences]} %, a block took {median(took_ms):.2f} ms, flags {verdicts[0].flags}"
    )
    assert all(verdict.status is Status.ok for verdict in verdicts.values()), verdicts
    tick_pct = 3.2 / verdicts[0].us  # records are stamped every 32 ns, and two medians are compared
    assert max(differences) < max(1.0, 2 * tick_pct)


def test_a_block_is_one_session_and_costs_little_beside_its_calls() -> None:
    for size in (MB, 8 * MB):
        floor = floor_of(*[plus_one, plus_one_in_two_kernels] * 5, size_bytes=size)
        source = scenario.timers(floor)[0].source
        sessions = scenario.Collections(floor) if source is not None else None
        _, took_ms = blocks_of(floor, 20)
        verdicts = floor.conclude()
        calls = sum(verdict.samples for verdict in verdicts.values()) / 20
        work_ms = sum(verdict.us * verdict.samples for verdict in verdicts.values()) / 20 / 1e3
        print(
            f"\n10 entrants, {size // MB} MB: a block took {median(took_ms):.2f} ms, {work_ms:.2f} ms of it its "
            f"{calls:.0f} calls by {verdicts[0].timer}"
        )
        if sessions is not None:
            assert sessions.count == 20, "one for each block"
        assert median(took_ms) - work_ms < 25
        assert all(verdict.status is Status.ok for verdict in verdicts.values())


def test_a_slower_entrant_is_slower_in_nearly_every_block() -> None:
    floor = floor_of(plus_one, plus_one_in_two_kernels, size_bytes=32 * MB)
    values, _ = blocks_of(floor, 20)
    floor.conclude()
    wins = sum(one < two for one, two in zip(values[0], values[1], strict=True))
    print(f"\none kernel {median(values[0]):.2f} us, two {median(values[1]):.2f} us, faster in {wins} of 20 blocks")
    assert wins >= 19


def test_ten_entrants_need_the_memory_of_one_set_of_copies() -> None:
    release_timers()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    floor = floor_of(*[plus_one] * 10, size_bytes=16 * MB)
    held = torch.cuda.memory_allocated() - before
    launches = scenario.timers(floor)[0].launches
    copies, flush = len(launches.ring), launches.plan.flush_bytes
    print(f"\n10 entrants of 2 * 16 MB hold {held // MB} MB, {copies} copies, {launches.plan}")
    # inputs, reference, pristine copies and a result on top of the ring
    assert held <= (copies + 3) * 32 * MB + flush
    assert floor.block().block is not None
    floor.conclude()
    release_timers()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() - before < 64 * MB


def test_an_entrant_that_writes_its_inputs_is_timed_beside_one_that_does_not() -> None:
    floor = floor_of(plus_one, plus_one_in_place, size_bytes=32 * MB)
    values, took_ms = blocks_of(floor, 10)
    verdicts = floor.conclude()
    print(f"\n{verdicts}\na block took {median(took_ms):.2f} ms")
    assert [verdicts[index].status for index in (0, 1)] == [Status.ok] * 2, verdicts
    assert "writes_inputs" in verdicts[1].flags and verdicts[0].timer == verdicts[1].timer
    assert median(values[0]) < median(values[1]) < 10 * median(values[0])


def test_one_that_cannot_be_captured_asks_for_another_process_and_is_timed_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "op_tests.gpu.contest_scenarios", "without_a_graph"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    report = json.loads(done.stdout.strip().splitlines()[-1])
    print(f"\n{json.dumps(report, indent=1)}")
    assert report["spoiler"] == 1
    assert report["statuses"] == ["ok", "ok"] and report["timers"][0] == report["timers"][1]
    assert "no_graph" in report["flags"][1] and "no_graph" not in report["flags"][0]
    if report["timers"][0] == "kernel":
        assert report["us"][1] == pytest.approx(report["us"][0], rel=0.1), "the same kernel"
