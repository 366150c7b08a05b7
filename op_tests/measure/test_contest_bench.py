"""A contest on a CPU: entering, turns, and the verdicts after it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aiter_tuning.contest import Block, Contest
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.statistics import median
from aiter_tuning.status import Status
from op_tests.measure.contest_bench import Floor
from op_tests.pool.contest_rules import Rounds

Make = Callable[..., Any]


def gen_data(*, device: Any) -> dict[str, torch.Tensor]:
    return {"a": torch.arange(64, dtype=torch.float32), "out": torch.empty(64)}


def double(a: torch.Tensor) -> torch.Tensor:
    return a * 2


A: dict[str, Any] = {
    "gen_data": gen_data,
    "args": (["a", "out"],),
    "ref_func": double,
    "ref_args": (["a"],),
    "output_keys": ("out",),
    "kwargs": {"num_warmup": 1},
}


def write(a: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.mul(a, 2, out=out)


class Script:
    """A candidate that does what the test says, by the number of its call from 1: the checked one."""

    def __init__(self, **steps: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        self.calls = 0
        self.seen: list[float] = []
        self._steps = {int(name.removeprefix("call")): step for name, step in steps.items()}

    def __call__(self, a: torch.Tensor, out: torch.Tensor) -> Any:
        self.calls += 1
        self.seen.append(float(a[1]))
        step = self._steps.get(self.calls)
        return write(a, out) if step is None else step(a, out)


def fail(error: BaseException) -> Callable[..., Any]:
    def step(a: torch.Tensor, out: torch.Tensor) -> None:
        raise error

    return step


def test_each_entrant_is_called_as_often_as_the_contest_says_in_each_block(task: Make) -> None:
    funcs = [Script(), Script()]
    floor = Floor(*(task(func, **A) for func in funcs))
    verdicts = floor.hold(blocks=3)
    # checked, warm-up, 3 blocks of 4, verified
    assert [func.calls for func in funcs] == [1 + 1 + 3 * 4 + 1] * 2
    for index, verdict in verdicts.items():
        assert (verdict.status, verdict.samples, verdict.timer) == (Status.ok, 12, "wall")
        assert verdict.us == median(
            [us for block in floor.blocks for i, us in zip(block.order, block.us, strict=True) if i == index]
        )


def test_short_entrants_are_called_until_their_calls_fill_the_turn(task: Make) -> None:
    func = Script()
    floor = Floor(task(func, **A), contest=Contest(Rounds(1), seed=1, block_calls=2, block_us=3000.0))
    verdict = floor.hold(blocks=1)[0]
    assert verdict.samples > 2 and func.calls == 1 + 1 + verdict.samples + 1


def test_whoever_is_wrong_at_the_door_stays_outside_without_a_time(task: Make) -> None:
    wrong = Script(call1=lambda a, out: out.copy_(a * 3))
    floor = Floor(task(Script(), **A), task(wrong, **A))
    assert list(floor.bench.entrants) == [0] and wrong.calls == 1
    verdict = floor.verdicts[1]
    assert (verdict.status, verdict.us, verdict.samples) == (Status.mismatch, math.inf, 0)
    assert verdict.err_ratio > 0.9 and verdict.detail


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("no"), Status.crash),
        (NotImplementedError(), Status.unsupported),
        (MemoryError(), Status.oom_runtime),
        (SystemExit(3), Status.crash),
    ],
)
@pytest.mark.parametrize("call", [1, 2, 5])
def test_whatever_an_entrant_raises_is_its_verdict_and_nobody_elses(
    error: BaseException, status: Status, call: int, task: Make
) -> None:
    funcs = [Script(), Script(**{f"call{call}": fail(error)}), Script()]
    floor = Floor(*(task(func, **A) for func in funcs))
    verdicts = floor.hold(blocks=2)
    assert [verdicts[index].status for index in range(3)] == [Status.ok, status, Status.ok]
    assert funcs[1].calls == call and verdicts[1].us == -1.0
    if call == 5:
        [first, second] = floor.blocks
        assert math.isnan(first.us[1]) and second.order == (0, 2)


def test_a_device_fault_ends_the_block_at_once_and_names_its_culprit(task: Make) -> None:
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")
    funcs = [Script(), Script(call3=fail(fault)), Script()]
    floor = Floor(*(task(func, **A) for func in funcs))
    floor.ready()
    result = floor.block()
    assert result.block is None and list(result.lost) == [1]
    assert (floor.verdicts[1].status, floor.verdicts[1].us) == (Status.crash, math.inf)
    assert floor.bench.fault is fault and floor.bench.culprit == 1
    assert funcs[2].calls == 2, "nobody comes after it"


def test_an_entrant_that_turns_wrong_while_it_is_timed_is_a_mismatch_with_its_time(task: Make) -> None:
    sly = Script(call15=lambda a, out: out.copy_(a * 3))
    verdict = Floor(task(sly, **A)).hold(blocks=3)[0]
    assert verdict.status is Status.mismatch and verdict.us > 0
    assert "right in its first call, wrong after timing" in verdict.detail


def test_an_entrant_that_writes_its_inputs_finds_them_restored_and_so_do_the_others(task: Make) -> None:
    class Writer(Script):
        def __call__(self, a: torch.Tensor, out: torch.Tensor) -> Any:
            result = super().__call__(a, out)
            a += 1
            return result

    writer, reader = Writer(), Script()
    verdicts = Floor(task(writer, **A), task(reader, **A)).hold(blocks=3)
    assert [verdicts[index].status for index in (0, 1)] == [Status.ok] * 2
    assert set(writer.seen) == set(reader.seen) == {1.0}
    assert "writes_inputs" in verdicts[0].flags and "writes_inputs" not in verdicts[1].flags


def test_inputs_written_by_surprise_are_put_back_before_anybody_is_verified(task: Make) -> None:
    def spoil(a: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        a.fill_(9)
        return write(a, out)

    verdicts = Floor(task(Script(call4=spoil), **A), task(Script(), **A)).hold(blocks=2)
    assert [verdicts[index].status for index in (0, 1)] == [Status.ok] * 2


def test_what_an_entrant_disturbs_is_put_back_after_its_turn_and_flagged(task: Make) -> None:
    def disturb(a: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.set_default_dtype(torch.float64)
        return write(a, out)

    def check(a: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        assert torch.get_default_dtype() is torch.float32
        return write(a, out)

    verdicts = Floor(task(Script(call4=disturb), **A), task(check, **A)).hold(blocks=2)
    assert "changed_default_dtype" in verdicts[0].flags
    assert verdicts[1].status is Status.ok and verdicts[1].flags == ()


def test_entrants_with_other_inputs_keep_their_own(task: Make) -> None:
    def others(*, device: Any) -> dict[str, torch.Tensor]:
        return {"a": torch.full((64,), 5.0), "out": torch.empty(64)}

    funcs = [Script(), Script(), Script()]
    tasks = [task(func, **A) for func in funcs]
    tasks[1] = tasks[1]._replace(gen_data=others)
    verdicts = Floor(*tasks).hold(blocks=2)
    assert [verdict.status for verdict in verdicts.values()] == [Status.ok] * 3
    assert [set(func.seen) for func in funcs] == [{1.0}, {5.0}, {1.0}]


def test_blocks_on_record_count_and_only_checking_is_done_again(task: Make) -> None:
    func = Script()
    recorded = (Block(1, (0,), (10.0,)), Block(2, (0,), (30.0,)), Block(3, (0,), (11.0,)))
    floor = Floor(task(func, **A), contest=Contest(Rounds(3), seed=1, block_calls=4, blocks=recorded))
    floor.blocks = list(recorded)
    verdict = floor.conclude()[0]
    assert func.calls == 2, "checked and verified"
    assert (verdict.status, verdict.us, verdict.samples) == (Status.ok, 11.0, 12)


def test_a_clock_that_reads_zero_ends_its_entrant(task: Make) -> None:
    class Stopped:
        name = "wall"

        def read(self, call: Any, calls: int) -> float:
            return 0.0

    floor = Floor(task(Script(), **A), new_timer=lambda kind: Stopped())
    verdict = floor.hold(blocks=1)[0]
    assert (verdict.status, verdict.us, verdict.detail) == (Status.crash, -1.0, "the wall timer read 0.0 us in block 1")
    assert math.isnan(floor.blocks[0].us[0])


def test_without_a_reference_an_entrant_is_verified_by_nobody(task: Make) -> None:
    func = Script()
    floor = Floor(task(func, **{**A, "ref_func": None}), plan=MeasurePlan(fast_mode=True))
    assert floor.hold(blocks=1)[0].status is Status.ok
    assert func.calls == 1 + 1 + 4
