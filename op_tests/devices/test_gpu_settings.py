"""How a GPU is set up, through both vendors' libraries, as far as they tell."""

from types import SimpleNamespace

import pytest

from aiter_tuning.devices import gpu_settings as module
from aiter_tuning.devices.gpu_settings import (
    CannotTellSettingsError,
    GpuSettings,
    amd_smi_settings,
    gpu_settings,
    nvml_settings,
)
from op_tests.devices.fake_nvml import FakeGpu, FakeNvml, NVMLError

PCI = "0000:10:00.0"


class SettingsNvml(FakeNvml):
    """Tells everything, except what ``silent`` names."""

    silent = ()

    def __getattribute__(self, name):
        if name in object.__getattribute__(self, "silent"):

            def refuse(*what):
                raise NVMLError("Not Supported")

            return refuse
        return object.__getattribute__(self, name)

    def nvmlDeviceGetPersistenceMode(self, gpu):
        return 1

    def nvmlDeviceGetEccMode(self, gpu):
        return [1, 1]

    def nvmlDeviceGetTotalEccErrors(self, gpu, kind, counter):
        assert (kind, counter) == (1, 0)
        return 3

    def nvmlDeviceGetMaxClockInfo(self, gpu, which):
        return 1980

    def nvmlDeviceGetPowerManagementLimit(self, gpu):
        return 500_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, gpu):
        return 700_000

    def nvmlDeviceGetComputeMode(self, gpu):
        return 2

    def nvmlDeviceGetUtilizationRates(self, gpu):
        return SimpleNamespace(gpu=37, memory=5)


ASKED = [name for name in vars(SettingsNvml) if name.startswith("nvmlDeviceGet")]


def test_nvml_tells_everything():
    nvml = SettingsNvml(FakeGpu(0))

    assert nvml_settings(nvml, "GPU-0", PCI) == GpuSettings(True, True, 3, 1980, 500.0, 700.0, "prohibited", 37)
    assert nvml.open == 0


@pytest.mark.parametrize("silent", [(name,) for name in ASKED] + [tuple(ASKED)])
def test_what_a_gpu_does_not_tell_is_none_and_hides_nothing_else(silent):
    nvml = SettingsNvml(FakeGpu(0))
    nvml.silent = silent
    told = [value for value in nvml_settings(nvml, "GPU-0", PCI) if value is not None]

    assert len(told) == len(ASKED) - len(silent)


class AmdSmiError(Exception):
    pass


class SettingsAmdSmi:
    AmdSmiException = AmdSmiError
    AmdSmiClkType = SimpleNamespace(GFX="gfx")

    def __init__(self):
        self.open = 0
        self.told = {
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 5, "uncorrectable_count": 1},
            "amdsmi_get_power_cap_info": {"power_cap": 600_000_000, "default_power_cap": 750_000_000},
            "amdsmi_get_gpu_activity": {"gfx_activity": 12, "umc_activity": "N/A"},
            "amdsmi_get_clock_info": {"clk": 200, "max_clk": 2100},
        }

    def __getattr__(self, name):
        def ask(handle, *what):
            if name not in self.told:
                raise self.AmdSmiException(name)
            return self.told[name]

        return ask

    def amdsmi_init(self):
        self.open += 1

    def amdsmi_shut_down(self):
        self.open -= 1

    def amdsmi_get_processor_handles(self):
        return ["h"]

    def amdsmi_get_gpu_device_bdf(self, handle):
        return PCI.upper()


def test_amdsmi_tells_what_it_has():
    amdsmi = SettingsAmdSmi()

    assert amd_smi_settings(amdsmi, PCI) == GpuSettings(None, True, 1, 2100, 600.0, 750.0, None, 12)
    amdsmi.told = {"amdsmi_get_power_cap_info": {"power_cap": "N/A"}}
    assert amd_smi_settings(amdsmi, PCI) == GpuSettings()
    with pytest.raises(KeyError):
        amd_smi_settings(amdsmi, "0000:99:00.0")
    assert amdsmi.open == 0


@pytest.mark.parametrize(
    ("kind", "missing"), [("cuda", "nvidia-ml-py is not installed"), ("hip", "amdsmi is not installed")]
)
def test_without_the_vendors_library_nothing_can_be_told(monkeypatch, kind, missing):
    monkeypatch.setattr(module, "nvml_module", lambda: None)
    monkeypatch.setattr(module, "amd_smi_module", lambda: None)
    with pytest.raises(CannotTellSettingsError, match=missing):
        gpu_settings(kind, "GPU-0", PCI)


def test_a_driver_in_trouble_is_the_reason(monkeypatch):
    nvml = SettingsNvml(FakeGpu(0))
    nvml.broken = "Driver/library version mismatch"
    monkeypatch.setattr(module, "nvml_module", lambda: nvml)
    with pytest.raises(CannotTellSettingsError, match="NVMLError: Driver/library version mismatch"):
        gpu_settings("cuda", "GPU-0", PCI)
