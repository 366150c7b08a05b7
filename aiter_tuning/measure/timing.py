"""Times one candidate, and refuses a time that cannot be.

::

    timer for this candidate ─▶ sampling ─▶ credible? ── no, several times ─▶ crash: the clock read nonsense
                                                └─ yes ─▶ faster than the device can be? ─▶ crash: implausible
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple, cast

from aiter_tuning.measure.bench import Bench
from aiter_tuning.measure.inputs import tensors_in
from aiter_tuning.measure.plausibility import Limits, implausible, work_of
from aiter_tuning.measure.sampling import Sampled, sample, sample_in_bursts
from aiter_tuning.measure.starvation import STARVED_SHARE, waited_s
from aiter_tuning.measure.timer import HOT_CACHE, BurstTimer, Call, Timer, timer_factory
from aiter_tuning.measurement import IMPLAUSIBLE, STARVED, UNMEASURED_US, Measurement
from aiter_tuning.status import Status
from aiter_tuning.task import MpTunerTask

CLOCK_TRIES = 4
"""How often a candidate is timed before a time of zero is believed to be one that cannot be measured."""


class Timed(NamedTuple):
    """What timing said, and who said it."""

    sampled: Sampled
    timer: str
    flags: tuple[str, ...]
    timing_s: float


def time_candidate(
    bench: Bench,
    task: MpTunerTask,
    call: Call,
    *,
    warmup: int,
    iters: int,
    restore: Callable[[], None] | None,
    leader_us: float,
) -> Timed:
    """Times a candidate; arguments as for :func:`~aiter_tuning.measure.sampling.sample`, the rule is the plan's.

    Raises:
        BaseException: whatever a call raised.
    """
    began = perf_counter()
    timer, rule = _new_timer(bench, task), bench.plan.early_stop
    if not hasattr(timer, "burst"):
        waited = waited_s() if rule is not None else 0.0
        sampled = _credible(
            lambda warmup: sample(
                timer, call, warmup=warmup, iters=iters, restore=restore, rule=rule, leader_us=leader_us
            ),
            warmup,
        )
        timing_s = perf_counter() - began
        starved = rule is not None and waited_s() - waited > STARVED_SHARE * timing_s
        return Timed(sampled, timer.name, (STARVED,) if starved else (), timing_s)
    burst_timer = cast(BurstTimer, timer)  # holds copies and graphs until it is closed
    try:
        sampled = _credible(
            lambda warmup: sample_in_bursts(
                burst_timer, call, warmup=warmup, iters=iters, restore=restore, rule=rule, leader_us=leader_us
            ),
            warmup,
        )
        name, flags = burst_timer.name, burst_timer.flags
    finally:
        burst_timer.close()
        if burst_timer.unclean:
            bench.ask_for_clean_worker(burst_timer.unclean)
    return Timed(sampled, name, flags, perf_counter() - began)


def refused(limits: Limits | None, call: Call, timed: Timed) -> Measurement | None:
    """The verdict on a time that cannot be; None if nothing speaks against it."""
    sampled, timer, flags, _ = timed
    if not sampled.is_credible:
        detail = f"the {timer} timer read {sampled.us} us in {CLOCK_TRIES} tries"
        return Measurement.failed(Status.crash, detail, us=UNMEASURED_US)
    work = work_of(call.func)
    if limits is None or work is None or sampled.censored:
        return None
    narrowest = min((tensor.itemsize for tensor in tensors_in([call.args, call.kwargs])), default=1)
    impossible = implausible(
        sampled.us,
        work,
        peak_flops_per_s=limits.of_operands(narrowest),
        peak_bytes_per_s=limits.bytes_per_s,
        cold_cache=timer != "wall" and HOT_CACHE not in flags,
    )
    if not impossible:
        return None
    return replace(Measurement.failed(Status.crash, impossible, us=UNMEASURED_US), flags=(IMPLAUSIBLE,))


def _new_timer(bench: Bench, task: MpTunerTask) -> Timer | BurstTimer:
    """The clock for this candidate alone."""
    if bench.on_gpu and task.kwargs and task.kwargs.get("use_cuda_event"):
        return timer_factory("event", bench.device.type, cold_cache=bench.plan.cold_cache)(bench.kind)
    return bench.new_timer(bench.kind)


def _credible(read: Callable[[int], Sampled], warmup: int) -> Sampled:
    """The first answer that may be a latency, else the last: a clock that reads zero or nonsense is asked again."""
    sampled = read(warmup)
    for _ in range(CLOCK_TRIES - 1):
        if sampled.is_credible:
            break
        sampled = read(0)
    return sampled
