"""Find the fastest correct kernel for each shape on the devices in front of you, and keep that knowledge safely.

Names are loaded when they are first used (PEP 562): ``import aiter_tuning`` imports neither torch nor pandas, so that
``aiter-tune --help`` answers at once and a parent can start its workers before it pays for imports of its own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiter_tuning.devices.device import Device, NoDeviceError
    from aiter_tuning.measurement import Measurement, TuneResult
    from aiter_tuning.pool.pool import Pool
    from aiter_tuning.runner import mp_tuner
    from aiter_tuning.serving import bind, explain, is_tuned, lookup, record_misses
    from aiter_tuning.status import Status
    from aiter_tuning.task import MpTunerTask
    from aiter_tuning.tuning_policy import gate_against_incumbent

__version__ = "0.1.0"

_HOMES = {
    "Device": "aiter_tuning.devices.device",
    "Measurement": "aiter_tuning.measurement",
    "MpTunerTask": "aiter_tuning.task",
    "NoDeviceError": "aiter_tuning.devices.device",
    "Pool": "aiter_tuning.pool.pool",
    "Status": "aiter_tuning.status",
    "TuneResult": "aiter_tuning.measurement",
    "bind": "aiter_tuning.serving",
    "explain": "aiter_tuning.serving",
    "gate_against_incumbent": "aiter_tuning.tuning_policy",
    "is_tuned": "aiter_tuning.serving",
    "lookup": "aiter_tuning.serving",
    "mp_tuner": "aiter_tuning.runner",
    "record_misses": "aiter_tuning.serving",
}

__all__ = [
    "Device",
    "Measurement",
    "MpTunerTask",
    "NoDeviceError",
    "Pool",
    "Status",
    "TuneResult",
    "bind",
    "explain",
    "gate_against_incumbent",
    "is_tuned",
    "lookup",
    "mp_tuner",
    "record_misses",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
