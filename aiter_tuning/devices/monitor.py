"""Watches the GPUs of a run while lanes measure on them: clocks, temperature, throttling, processes of others.

::

    thread ── every second ──▶ Sensor (NVML, amdsmi) ──▶ Conditions ──▶ flags on the lane's board
                                                                   └──▶ record, for evidence

In a thread of its own, since a driver in trouble keeps its callers waiting, and the parent's loop has clocks to keep.
Nothing here raises: a GPU that cannot be watched is measured all the same, and :attr:`Monitor.blind` says so.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aiter_tuning.devices.amd_smi import AmdSmiSensor, amd_smi_module
from aiter_tuning.devices.conditions import Conditions, Kinship, Sensor, foreign_processes, summarise
from aiter_tuning.devices.device import Device
from aiter_tuning.devices.discovery import kind_of
from aiter_tuning.devices.nvml import NvmlSensor, nvml_module

PERIOD_S = 1.0
_MOST_READINGS = 3600
_CLOSE_PATIENCE_S = 1.0


class CannotWatchError(Exception):
    """There is no sensor; the message says what to install."""


def open_sensor(kind: str) -> Sensor:
    """The vendor's sensor for ``cuda`` or ``hip``.

    Raises:
        CannotWatchError: its library is not there. Anything else: it does not work.
    """
    if kind == "cuda":
        if (nvml := nvml_module()) is None:
            raise CannotWatchError("nvidia-ml-py is not installed")
        return NvmlSensor(nvml)
    if (amdsmi := amd_smi_module()) is None:
        raise CannotWatchError("amdsmi is not installed")
    return AmdSmiSensor(amdsmi)


class Monitor:
    """Watches the GPUs among some devices; CPU lanes and devices of tests are left alone.

    Args:
        devices: the devices of the run's lanes.
        open_sensor: makes the sensor, in the thread.
        period_s: seconds between readings.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        open_sensor: Callable[[str], Sensor] = open_sensor,
        period_s: float = PERIOD_S,
    ) -> None:
        gpus = [device for device in devices if kind_of(device) in ("cuda", "hip")]
        self._gpus = {device.uuid: device for device in gpus}
        self._kind = kind_of(gpus[0]) if gpus else ""
        self._open_sensor = open_sensor
        self._period_s = period_s
        self._kinship = Kinship()
        self._workers: Mapping[str, frozenset[int]] = {}
        self._readings: dict[str, deque[tuple[float, Conditions]]] = {
            uuid: deque(maxlen=_MOST_READINGS) for uuid in self._gpus
        }
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.blind = ""
        """Why nothing can be read; empty: it can, or there is nothing to watch."""

    def start(self) -> None:
        """Begins to watch; does nothing where there is no GPU."""
        if self._gpus and self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="aiter_tuning.monitor", daemon=True)
            self._thread.start()

    def know(self, workers: Iterable[tuple[str, int]]) -> None:
        """Tells which workers there are: device's uuid and process of each."""
        by_device: dict[str, set[int]] = {}
        for uuid, pid in workers:
            by_device.setdefault(uuid, set()).add(pid)
        self._workers = {uuid: frozenset(pids) for uuid, pids in by_device.items()}

    def conditions(self, uuid: str) -> Conditions | None:
        """The last reading of a GPU; None: there is none."""
        readings = self._readings.get(uuid)
        return readings[-1][1] if readings else None

    def flags(self, device: Device) -> tuple[str, ...]:
        """What makes latencies on the device less trustworthy now: ``throttled``, ``foreign``, ``shared``."""
        shared = ("shared",) if "shared" in device.settings else ()
        last = self.conditions(device.uuid)
        return shared if last is None else last.flags + shared

    def record(self, uuid: str, since: float = 0.0) -> dict[str, Any]:
        """What was read since a moment of the monotonic clock, for evidence; of each value lowest, median, highest."""
        readings = self._readings.get(uuid, ())
        return {**summarise([one for at, one in tuple(readings) if at >= since]), "blind": self.blind}

    def close(self) -> None:
        """Ends the thread, unless the driver holds it."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_PATIENCE_S)

    def _watch(self) -> None:
        try:
            sensor = self._open_sensor(self._kind)
        except CannotWatchError as error:
            self.blind = str(error)
            return
        except Exception as error:
            self.blind = _reason(error)
            return
        while not self._ended.is_set():
            for uuid, device in self._gpus.items():
                self._read(sensor, uuid, device.settings.get("pci", ""))
            self._ended.wait(self._period_s)
        try:
            sensor.close()
        except Exception as error:
            self.blind = _reason(error)

    def _read(self, sensor: Sensor, uuid: str, pci: str) -> None:
        workers = self._workers.get(uuid, frozenset())
        self._kinship.add(workers)
        try:
            reading = sensor.read(uuid, pci)
            foreign = foreign_processes(reading.processes, workers, self._kinship.is_ours)
        except Exception as error:  # lost, reset, or a library of another version: that is no reason to stop measuring
            self.blind = _reason(error)
            return
        conditions = Conditions(*reading[:4], foreign)
        self._readings[uuid].append((time.monotonic(), conditions))
        self.blind = ""


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
