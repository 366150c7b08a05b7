"""AMD's management library, for how the GPUs are doing.

Not for what GPUs there are: its names for models differ from HIP's, by which a lookup asks, so that is asked of torch.
Comes with ROCm (``amdsmi``, the extra ``amd``). It leaves ``"N/A"`` wherever a GPU does not tell something.
"""

from __future__ import annotations

import importlib
from typing import Any

from aiter_tuning.devices.conditions import GpuProcess, Reading

_RESIDENCIES = {
    "prochot_residency_acc": "hardware thermal",
    "ppt_residency_acc": "power cap",
    "socket_thm_residency_acc": "software thermal",
    "vr_thm_residency_acc": "regulator thermal",
    "hbm_thm_residency_acc": "memory thermal",
}
"""Counters of MI300 and later that grow while the GPU is held back."""


def amd_smi_module() -> Any | None:
    """``amdsmi``, or None where it or the library behind it is missing."""
    try:
        return importlib.import_module("amdsmi")
    except Exception:  # the module loads its library at import and fails with KeyError, OSError, …, by its version
        return None


def handles_by_pci(amdsmi: Any) -> dict[str, Any]:
    """The library's handle of each GPU, by PCI address."""
    handles = amdsmi.amdsmi_get_processor_handles()
    return {str(amdsmi.amdsmi_get_gpu_device_bdf(handle)).lower(): handle for handle in handles}


class AmdSmiSensor:
    """Clocks, temperature, throttling and processes of AMD GPUs, found by PCI address. Raises whatever amdsmi does."""

    def __init__(self, amdsmi: Any) -> None:
        self._amdsmi = amdsmi
        amdsmi.amdsmi_init()
        self._handles = handles_by_pci(amdsmi)
        self._residencies: dict[str, dict[str, int]] = {}

    def read(self, uuid: str, pci: str) -> Reading:
        amdsmi, handle = self._amdsmi, self._handles[pci]
        try:
            metrics = amdsmi.amdsmi_get_gpu_metrics_info(handle)
        except amdsmi.AmdSmiException:  # a guest, or an APU: clocks and processes may be there all the same
            metrics = {}
        return Reading(
            sm_mhz=self._clock(handle, amdsmi.AmdSmiClkType.GFX),
            memory_mhz=self._clock(handle, amdsmi.AmdSmiClkType.MEM),
            temperature_c=number(metrics.get("temperature_hotspot")),
            throttle=self._throttle(pci, metrics),
            processes=self._processes(handle),
        )

    def close(self) -> None:
        self._amdsmi.amdsmi_shut_down()

    def _clock(self, handle: Any, which: Any) -> int | None:
        try:
            clock = self._amdsmi.amdsmi_get_clock_info(handle, which)
        except self._amdsmi.AmdSmiException:
            return None
        return number(clock.get("clk"))

    def _throttle(self, pci: str, metrics: dict[str, Any]) -> tuple[str, ...]:
        """What held the GPU back since the last reading; what a single status bit says where nothing is counted."""
        now = {name: value for name in _RESIDENCIES if (value := number(metrics.get(name))) is not None}
        before = self._residencies.get(pci, now)
        self._residencies[pci] = now
        if now:
            return tuple(_RESIDENCIES[name] for name, value in now.items() if value > before.get(name, value))
        return ("throttle status",) if metrics.get("throttle_status") in (True, 1) else ()

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...]:
        try:
            processes = self._amdsmi.amdsmi_get_gpu_process_list(handle)
        except self._amdsmi.AmdSmiException:
            return ()
        # Others see the driver's file open, too; only who holds memory works there.
        held = [(process["pid"], process.get("memory_usage", {}).get("vram_mem", 0)) for process in processes]
        return tuple(GpuProcess(int(pid), int(memory)) for pid, memory in held if number(memory))


def number(value: Any) -> int | None:
    """A value as amdsmi tells it; None for ``"N/A"`` and the like."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
