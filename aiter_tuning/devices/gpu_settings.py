"""How a GPU is set up, as far as that decides what its times are worth; read once, without a context on it.

What changes from second to second (clocks, temperature, throttling, processes) is the sensor's business
(:mod:`~aiter_tuning.devices.conditions`). None: this GPU, or this library, does not tell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from aiter_tuning.devices.amd_smi import amd_smi_module, handles_by_pci, number
from aiter_tuning.devices.nvml import nvml_module, nvml_session


class CannotTellSettingsError(Exception):
    """The vendor's library is missing or does not work; the message says which and why."""


class GpuSettings(NamedTuple):
    """Settings of one GPU."""

    persistence: bool | None = None
    """Whether the driver stays loaded while nobody uses the GPU."""
    ecc: bool | None = None
    uncorrected_errors: int | None = None
    """Since the driver was loaded."""
    max_sm_mhz: int | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    compute_mode: str | None = None
    """``default``, ``exclusive`` or ``prohibited``."""
    utilisation_pct: int | None = None
    """How much of the last second something ran on it."""


_COMPUTE_MODES = {0: "default", 1: "exclusive", 2: "prohibited", 3: "exclusive"}
_MILLIWATTS = 1000.0
_MICROWATTS = 1e6


def gpu_settings(kind: str, uuid: str, pci: str) -> GpuSettings:
    """The settings of a ``cuda`` or ``hip`` device.

    Raises:
        CannotTellSettingsError: nothing can be told.
    """
    try:
        if kind == "cuda":
            if (nvml := nvml_module()) is None:
                raise CannotTellSettingsError("nvidia-ml-py is not installed")
            return nvml_settings(nvml, uuid, pci)
        if (amdsmi := amd_smi_module()) is None:
            raise CannotTellSettingsError("amdsmi is not installed")
        return amd_smi_settings(amdsmi, pci)
    except CannotTellSettingsError:
        raise
    except Exception as error:  # libraries of other versions fail in their own ways; that is no reason to stop
        raise CannotTellSettingsError(f"{type(error).__name__}: {error}") from error


def nvml_settings(nvml: Any, uuid: str, pci: str) -> GpuSettings:
    """Settings through NVML; raises what it raises where the GPU itself is not found."""
    with nvml_session(nvml):
        handle = nvml.nvmlDeviceGetHandleByPciBusId(pci) if pci else nvml.nvmlDeviceGetHandleByUUID(uuid)

        def told(name: str, *what: Any) -> Any | None:
            try:
                return getattr(nvml, name)(handle, *what)
            except (nvml.NVMLError, AttributeError):
                return None

        ecc = told("nvmlDeviceGetEccMode")
        utilisation = told("nvmlDeviceGetUtilizationRates")
        limit, default = (
            told("nvmlDeviceGetPowerManagementLimit"),
            told("nvmlDeviceGetPowerManagementDefaultLimit"),
        )
        mode, persistence = told("nvmlDeviceGetComputeMode"), told("nvmlDeviceGetPersistenceMode")
        return GpuSettings(
            persistence=None if persistence is None else bool(persistence),
            ecc=None if ecc is None else bool(ecc[0]),
            # 1: uncorrected errors; 0: counted since the driver was loaded.
            uncorrected_errors=told("nvmlDeviceGetTotalEccErrors", 1, 0),
            max_sm_mhz=told("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            power_limit_w=None if limit is None else limit / _MILLIWATTS,
            default_power_limit_w=None if default is None else default / _MILLIWATTS,
            compute_mode=None if mode is None else _COMPUTE_MODES.get(int(mode)),
            utilisation_pct=None if utilisation is None else int(utilisation.gpu),
        )


def amd_smi_settings(amdsmi: Any, pci: str) -> GpuSettings:
    """Settings through amdsmi; raises what it raises where the GPU itself is not found."""
    amdsmi.amdsmi_init()
    try:
        handle = handles_by_pci(amdsmi)[pci]

        def told(name: str, *what: Any) -> Any:
            try:
                return getattr(amdsmi, name)(handle, *what) or {}
            except (amdsmi.AmdSmiException, AttributeError):
                return {}

        errors = told("amdsmi_get_gpu_total_ecc_count")
        power = told("amdsmi_get_power_cap_info")
        activity = told("amdsmi_get_gpu_activity")
        clock = told("amdsmi_get_clock_info", amdsmi.AmdSmiClkType.GFX)
        limit, default = number(power.get("power_cap")), number(power.get("default_power_cap"))
        return GpuSettings(
            ecc=True if errors else None,
            uncorrected_errors=number(errors.get("uncorrectable_count")),
            max_sm_mhz=number(clock.get("max_clk")),
            power_limit_w=None if limit is None else limit / _MICROWATTS,
            default_power_limit_w=None if default is None else default / _MICROWATTS,
            utilisation_pct=number(activity.get("gfx_activity")),
        )
    finally:
        amdsmi.amdsmi_shut_down()
