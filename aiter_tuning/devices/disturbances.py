"""What a run is told before it starts: would others be measured along? Cheap; ``aiter-tune doctor`` looks closer.

Nothing here stops a run, and nothing here raises: a machine that cannot be looked at is measured on all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiter_tuning.devices.conditions import Kinship, Sensor, foreign_processes
from aiter_tuning.devices.device import Device
from aiter_tuning.devices.discovery import kind_of
from aiter_tuning.devices.host_load import HostLoad, crowding
from aiter_tuning.devices.monitor import open_sensor

_DOCTOR = "; `aiter-tune doctor` says more"


def disturbance_notes(
    devices: Sequence[Device], load: HostLoad, sensor_of: Callable[[str], Sensor] = open_sensor
) -> tuple[str, ...]:
    """One line for each kind of disturbance.

    Args:
        devices: the run's.
        load: of the host's cores, before anything of ours was at work.
        sensor_of: the vendor's sensor for ``cuda`` or ``hip``.
    """
    on_gpu = bool(devices) and kind_of(devices[0]) in ("cuda", "hip")
    notes = (load_note(load, on_gpu=on_gpu), foreign_note(devices, sensor_of) if on_gpu else "")
    return tuple(note for note in notes if note)


def load_note(load: HostLoad, *, on_gpu: bool) -> str:
    """Empty unless the load would mislead."""
    if crowding(load, on_gpu=on_gpu) != "crowded":
        return ""
    what = "launches may come late" if on_gpu else "latencies and gains will be those of a busy machine"
    return f"other processes keep {load.busy_cores:.1f} of {load.cores} cores busy: {what}{_DOCTOR}"


def foreign_note(devices: Sequence[Device], sensor_of: Callable[[str], Sensor] = open_sensor) -> str:
    """Empty unless somebody else is on the GPUs."""
    crowded = []
    try:
        sensor = sensor_of(kind_of(devices[0]))
        try:
            for device in devices:
                processes = sensor.read(device.uuid, device.settings.get("pci", "")).processes
                if foreign_processes(processes, (), Kinship().is_ours):
                    crowded.append(device.name)
        finally:
            sensor.close()
    except Exception:  # whatever the vendor's library raises; the monitor says later why it is blind
        return ""
    names = ", ".join(dict.fromkeys(crowded))
    return f"others work on {names} too: their work is timed along, and marked `foreign`{_DOCTOR}" if names else ""
