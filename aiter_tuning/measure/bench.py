"""What all candidates of a group are measured with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from aiter_tuning.devices.device import DeviceKind
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.plausibility import Limits
from aiter_tuning.measure.timer import BurstTimer, Timer


def _nobody_asked(reason: str) -> None:
    """Where nobody replaces processes."""


class Bench(NamedTuple):
    """Plan, device and clock of one group."""

    plan: MeasurePlan
    kind: DeviceKind
    device: torch.device
    new_timer: Callable[[DeviceKind], Timer | BurstTimer]
    device_id: str
    on_gpu: bool = False
    limits: Limits | None = None
    """Of the device, where they are known: nothing is faster."""
    ask_for_clean_worker: Callable[[str], None] = _nobody_asked
    """Told why this process should not be trusted with another candidate."""
