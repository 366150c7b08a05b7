"""A worker of a real pool starts, takes the device, and times one kernel against itself.

::

    Pool ── import torch ──▶ ready ── take the device ──▶ bound ── a₁ b₁ a₂ b₂ … ──▶ pairs
         import_s                  bind_s                 five seconds at most

What is tried is what a run will do: the same processes, the same timer, the same calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from aiter_tuning.devices.device import Device
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.lane import Lane
from aiter_tuning.pool.pool import Pool
from aiter_tuning.pool.watcher import Clocks, RunEnd, Watcher
from aiter_tuning.report.doctor.facts import Noise, Pair, Trial
from aiter_tuning.report.doctor.probe import make_inputs, product
from aiter_tuning.status import Status
from aiter_tuning.task import Group, MpTunerTask

BUDGET_S = 5.0
"""For all measuring together."""
PAIRS = 16
_WARMUP, _CALLS = 3, 25
_START_S = 120.0
_CLOCKS = Clocks(None, 20.0, 60.0)
_CPU_SIZES = {"short kernel": (16, 256, "float32"), "long kernel": (256, 512, "float32")}
_GPU_SIZES = {"short kernel": (64, 4096, "bfloat16"), "long kernel": (4096, 4096, "bfloat16")}


class _TimedPool(Pool):
    """Remembers when its worker was ready."""

    ready_at = math.nan

    def bind(self, lane: Lane) -> None:
        self.ready_at = time.monotonic()
        super().bind(lane)


class _Keeper(Watcher):
    """Keeps what was measured."""

    def __init__(self) -> None:
        self.bound_at = math.nan
        self.measured_by_group: dict[int, dict[int, Measurement]] = {}
        self.notes: list[str] = []

    def before_start(self, group: int, index: int, attempt: int, lane: str) -> None:
        if math.isnan(self.bound_at):
            self.bound_at = time.monotonic()

    def measured(self, group: int, index: int, measurement: Measurement, *, logged: bool) -> None:
        self.measured_by_group.setdefault(group, {})[index] = measurement

    def note(self, text: str) -> None:
        self.notes.append(text)


def try_worker(device: Device, startup_timeout_s: float = _START_S) -> Trial:
    """Starts a worker on the device and lets it time a kernel against itself. Never raises for what the worker does."""
    sizes = _CPU_SIZES if device.torch_device == "cpu" else _GPU_SIZES
    began = time.monotonic()
    keeper = _Keeper()
    noise: list[Noise] = []
    pool = _TimedPool([device], startup_timeout=startup_timeout_s, standbys=False)
    with pool:
        # A first short group waits for the start and warms everything up, so that the budget is spent on measuring.
        outcome = pool.run(
            [_group("start", *_CPU_SIZES["short kernel"], pairs=1)], MeasurePlan(), _CLOCKS, watcher=keeper
        )
        import_s, bind_s = pool.ready_at - began, keeper.bound_at - pool.ready_at
        if outcome.end is not RunEnd.done:
            return Trial(import_s, bind_s, (), outcome.reason)
        if (problem := _problem(keeper.measured_by_group.get(0, {}).values())) is not None:
            return Trial(import_s, bind_s, (), problem)
        deadline = time.monotonic() + BUDGET_S
        for name, size in sizes.items():
            left = max(0.1, (deadline - time.monotonic()) / (len(sizes) - len(noise)))
            keeper = _Keeper()
            pool.run([_group(name, *size, pairs=PAIRS)], MeasurePlan(), _CLOCKS, watcher=keeper, budget_s=left)
            measured = keeper.measured_by_group.get(0, {})
            if (problem := _problem(measured.values())) is not None:
                return Trial(import_s, bind_s, tuple(noise), f"{name}: {problem}")
            noise.append(_noise(name, measured))
    return Trial(import_s, bind_s, tuple(noise))


def _group(name: str, rows: int, columns: int, dtype: str, *, pairs: int) -> Group:
    task = MpTunerTask(
        info=(name, 0),
        gen_data=make_inputs,
        gen_args=(rows, columns, dtype),
        func=product,
        args=(["x", "weight"],),
        kwargs={"num_warmup": _WARMUP, "num_iters": _CALLS},
        ref_func=product,
        ref_args=(["x", "weight"],),
        ref_kwargs={},
        ref=None,
    )
    tasks = tuple(task._replace(info=(name, number)) for number in range(2 * pairs))
    return Group(tasks, tuple(range(len(tasks))), label=name)


def _noise(name: str, measured: dict[int, Measurement]) -> Noise:
    pairs = tuple(
        Pair(measured[number].us, measured[number + 1].us)
        for number in range(0, max(measured, default=0), 2)
        if number in measured and number + 1 in measured
    )
    first = next(iter(measured.values()), None)
    flags = sorted({flag for measurement in measured.values() for flag in measurement.flags})
    return Noise(name, pairs, first.timer if first is not None else "", tuple(flags))


def _problem(measured: Iterable[Measurement]) -> str | None:
    """The first verdict that a plain matrix product should not get."""
    for measurement in measured:
        if measurement.status not in (Status.ok, Status.not_run):
            return f"a plain matrix product came back as {measurement.status}: {measurement.detail}"
    return None
