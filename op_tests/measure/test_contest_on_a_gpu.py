"""A contest timed by a GPU's timers: one session a block, the same for all, copies shared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aiter_tuning.contest import Contest
from aiter_tuning.measure.gpu.accelerator import CaptureError
from aiter_tuning.measure.gpu.device_timer import DeviceTimer, Mode
from aiter_tuning.measure.plausibility import Limits
from aiter_tuning.status import Status
from aiter_tuning.tuner.family import Work
from op_tests.measure.contest_bench import Floor
from op_tests.measure.fake_gpu import FakeGpu, FakeSource
from op_tests.pool.contest_rules import Rounds

Make = Callable[..., Any]
MB = 1 << 20


def gen_data(*, device: Any) -> dict[str, torch.Tensor]:
    return {"a": torch.ones(MB // 4), "b": torch.ones(MB // 4)}


def double(a: torch.Tensor) -> torch.Tensor:
    return a + a


A: dict[str, Any] = {
    "gen_data": gen_data,
    "args": (["a"],),
    "kwargs": {"num_warmup": 2},
    "ref_func": double,
    "ref_args": (["a"],),
}


class Arena:
    """Holds contests on the fake GPU."""

    def __init__(self, task: Make, gpu: FakeGpu) -> None:
        self._task = task
        self.gpu = gpu
        self.source = FakeSource(gpu)
        self.mode = Mode("kernel", self.source, wants_graph=True)
        self.limits: Limits | None = None

    def entrant(self, us: float, *, kernels: int = 1, do: Callable[[torch.Tensor], None] = lambda a: None) -> Any:
        def func(a: torch.Tensor) -> torch.Tensor:
            result = a + a
            for _ in range(kernels):
                self.gpu.launch(us, buffer=a.data_ptr())
            do(a)
            return result

        return self._task(func, **A)

    def floor(self, *tasks: Any, block_calls: int = 4, **more: Any) -> Floor:
        contest = Contest(Rounds(3), seed=1, block_calls=block_calls, block_us=0, **more)
        floor = Floor(
            *tasks,
            contest=contest,
            new_timer=lambda kind: DeviceTimer(self.gpu, self.mode),
            on_gpu=True,
            limits=self.limits,
        )
        floor.ready()
        self.source.collections = 0
        return floor


@pytest.fixture
def arena(task: Make, gpu: FakeGpu) -> Arena:
    return Arena(task, gpu)


def timers(floor: Floor) -> list[DeviceTimer]:
    return list(floor.bench._turns._timers.values())  # type: ignore[union-attr]


def test_a_block_is_one_session_and_everyone_gets_the_time_of_their_own_kernels(arena: Arena) -> None:
    floor = arena.floor(arena.entrant(30.0), arena.entrant(7.0), arena.entrant(11.0, kernels=2))
    result = floor.block((2, 0, 1))
    assert arena.source.collections == 1 and floor.began == [2, 0, 1]
    assert result.block is not None and result.block.us == pytest.approx((23.0, 30.0, 7.0))
    assert {turn.timer for turn in result.timed} == {"kernel"}
    verdicts = floor.conclude()
    assert [verdicts[index].us for index in range(3)] == pytest.approx([30.0, 7.0, 23.0])
    assert all(verdict.status is Status.ok and verdict.samples >= 4 for verdict in verdicts.values())


def test_entrants_with_the_same_inputs_share_their_copies(arena: Arena) -> None:
    floor = arena.floor(*(arena.entrant(5.0) for _ in range(4)))
    rings = [[call.args[0].data_ptr() for call in timer.launches.ring] for timer in timers(floor)]
    assert len(rings[0]) == 3, "three times the cache"
    assert all(ring == rings[0] for ring in rings) and len(set(rings[0])) == 3


def test_what_an_entrant_prepares_is_copied_for_it_alone(arena: Arena) -> None:
    class Packed:
        def prepare(self, a: torch.Tensor) -> tuple[torch.Tensor]:
            return (a.clone(),)

        def __call__(self, a: torch.Tensor) -> torch.Tensor:
            arena.gpu.launch(5.0, buffer=a.data_ptr())
            return a + a

    floor = arena.floor(arena.entrant(5.0), arena._task(Packed(), **A))
    ours, theirs = ({call.args[0].data_ptr() for call in timer.launches.ring} for timer in timers(floor))
    assert len(ours) == len(theirs) == 3 and not ours & theirs


def test_small_inputs_have_the_cache_overwritten_before_each_launch(arena: Arena) -> None:
    arena.gpu.cache_bytes = 64 * MB
    floor = arena.floor(arena.entrant(5.0), arena.entrant(6.0))
    flushes = len(arena.gpu.flushes)
    result = floor.block()
    assert len(arena.gpu.flushes) == flushes + 2
    assert result.block is not None and result.block.us == pytest.approx((5.0, 6.0))
    assert "hot_cache" not in result.timed[0].flags


@pytest.mark.parametrize(
    ("memory", "cache", "plan"),
    [
        (12 * MB, MB, (3, 0, True)),
        (5 * MB // 2, MB, (2, 0, True)),
        (40 * MB, 9 * MB, (3, 18 * MB, True)),
        (2 * MB, 8 * MB, (1, 0, False)),
    ],
)
def test_with_little_memory_everyone_has_fewer_copies_then_an_overwritten_cache_then_a_hot_one(
    arena: Arena, memory: int, cache: int, plan: tuple[int, int, bool]
) -> None:
    arena.gpu.memory_bytes, arena.gpu.cache_bytes = memory, cache
    floor = arena.floor(arena.entrant(5.0), arena.entrant(6.0))
    assert [timer.launches.plan for timer in timers(floor)] == [plan] * 2
    assert [len(timer.launches.ring) for timer in timers(floor)] == [plan[0]] * 2
    assert ["hot_cache" in turn.flags for turn in floor.block().timed] == [not plan[2]] * 2


def test_where_the_cache_cannot_be_overwritten_for_one_that_writes_its_inputs_it_is_hot_for_all(arena: Arena) -> None:
    arena.gpu.memory_bytes = 7 * MB // 2  # room for a copy each, not for twice the cache
    floor = arena.floor(arena.entrant(5.0), arena.entrant(6.0, do=lambda a: a.add_(1)))
    assert ["hot_cache" in turn.flags for turn in floor.block().timed] == [True, True]


def test_when_copies_cannot_be_made_after_all_everyone_has_the_cache_overwritten(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(call: Any, storages: Any = None) -> Any:
        raise torch.OutOfMemoryError("in pieces")

    monkeypatch.setattr("aiter_tuning.measure.gpu.ring.copy_of", no_room)
    floor = arena.floor(arena.entrant(5.0), arena.entrant(6.0))
    assert {timer.launches.plan.copies for timer in timers(floor)} == {1}
    assert all(timer.launches.plan.flush_bytes for timer in timers(floor))
    assert floor.block().block is not None


def test_an_entrant_without_a_graph_is_timed_in_the_same_session(arena: Arena) -> None:
    floor = arena.floor(arena.entrant(30.0), arena.entrant(20.0, kernels=2), no_graph=(1,))
    result = floor.block()
    assert arena.source.collections == 1
    assert result.block is not None and result.block.us[0] == pytest.approx(30.0)
    assert 40.0 <= result.block.us[1] < 55.0, "the gap between launches counts"
    assert "no_graph" in result.timed[1].flags and "no_graph" not in result.timed[0].flags
    assert {turn.timer for turn in result.timed} == {"kernel"}


def test_one_that_cannot_be_captured_asks_for_another_process_without_blame(arena: Arena) -> None:
    arena.gpu.cannot_capture = CaptureError("operation not permitted", clean=False)
    floor = arena.floor(arena.entrant(30.0), arena.entrant(20.0))
    assert floor.bench.spoiler == 0 and not floor.verdicts


def test_by_events_nobody_is_timed_in_a_graph_if_one_cannot_be(arena: Arena) -> None:
    arena.mode = Mode("graph", None, wants_graph=True)
    floor = arena.floor(arena.entrant(30.0), arena.entrant(30.0), no_graph=(1,))
    result = floor.block()
    assert {turn.timer for turn in result.timed} == {"event"}
    assert result.block is not None and result.block.us[0] == pytest.approx(result.block.us[1])


def test_by_events_all_graphs_stay(arena: Arena) -> None:
    arena.mode = Mode("graph", None, wants_graph=True)
    result = arena.floor(arena.entrant(30.0), arena.entrant(30.0)).block()
    assert {turn.timer for turn in result.timed} == {"graph"}


def test_an_entrant_that_writes_its_inputs_has_them_restored_and_a_session_of_its_own(arena: Arena) -> None:
    seen: list[float] = []
    floor = arena.floor(
        arena.entrant(30.0, do=lambda a: a.add_(1)), arena.entrant(20.0, do=lambda a: seen.append(float(a[0])))
    )
    for _ in range(3):
        result = floor.block()
        assert result.block is not None and result.block.us == pytest.approx((30.0, 20.0))
    verdicts = floor.conclude()
    assert "writes_inputs" in verdicts[0].flags and verdicts[0].status is verdicts[1].status is Status.ok
    assert set(seen) == {1.0}


def test_a_lost_record_costs_a_session(arena: Arena) -> None:
    floor = arena.floor(arena.entrant(30.0), arena.entrant(7.0))
    arena.source._lose = {1}
    result = floor.block()
    assert arena.source.collections == 2
    assert result.block is not None and result.block.us == pytest.approx((30.0, 7.0))
    assert {turn.timer for turn in result.timed} == {"kernel"}


def test_after_a_second_loss_everyone_is_timed_by_events_and_says_so(arena: Arena) -> None:
    floor = arena.floor(arena.entrant(30.0), arena.entrant(7.0))
    arena.source._lose = {1, 2}
    result = floor.block()
    assert result.block is not None and result.block.us[0] > result.block.us[1]
    assert {turn.timer for turn in result.timed} == {"graph"}
    assert all("fallback_timer" in turn.flags for turn in result.timed)
    assert all("fallback_timer" in verdict.flags for verdict in floor.conclude().values())


def test_one_whose_kernels_cannot_be_counted_makes_all_be_timed_by_events(arena: Arena) -> None:
    calls = 0

    def sometimes_two(a: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            arena.gpu.launch(1.0)

    fickle = arena.entrant(20.0, do=sometimes_two)
    result = arena.floor(arena.entrant(30.0), fickle, no_graph=(1,), block_calls=5).block()
    assert result.block is not None and all(us > 0 for us in result.block.us)
    assert {turn.timer for turn in result.timed} == {"event"}


def test_one_that_raises_in_its_turn_is_left_out_and_the_others_are_timed_anew(arena: Arena) -> None:
    calls = 0

    def breaks(a: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise RuntimeError("enough")

    floor = arena.floor(arena.entrant(30.0), arena.entrant(9.0, do=breaks), arena.entrant(7.0), no_graph=(1,))
    while floor.block((0, 1, 2)).block is not None and not floor.verdicts:
        pass
    last = floor.blocks[-1]
    assert last.order == (0, 1, 2) and math.isnan(last.us[1])
    assert (last.us[0], last.us[2]) == pytest.approx((30.0, 7.0))
    assert floor.verdicts[1].status is Status.crash and floor.verdicts[1].detail.startswith("RuntimeError: enough")


def test_a_device_fault_in_a_turn_leaves_no_block(arena: Arena) -> None:
    armed = False

    def breaks(a: torch.Tensor) -> None:
        if armed:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    floor = arena.floor(arena.entrant(30.0), arena.entrant(9.0, do=breaks), arena.entrant(7.0), no_graph=(1,))
    armed = True
    result = floor.block((0, 1, 2))
    assert result.block is None and floor.bench.culprit == 1 and floor.began == [0, 1]
    assert floor.verdicts[1].us == math.inf


def test_a_latency_that_cannot_be_ends_its_entrant(arena: Arena) -> None:
    class Func:
        work = Work(flops=1e12, bytes=0.0)

        def __call__(self, a: torch.Tensor) -> torch.Tensor:
            arena.gpu.launch(100.0)
            return a + a

    arena.limits = Limits({4: 1e15})
    floor = arena.floor(arena._task(Func(), **A), arena.entrant(5.0))
    result = floor.block()
    assert floor.verdicts[0].status is Status.crash and "cannot be" in floor.verdicts[0].detail
    assert result.block is not None and math.isnan(result.block.us[0])


def test_short_entrants_are_called_no_more_often_than_records_are_worth(arena: Arena) -> None:
    contest = Contest(Rounds(3), seed=1, block_calls=4, block_us=2000.0)
    floor = Floor(
        arena.entrant(1.0),
        arena.entrant(400.0),
        contest=contest,
        new_timer=lambda kind: DeviceTimer(arena.gpu, arena.mode),
        on_gpu=True,
    )
    floor.ready()
    assert [turn.samples for turn in floor.block().timed] == [15, 6], "whole passes over a ring of three"
