"""How a family is measured on its devices: what workers import ahead, which clock times, what kills a candidate."""

from __future__ import annotations

from aiter_tuning.devices.device import Device
from aiter_tuning.devices.identity import Identity
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.statistics import StopRule
from aiter_tuning.pool.watcher import Clocks
from aiter_tuning.tuner.arguments import TuneArguments
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuning_policy import COMPILE_TIMEOUT_S, SAMPLE_SEED


def device_name(device: Device) -> str:
    """The device for a person."""
    return str(Identity(device.gfx, device.cu_num, device.gpu_model))


def timer_of(arguments: TuneArguments, device: Device) -> str:
    """The clock that was asked for; of itself the host's on a CPU, elsewhere the best that works there."""
    return "wall" if device.torch_device == "cpu" else arguments.timer


def preload_of(family: Family, device: Device) -> tuple[str, ...]:
    """What workers import before they are needed."""
    on_gpu = device.torch_device != "cpu"
    return ("aiter_tuning.measure.triton_ahead", "torch", "triton") if on_gpu and family.precompiles else ("torch",)


def clocks_of(arguments: TuneArguments, family: Family) -> Clocks:
    """Seconds after which something is killed."""
    compile_s = arguments.compile_timeout or (COMPILE_TIMEOUT_S if family.precompiles else None)
    return Clocks(arguments.timeout, arguments.candidate_timeout, compile_s)


def measure_plan(arguments: TuneArguments, device: Device) -> MeasurePlan:
    """How each candidate is timed."""
    return MeasurePlan(
        err_ratio=arguments.err_ratio,
        seed=SAMPLE_SEED,
        early_stop=None if arguments.full_iters else StopRule(),
        warmup=arguments.warmup,
        iters=arguments.iters,
        timer=timer_of(arguments, device),
    )
