"""One group on one lane, in this process: every way a candidate can behave without dying."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.statistics import StopRule
from aiter_tuning.measure.timer import Call
from aiter_tuning.measure.timing import CLOCK_TRIES
from aiter_tuning.status import Status
from aiter_tuning.task import ALL_INPUTS

Make = Callable[..., Any]
FAST = MeasurePlan(fast_mode=True)


def gen_data(*, device: torch.device) -> dict[str, torch.Tensor]:
    return {
        "a": torch.randn(16, 16, device=device),
        "b": torch.randn(16, 16, device=device),
        "out": torch.zeros(16, 16, device=device),
    }


def right(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


AB: dict[str, Any] = {"gen_data": gen_data, "args": (["a", "b"],), "ref_func": right, "ref_args": (["a", "b"],)}
ABO: dict[str, Any] = {**AB, "args": (["a", "b", "out"],), "output_keys": ["out"]}


# --- what is right and what is wrong ------------------------------------------------------------------------------


def test_a_right_candidate_is_ok_and_carries_its_circumstances(lane: Any, task: Make) -> None:
    (measured,) = lane.run(task(right, **AB))
    assert measured.status is Status.ok and measured.err_ratio == 0.0 and measured.detail == ""
    assert 0 < measured.us < 1e5 and measured.samples == 3 and measured.timer == "wall"
    assert measured.setup_s > 0 and measured.first_call_s > 0 and measured.timing_s > 0 and measured.flags == ()


def test_a_fast_wrong_candidate_is_a_mismatch_and_still_timed(lane: Any, task: Make) -> None:
    fast, slow = lane.run(task(lambda a, b: a, **AB), task(right, **AB))
    assert fast.status is Status.mismatch and fast.us > 0 and fast.err_ratio > 0.9
    assert "elements differ" in fast.detail
    assert slow.status is Status.ok


@pytest.mark.parametrize(
    ("behaviour", "detail"),
    [
        (lambda a, b: None, "returned nothing although there is a reference"),
        (lambda a, b: torch.full_like(a, math.nan), "256 are NaN"),
        (lambda a, b: (a @ b)[:8], "shape [8, 16] instead of [16, 16]"),
        (lambda a, b: (a @ b).int(), "elements differ"),
        (lambda a, b: "done", "a str instead of a tensor"),
        (lambda a, b: [], "0 outputs instead of 1"),
    ],
)
def test_every_kind_of_wrong_result_is_a_mismatch_that_says_so(
    behaviour: Callable[..., Any], detail: str, lane: Any, task: Make
) -> None:
    wrong, after = lane.run(task(behaviour, **AB), task(right, **AB))
    assert wrong.status is Status.mismatch and detail in wrong.detail and wrong.us > 0
    assert after.status is Status.ok


@pytest.mark.parametrize(
    "behaviour",
    [lambda a, b: None, lambda a, b: torch.full_like(a, math.nan), lambda a, b: (a @ b)[:8], lambda a, b: "done"],
)
def test_what_is_wrong_altogether_is_right_under_no_limit(behaviour: Callable[..., Any], lane: Any, task: Make) -> None:
    wrong, partly = lane.run(
        task(behaviour, **AB),
        task(lambda a, b: (a @ b).add_(torch.eye(16).mul_(0.1)), **AB),
        plan=MeasurePlan(err_ratio=1.0),
    )
    assert (wrong.status, wrong.err_ratio) == (Status.mismatch, 1.0)
    assert partly.status is Status.ok and 0 < partly.err_ratio < 0.1


def test_another_precision_is_compared_after_a_cast(lane: Any, task: Make) -> None:
    (measured,) = lane.run(task(lambda a, b: (a.double() @ b.double()).to(torch.bfloat16), **{**AB, "rtol": 0.05}))
    assert measured.status is Status.ok


def test_half_an_output_is_wrong_even_after_a_candidate_that_wrote_all_of_it(lane: Any, task: Make) -> None:
    # aiter#3220: the half that B left alone still held A's right values.
    def writes_all(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        torch.mm(a, b, out=out)

    def writes_half(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        torch.mm(a[:8], b, out=out[:8])

    whole, half, again = lane.run(task(writes_all, **ABO), task(writes_half, **ABO), task(writes_all, **ABO))
    assert whole.status is again.status is Status.ok
    assert half.status is Status.mismatch and half.err_ratio == 0.5 and "128 are NaN" in half.detail


def test_an_output_that_is_not_declared_is_flagged_and_half_of_it_still_found(lane: Any, task: Make) -> None:
    undeclared = {**ABO, "output_keys": None}

    def writes_all(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b, out=out)

    def writes_half(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.mm(a[:8], b, out=out[:8])
        return out

    whole, half = lane.run(task(writes_all, **undeclared), task(writes_half, **undeclared))
    assert whole.status is Status.ok and set(whole.flags) == {"unprotected", "writes_inputs"}
    assert half.status is Status.mismatch and "unprotected" in half.flags


def test_integer_outputs_are_poisoned_with_something_that_is_not_the_answer(lane: Any, task: Make) -> None:
    def ints(*, device: torch.device) -> dict[str, torch.Tensor]:
        # The answer is what an int8 is poisoned with before the first checked call.
        return {"out": torch.full((8,), -91, dtype=torch.int8)}

    (lazy,) = lane.run(
        task(lambda out: None, gen_data=ints, args=(["out"],), output_keys=["out"], ref_func=lambda: _fill(-91))
    )
    assert lazy.status is Status.mismatch and "wrong after timing" in lazy.detail


def _fill(value: int) -> torch.Tensor:
    return torch.full((8,), value, dtype=torch.int8)


def test_memory_a_candidate_allocates_does_not_hold_the_answer_of_the_one_before(lane: Any, task: Make) -> None:
    def allocates(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b, out=torch.empty(16, 16))

    def forgets(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.empty(16, 16)

    _, lucky = lane.run(task(allocates, **AB), task(forgets, **AB))
    assert lucky.status is Status.mismatch


def test_the_reference_is_the_users_and_not_the_first_candidate(lane: Any, task: Make) -> None:
    wrong_default, good = lane.run(task(lambda a, b: a @ b * 1.5, **AB), task(right, **AB))
    assert (wrong_default.status, good.status) == (Status.mismatch, Status.ok)


def test_a_reference_computed_in_place_is_kept_apart_from_the_inputs(lane: Any, task: Make) -> None:
    def in_place(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.mm(a, b, out=out)

    good, lazy = lane.run(
        *(
            task(func, **{**ABO, "ref_func": in_place, "ref_args": (["a", "b", "out"],)})
            for func in (in_place, lambda a, b, out: out.fill_(5))
        )
    )
    assert (good.status, lazy.status) == (Status.ok, Status.mismatch)


@pytest.mark.parametrize("equal_nan", [False, True])
def test_nan_in_the_reference_is_right_only_if_the_caller_says_so(equal_nan: bool, lane: Any, task: Make) -> None:
    reference = torch.tensor([1.0, math.nan, 3.0])
    (measured,) = lane.run(task(lambda: reference.clone(), ref=reference), plan=MeasurePlan(equal_nan=equal_nan))
    assert (measured.status is Status.ok) is equal_nan


def test_an_error_ratio_at_the_limit_is_accepted_and_stored(lane: Any, task: Make) -> None:
    def nine_percent(reference: Any, result: Any, *, msg: str, printLog: bool) -> float:
        return 0.09

    fields = {**AB, "compare_fn": nine_percent}
    (strict,) = lane.run(task(right, **fields), plan=MeasurePlan(err_ratio=0.05))
    (loose,) = lane.run(task(right, **fields), plan=MeasurePlan(err_ratio=0.09))
    assert (strict.status, strict.err_ratio) == (Status.mismatch, 0.09)
    assert (loose.status, loose.err_ratio, loose.detail) == (Status.ok, 0.09, "")


def test_a_comparison_that_fails_is_a_crash_and_not_unsupported(lane: Any, task: Make) -> None:
    def broken(reference: Any, result: Any, *, msg: str, printLog: bool) -> float:
        raise ValueError("bad metric")

    broken_comparison, after = lane.run(task(right, **{**AB, "compare_fn": broken}), task(right, **AB))
    assert broken_comparison.status is Status.crash and broken_comparison.us == -1
    assert broken_comparison.detail == "comparing failed: ValueError: bad metric"
    assert after.status is Status.ok


def test_a_candidate_that_turns_wrong_while_it_is_timed_is_found(lane: Any, task: Make) -> None:
    calls: list[int] = []

    def wears_out(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return a @ b if len(calls) < 4 else a

    (measured,) = lane.run(task(wears_out, **AB))
    assert measured.status is Status.mismatch
    assert measured.detail.startswith("right in its first call, wrong after timing: ")


def test_without_a_reference_a_candidate_is_ok_only_in_fast_mode(lane: Any, task: Make) -> None:
    (fast,) = lane.run(task(lambda: None), plan=FAST)
    (slow,) = lane.run(task(lambda: None))
    assert (fast.status, fast.err_ratio) == (Status.ok, 0.0)
    assert slow.status is Status.mismatch and "nothing to compare with" in slow.detail


# --- calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("warmup", "iters"), [(0, 1), (2, 101), (5, 7)])
def test_a_direct_measurement_makes_exactly_the_calls_it_promises(
    warmup: int, iters: int, lane: Any, task: Make
) -> None:
    calls: list[dict[str, Any]] = []
    kwargs = {"num_warmup": warmup, "num_iters": iters, "use_cuda_event": True, "needTrace": False, "tile": 64}
    (measured,) = lane.run(task(lambda **own: calls.append(own), kwargs=kwargs), plan=FAST)
    assert len(calls) == 1 + warmup + iters + 1
    assert calls[0] == {"tile": 64}, "the harness keeps its own keywords to itself"
    assert measured.samples == iters and lane.first_calls == 1


def test_the_plan_gives_the_calls_where_the_task_does_not(lane: Any, task: Make) -> None:
    calls: list[int] = []
    lane.run(task(lambda: calls.append(1), kwargs={}), plan=MeasurePlan(fast_mode=True, warmup=3, iters=4))
    assert len(calls) == 1 + 3 + 4 + 1


def test_no_timed_call_at_all_is_refused(lane: Any, task: Make) -> None:
    (measured,) = lane.run(task(lambda: None, kwargs={"num_iters": 0}), plan=FAST)
    assert measured.status is Status.crash and measured.us == -1 and "num_iters must be 1 or more" in measured.detail


def test_the_first_call_is_announced_only_when_it_has_returned(lane: Any, task: Make) -> None:
    def fails() -> None:
        raise RuntimeError("no")

    lane.run(task(fails), plan=FAST)
    assert lane.first_calls == 0


def test_prepare_replaces_the_arguments_once_and_untimed(lane: Any, task: Make) -> None:
    class Packed:
        prepared = 0

        def prepare(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            type(self).prepared += 1
            return a, b.t().contiguous()

        def __call__(self, a: torch.Tensor, transposed: torch.Tensor) -> torch.Tensor:
            return a @ transposed.t()

    (measured,) = lane.run(task(Packed(), **AB))
    assert measured.status is Status.ok and Packed.prepared == 1


def test_a_candidate_may_take_all_inputs_by_name(lane: Any, task: Make) -> None:
    def run(inputs: dict[str, torch.Tensor], scale: float) -> torch.Tensor:
        return torch.mm(inputs["a"], inputs["b"], out=inputs["out"]) * scale

    (measured,) = lane.run(task(run, **{**AB, "args": (ALL_INPUTS, 1.0), "output_keys": ["out"]}))
    assert measured.status is Status.ok and "writes_inputs" not in measured.flags


def test_under_a_stop_rule_a_wrong_candidate_is_not_timed_at_length(lane: Any, task: Make) -> None:
    rule = StopRule(min_samples=4)
    calls: list[int] = []

    def wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return a

    (measured,) = lane.run(task(wrong, **{**AB, "kwargs": {}}), plan=MeasurePlan(early_stop=rule))
    assert measured.status is Status.mismatch and len(calls) == 1 + 2 + 4


def test_a_candidate_far_behind_the_leader_is_censored(lane: Any, task: Make) -> None:
    slow = task(lambda a, b: sum(a @ b for _ in range(200)) / 200, **{**AB, "kwargs": {}})
    (measured,) = lane.run(slow, plan=MeasurePlan(early_stop=StopRule()), leader_us=0.5)
    assert measured.censored and measured.us > 0.5 and measured.samples < 101


def test_who_waits_for_cores_while_it_is_timed_is_flagged(lane: Any, task: Make) -> None:
    cores = os.sched_getaffinity(0)
    rivals = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(2 * len(cores))]
    try:
        works = task(lambda a, b: sum(a @ b for _ in range(2000)) / 2000, **{**AB, "kwargs": {}})
        (measured,) = lane.run(works, plan=MeasurePlan(early_stop=StopRule()))
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()
    assert measured.status is Status.ok and "starved" in measured.flags


class Dial:
    """A clock that shows the given readings, then 5 us."""

    name = "dial"

    def __init__(self, *shown: float) -> None:
        self._shown = list(shown)

    def read(self, call: Call, calls: int) -> float:
        for _ in range(calls):
            call.func(*call.args, **call.kwargs)
        return self._shown.pop(0) if self._shown else 5.0


@pytest.mark.parametrize("nonsense", [0.0, math.nan, math.inf, -3.0])
def test_an_impossible_time_is_measured_again(
    nonsense: float, lane: Any, task: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = lane.bench(task(lambda: None, kwargs={"num_warmup": 0, "num_iters": 1}), plan=FAST)
    for zeros, status, us in [(3, Status.ok, 5.0), (4, Status.crash, -1.0)]:
        dial = Dial(*[nonsense] * zeros)
        monkeypatch.setattr(bench, "_bench", bench._bench._replace(new_timer=lambda kind, dial=dial: dial))
        assert bench.prepare(0, print) is None
        measured, _ = bench.measure(0, lambda: None, math.inf)
        assert (measured.status, measured.us) == (status, us)
    assert "the dial timer read" in measured.detail and f"in {CLOCK_TRIES} tries" in measured.detail


# --- what candidates raise --------------------------------------------------------------------------------------------


class Odd(BaseException):
    pass


class OutOfResources(Exception):  # noqa: N818  (Triton's name)
    pass


@pytest.mark.parametrize(
    ("error", "status", "us", "detail"),
    [
        (RuntimeError("boom\n  twice"), Status.crash, -1, "RuntimeError: boom twice"),
        (KeyError("x"), Status.crash, -1, "KeyError: 'x'"),
        (AssertionError(), Status.crash, -1, "AssertionError"),
        (ValueError("odd K"), Status.unsupported, -1, "ValueError: odd K"),
        (NotImplementedError(), Status.unsupported, -1, "NotImplementedError"),
        (OutOfResources("shared memory"), Status.unsupported, -1, "OutOfResources: shared memory"),
        (TimeoutError("slow"), Status.timeout, math.inf, "TimeoutError: slow"),
        (SystemExit(3), Status.crash, -1, "SystemExit: 3"),
        (KeyboardInterrupt(), Status.crash, -1, "KeyboardInterrupt"),
        (Odd("?"), Status.crash, -1, "Odd: ?"),
    ],
)
@pytest.mark.parametrize("in_call", [1, 3, 6])
def test_what_a_candidate_raises_is_its_verdict_and_nobody_elses(
    error: BaseException, status: Status, us: float, detail: str, in_call: int, lane: Any, task: Make
) -> None:
    calls: list[int] = []

    def fails(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == in_call:
            raise error
        return a @ b

    before, failed, after = lane.run(task(right, **AB), task(fails, **AB), task(right, **AB))
    assert before.status is after.status is Status.ok
    place = f", at test_group.py:{fails.__code__.co_firstlineno + 3}" if status is Status.crash else ""
    assert (failed.status, failed.us, failed.err_ratio, failed.detail) == (status, us, 1.0, detail + place)
    assert lane.faults == [None] * 3


def test_a_device_fault_is_handed_out_so_that_the_worker_can_leave(lane: Any, task: Make) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")

    def faults(a: torch.Tensor, b: torch.Tensor) -> None:
        raise error

    (measured,) = lane.run(task(faults, **AB))
    assert measured.status is Status.crash and measured.us == math.inf
    assert lane.faults == [error]


def test_memory_that_ran_out_is_the_candidates_verdict_and_the_next_runs(lane: Any, task: Make) -> None:
    def greedy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 PB")

    verdict, after = lane.run(task(greedy, **AB), task(right, **AB))
    assert verdict.status is Status.oom_runtime and verdict.us == -1
    assert after.status is Status.ok


def test_one_candidate_of_ten_that_does_not_compile_costs_only_itself(lane: Any, task: Make) -> None:
    def does_not_compile(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("error: operation failed to legalize")

    results = lane.run(*(task(does_not_compile if i == 4 else right, **AB) for i in range(10)))
    assert [r.status for r in results] == [Status.ok] * 4 + [Status.crash] + [Status.ok] * 5


# --- inputs and reference ---------------------------------------------------------------------------------------------


def test_inputs_and_reference_are_made_once_for_all_who_share_them(lane: Any, task: Make) -> None:
    lane.run(*(task(right, **AB) for _ in range(5)))
    assert lane.announced == ["inputs", "reference"]


def test_the_seed_decides_the_inputs(lane: Any, task: Make) -> None:
    seen: list[float] = []

    def look(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(float(a[0, 0]))
        return a @ b

    for seed in (1, 1, 2):
        lane.run(task(look, **AB), plan=MeasurePlan(seed=seed))
    firsts = [seen[0], seen[len(seen) // 3], seen[2 * len(seen) // 3]]
    assert firsts[0] == firsts[1] != firsts[2]


def test_data_given_by_the_caller_is_used_and_nothing_generated(lane: Any, task: Make) -> None:
    def never(*, device: torch.device) -> dict[str, torch.Tensor]:
        raise AssertionError("not to be called")

    data = {"a": torch.eye(4), "b": torch.ones(4, 4)}
    (measured,) = lane.run(task(right, **{**AB, "gen_data": never}), data=data)
    assert measured.status is Status.ok


def test_a_missing_input_is_that_candidates_own_crash(lane: Any, task: Make) -> None:
    missing, after = lane.run(task(right, **{**AB, "args": (["a", "x"],)}), task(right, **AB))
    assert missing.status is Status.crash and missing.us == -1
    assert missing.detail == "gen_data returned no 'x'; it returned a, b, out"
    assert after.status is Status.ok and lane.faults == [None, None]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError("no inputs"), Status.crash),
        (ValueError("no inputs"), Status.crash),
        (MemoryError("too big"), Status.oom_preflight),
        (SystemExit(1), Status.crash),
    ],
)
@pytest.mark.parametrize("broken", ["inputs", "reference"])
def test_what_cannot_be_made_is_tried_once_and_shared_by_all_who_need_it(
    broken: str, error: BaseException, status: Status, lane: Any, task: Make
) -> None:
    tries: list[int] = []

    def fails(*args: Any, **kwargs: Any) -> Any:
        tries.append(1)
        raise error

    fields = {**AB, "gen_data": fails} if broken == "inputs" else {**AB, "ref_func": fails}
    first, fine, second = lane.run(task(right, **fields), task(right, **AB), task(right, **fields))
    for failed in (first, second):
        assert (failed.status, failed.us, failed.err_ratio) == (status, math.inf, 1.0)
        assert failed.detail.startswith(f"{broken}: {type(error).__name__}")
    assert fine.status is Status.ok and len(tries) == 1


def test_inputs_that_are_no_mapping_are_refused_in_words(lane: Any, task: Make) -> None:
    (measured,) = lane.run(task(right, **{**AB, "gen_data": lambda device: [1, 2]}))
    assert measured.status is Status.crash and "gen_data returned a list; expected a mapping" in measured.detail


def test_a_device_fault_in_the_reference_is_remembered_for_the_worker(lane: Any, task: Make) -> None:
    def faults(a: torch.Tensor, b: torch.Tensor) -> None:
        raise RuntimeError("device-side assert triggered")

    bench = lane.bench(task(right, **{**AB, "ref_func": faults}))
    failed = bench.prepare(0, print)
    assert failed is not None and failed.us == math.inf and bench.fault is not None


# --- what candidates do to each other ---------------------------------------------------------------------------------


def writes_by_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result = a @ b
    a.zero_()
    return result


def writes_by_address(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result = a @ b
    a.numpy()[...] = 0
    return result


def transposes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    result = a @ b
    a.t_()
    return result


def accumulates(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.copy_(a @ b)


@pytest.mark.parametrize("writer", [writes_by_torch, writes_by_address, transposes, accumulates])
def test_a_candidate_that_writes_its_inputs_is_right_and_harms_nobody(
    writer: Callable[..., Any], lane: Any, task: Make
) -> None:
    written, after = lane.run(task(writer, **AB), task(right, **AB))
    assert written.status is Status.ok and "writes_inputs" in written.flags
    assert ("unprotected" in written.flags) is (writer is accumulates)
    assert after.status is Status.ok and after.flags == ()


def test_every_call_of_a_candidate_that_writes_its_inputs_finds_them_as_they_were_made(lane: Any, task: Make) -> None:
    seen: list[float] = []

    def writes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        seen.append(float(a[0, 0]))
        result = a @ b
        a += 1
        return result

    lane.run(task(writes, **AB))
    assert len(seen) == 1 + 1 + 3 + 1 and len(set(seen)) == 1


@pytest.mark.parametrize("write", [lambda a: a.zero_(), lambda a: a.numpy().fill(0)], ids=["by torch", "by address"])
def test_inputs_are_whole_again_after_a_candidate_that_wrote_them_and_failed(
    write: Callable[[torch.Tensor], object], lane: Any, task: Make
) -> None:
    def dies(a: torch.Tensor, b: torch.Tensor) -> None:
        write(a)
        raise RuntimeError("half-way")

    failed, after = lane.run(task(dies, **AB), task(right, **AB))
    assert (failed.status, after.status) == (Status.crash, Status.ok)


def test_a_candidate_that_writes_its_inputs_only_later_harms_nobody(lane: Any, task: Make) -> None:
    calls: list[int] = []

    def late(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        result = a @ b
        if len(calls) > 2:
            a.zero_()
        return result

    measured, after = lane.run(task(late, **AB), task(right, **AB))
    assert measured.status is after.status is Status.ok


def test_a_late_write_that_torch_cannot_see_is_found_when_the_result_turns_wrong(lane: Any, task: Make) -> None:
    calls: list[int] = []

    def late(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        result = a @ b
        if len(calls) > 2:
            a.numpy()[...] = 0
        return result

    measured, after = lane.run(task(late, **AB), task(right, **AB))
    assert measured.status is Status.mismatch and after.status is Status.ok


def test_a_reference_that_writes_its_inputs_does_not_change_what_candidates_get(lane: Any, task: Make) -> None:
    def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = a @ b
        a.zero_()
        return result

    (measured,) = lane.run(task(right, **{**AB, "ref_func": reference}))
    assert measured.status is Status.ok


def test_literal_tensors_shared_by_candidates_are_protected_as_well(lane: Any, task: Make) -> None:
    shared = torch.ones(8)
    expected = torch.full((8,), 2.0)

    def doubles_in_place(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    first, second = lane.run(*(task(doubles_in_place, args=(shared,), ref=expected) for _ in range(2)))
    assert first.status is second.status is Status.ok and "writes_inputs" in first.flags
    assert torch.equal(shared, torch.ones(8))


def test_an_output_of_one_candidate_that_is_an_input_of_another_is_as_it_was_made(lane: Any, task: Make) -> None:
    def uses_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return a @ b + out  # zeros, as generated

    def writes_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        torch.mm(a, b, out=out)

    _, reader = lane.run(task(writes_out, **ABO), task(uses_out, **{**ABO, "output_keys": None}))
    assert reader.status is Status.ok


@pytest.mark.parametrize(
    ("name", "disturb"),
    [
        ("cwd", lambda: os.chdir("/")),
        ("environ", lambda: os.environ.update(AITER_TEST="1")),
        ("signals", lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)),
        ("default_dtype", lambda: torch.set_default_dtype(torch.float64)),
    ],
)
def test_a_candidate_that_changes_the_process_is_flagged_and_its_neighbour_sees_nothing(
    name: str, disturb: Callable[[], object], lane: Any, task: Make
) -> None:
    def look() -> tuple[Any, ...]:
        return os.getcwd(), dict(os.environ), signal.getsignal(signal.SIGTERM), torch.get_default_dtype()

    before, seen = look(), []
    disturbing, _ = lane.run(task(disturb), task(lambda: seen.append(look())), plan=FAST)
    assert disturbing.flags == (f"changed_{name}",)
    assert seen[0] == before


def test_a_candidate_that_fails_after_changing_the_process_is_flagged_too(lane: Any, task: Make) -> None:
    def both() -> None:
        os.environ["AITER_TEST"] = "1"
        raise RuntimeError("no")

    (failed,) = lane.run(task(both), plan=FAST)
    assert failed.status is Status.crash and failed.flags == ("changed_environ",)
    assert "AITER_TEST" not in os.environ


def test_a_result_of_any_size_or_kind_stays_in_the_worker(lane: Any, task: Make) -> None:
    import pickle

    (measured,) = lane.run(task(lambda: lambda: torch.empty(1 << 28)), plan=FAST)
    assert measured.status is Status.ok and pickle.loads(pickle.dumps(measured)) == measured


def test_closing_drops_what_the_group_held(lane: Any, task: Make) -> None:
    import weakref

    kept: list[Any] = []

    def tracked(*, device: torch.device) -> dict[str, torch.Tensor]:
        made = torch.zeros(4)
        kept.append(weakref.ref(made))
        return {"a": made}

    bench = lane.bench(task(lambda a: a + 1, gen_data=tracked, args=(["a"],)), plan=FAST)
    assert bench.prepare(0, print) is None
    assert bench.measure(0, lambda: None)[0].status is Status.ok and kept[0]() is not None
    bench.close()
    assert kept[0]() is None


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_measuring_a_candidate_that_does_nothing_costs_little(lane: Any, task: Make) -> None:
    import time

    bench = lane.bench(task(lambda: None, kwargs={"num_warmup": 0, "num_iters": 1}), plan=FAST)
    best = math.inf
    for _ in range(30):
        start = time.perf_counter()
        for _ in range(100):
            if bench.prepare(0, print) is None:
                bench.measure(0, _nothing, math.inf)
        best = min(best, (time.perf_counter() - start) * 1e4)
    assert best < 100, f"{best:.1f} us; it takes about 25 us on an idle machine"


def _nothing() -> None:
    pass
