"""Find the fastest correct kernel for each shape on the devices in front of you, and keep that knowledge safely.

Names are loaded when they are first used (PEP 562): ``import aiter_tuning`` imports neither torch nor pandas, so that
``aiter-tune --help`` answers at once and a parent can start its workers before it pays for imports of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiter_tuning.lazy_names import lazy_names

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
    "Device": "devices.device",
    "Measurement": "measurement",
    "MpTunerTask": "task",
    "NoDeviceError": "devices.device",
    "Pool": "pool.pool",
    "Status": "status",
    "TuneResult": "measurement",
    "bind": "serving",
    "explain": "serving",
    "gate_against_incumbent": "tuning_policy",
    "is_tuned": "serving",
    "lookup": "serving",
    "mp_tuner": "runner",
    "record_misses": "serving",
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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
