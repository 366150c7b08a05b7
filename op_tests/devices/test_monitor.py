import os
import subprocess
import sys
import threading

import pytest

from aiter_tuning.devices import monitor as monitor_module
from aiter_tuning.devices.amd_smi import AmdSmiSensor
from aiter_tuning.devices.conditions import (
    Conditions,
    GpuProcess,
    Kinship,
    Reading,
    driver_of_kernel,
    foreign_processes,
    summarise,
)
from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.devices.device import Device
from aiter_tuning.devices.monitor import CannotWatchError, Monitor, open_sensor
from op_tests.devices.fake_nvml import FakeGpu, FakeNvml

GPU = Device(
    "aiter_tuning.devices.cuda:CudaKind", "cuda0", "GPU-0", "sm90", 132, "NVIDIA H200", settings={"pci": "0000:10:00.0"}
)
SHARED = Device(GPU.kind, "cuda1", "GPU-1", "sm90", 132, "NVIDIA H200", settings={"shared": "2"})
CALM = Reading(1980, 3201, 45)


class ScriptedSensor:
    """Gives one reading after another; says when it was read."""

    def __init__(self, *readings):
        self.readings = list(readings)
        self.read_out = threading.Event()
        self.closed = threading.Event()

    def read(self, uuid, pci):
        if not self.readings:
            self.read_out.set()
            return CALM
        reading = self.readings.pop(0)
        if isinstance(reading, Exception):
            raise reading
        return reading

    def close(self):
        self.closed.set()


@pytest.fixture
def watch():
    """A monitor that has read everything a sensor has to say, at once."""
    monitors = []

    def start(*readings, devices=(GPU,), workers=()):
        sensor = ScriptedSensor(*readings)
        monitor = Monitor(devices, lambda kind: sensor, period_s=0)
        monitors.append(monitor)
        monitor.know(workers)
        monitor.start()
        assert sensor.read_out.wait(10)
        return monitor, sensor

    yield start
    for monitor in monitors:
        monitor.close()


def test_a_calm_gpu_has_no_flags_and_a_record(watch):
    monitor, _ = watch(Reading(1900, 3201, 44))
    assert monitor.flags(GPU) == ()
    record = monitor.record(GPU.uuid)
    assert record["sm_mhz"][0] == 1900 and record["sm_mhz"][-1] == 1980
    assert (record["throttle"], record["foreign"], record["blind"]) == ({}, [], "")
    assert monitor.conditions(GPU.uuid).record()["temperature_c"] == 45
    assert monitor.conditions("GPU-9") is None


def test_throttling_and_strangers_become_flags():
    throttled = Conditions(1200, 3201, 88, ("power cap",), ())
    assert throttled.flags == ("throttled",)
    assert throttled._replace(foreign=(GpuProcess(1, 1),)).flags == ("throttled", "foreign")


def test_lanes_that_share_a_gpu_are_flagged_without_any_sensor():
    assert Monitor([SHARED]).flags(SHARED) == ("shared",)


def test_a_process_of_somebody_else_is_foreign_and_a_worker_is_not(watch):
    stranger = GpuProcess(os.getppid(), 1 << 30)  # alive, and none of ours
    monitor, _ = watch(*[Reading(processes=(stranger, GpuProcess(424242, 5)))] * 2, workers=[("GPU-0", 424242)])
    record = monitor.record(GPU.uuid)
    assert record["foreign"] == [{"pid": os.getppid(), "memory_bytes": 1 << 30}]


def test_a_sensor_that_fails_costs_a_reading_and_says_so(watch):
    monitor, sensor = watch(OSError("GPU is lost"), Reading(1, 2, 3))
    assert monitor.conditions(GPU.uuid) == Conditions(1980, 3201, 45, (), ())
    assert monitor.blind == ""  # it reads again
    monitor.close()
    assert sensor.closed.is_set()


@pytest.mark.parametrize("error", [CannotWatchError("nvidia-ml-py is not installed"), OSError("no library")])
def test_without_a_sensor_nothing_is_flagged_and_the_reason_is_kept(error):
    def fail(kind):
        raise error

    monitor = Monitor([GPU], fail)
    monitor.start()
    monitor.close()
    assert monitor.flags(GPU) == ()
    assert str(error) in monitor.blind
    assert monitor.record(GPU.uuid)["readings"] == 0


def test_cpu_lanes_are_not_watched():
    monitor = Monitor(cpu_lanes(1), lambda kind: pytest.fail("opened a sensor"))
    threads = threading.active_count()
    monitor.start()
    assert threading.active_count() == threads
    monitor.close()


def test_a_driver_that_hangs_does_not_hold_the_run(monkeypatch):
    hangs, entered = threading.Event(), threading.Event()

    class Stuck(ScriptedSensor):
        def read(self, uuid, pci):
            entered.set()
            hangs.wait(30)
            return CALM

    monkeypatch.setattr(monitor_module, "_CLOSE_PATIENCE_S", 0.05)
    monitor = Monitor([GPU], lambda kind: Stuck())
    monitor.start()
    assert entered.wait(10)
    assert monitor.flags(GPU) == ()
    monitor.close()
    hangs.set()


def test_nvml_is_read_through_the_monitor(monkeypatch):
    gpu = FakeGpu(0)
    gpu.reasons = 0x4
    nvml = FakeNvml(gpu)
    monkeypatch.setattr(monitor_module, "nvml_module", lambda: nvml)
    device = Device(GPU.kind, "cuda0", gpu.uuid, "sm90", 132, "NVIDIA H200", settings={"pci": "0000:10:00.0"})
    monitor = Monitor([device], period_s=0)
    monitor.start()
    deadline = threading.Event()
    while monitor.conditions(gpu.uuid) is None and not deadline.wait(0.01):
        assert not monitor.blind
    monitor.close()
    assert monitor.flags(device) == ("throttled",)
    monkeypatch.setattr(monitor_module, "nvml_module", lambda: None)
    monkeypatch.setattr(monitor_module, "amd_smi_module", lambda: None)
    for kind in ("cuda", "hip"):
        with pytest.raises(CannotWatchError, match="is not installed"):
            open_sensor(kind)


# Whose processes are they?


def test_processes_are_ours_by_number_or_unknown_in_a_container():
    alive = {1: True, 2: False}
    ours = [GpuProcess(1, 0)]
    theirs = [GpuProcess(2, 7)]
    unknown = [GpuProcess(90000 + number, number) for number in range(3)]

    def foreign(processes, workers):
        return foreign_processes(processes, workers, alive.get)

    assert foreign(ours, [1]) == ()
    assert foreign(ours + theirs, [1]) == (GpuProcess(2, 7),)
    assert foreign(unknown[:2], [1, 5]) == ()  # numbers of the host's: as many as we have workers
    assert foreign(unknown, [1, 5]) == (GpuProcess(0, 2),)
    assert foreign(unknown[:1] + ours, [1]) == (GpuProcess(0, 0),)  # ours is listed, so that one is not


def test_a_worker_and_what_it_started_are_kin_even_after_its_death():
    kinship = Kinship()
    assert kinship.is_ours(os.getpid())
    assert kinship.is_ours(os.getppid()) is False
    code = (
        "import subprocess, sys;"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE);"
        "print(child.pid, flush=True); input(); child.communicate(b'\\n')"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    grandchild = int(worker.stdout.readline())
    assert kinship.is_ours(grandchild)
    assert kinship.is_ours(worker.pid)
    worker.communicate("\n")
    assert kinship.is_ours(worker.pid)  # its context may be listed for a moment longer
    assert Kinship().is_ours(worker.pid) is None


def test_many_moments_make_one_record():
    moments = [
        Conditions(1980, 3201, 40, (), ()),
        Conditions(1500, 3201, 80, ("power cap",), (GpuProcess(7, 1),)),
        Conditions(1700, None, 70, ("power cap", "power brake"), (GpuProcess(7, 2),)),
    ]
    assert summarise(moments) == {
        "readings": 3,
        "sm_mhz": [1500, 1700, 1980],
        "memory_mhz": [3201, 3201, 3201],
        "temperature_c": [40, 70, 80],
        "throttle": {"power brake": 1, "power cap": 2},
        "foreign": [{"pid": 7, "memory_bytes": 2}],
    }
    assert summarise([])["sm_mhz"] is None


def test_the_drivers_version_is_the_kernels_word(tmp_path):
    (tmp_path / "nvidia").mkdir()
    (tmp_path / "nvidia/version").write_text("580.95.05\n")
    assert driver_of_kernel("cuda", tmp_path) == "580.95.05"
    assert driver_of_kernel("hip", tmp_path) == f"kernel {os.uname().release}"
    assert driver_of_kernel("cuda", tmp_path / "none") == ""


# AMD


class FakeAmdSmi:
    """As ROCm 7 has it."""

    class AmdSmiException(Exception):  # noqa: N818  # the name is the library's
        pass

    class AmdSmiClkType:
        GFX, MEM = "gfx", "mem"

    def __init__(self):
        self.metrics = {"temperature_hotspot": 61, "throttle_status": "N/A"}
        self.processes = []
        self.clocks = {"gfx": {"clk": 2100}, "mem": {"clk": 1300}}
        self.open = 0

    def amdsmi_init(self):
        self.open += 1

    def amdsmi_shut_down(self):
        self.open -= 1

    def amdsmi_get_processor_handles(self):
        return ["first", "second"]

    def amdsmi_get_gpu_device_bdf(self, handle):
        return {"first": "0000:0C:00.0", "second": "0000:22:00.0"}[handle]

    def amdsmi_get_gpu_metrics_info(self, handle):
        assert handle == "second"
        return dict(self.metrics)

    def amdsmi_get_clock_info(self, handle, which):
        if which not in self.clocks:
            raise self.AmdSmiException("not supported")
        return self.clocks[which]

    def amdsmi_get_gpu_process_list(self, handle):
        return self.processes


def test_an_amd_gpu_is_found_by_its_pci_address_and_read():
    amdsmi = FakeAmdSmi()
    amdsmi.processes = [
        {"pid": 5, "mem": 1, "memory_usage": {"vram_mem": 1 << 20}},
        {"pid": 6, "mem": 0, "memory_usage": {"vram_mem": 0}},
    ]
    sensor = AmdSmiSensor(amdsmi)
    assert sensor.read("GPU-1", "0000:22:00.0") == Reading(2100, 1300, 61, (), (GpuProcess(5, 1 << 20),))
    sensor.close()
    assert amdsmi.open == 0
    with pytest.raises(KeyError):
        sensor.read("GPU-1", "0000:ff:00.0")


def test_an_amd_gpu_without_metrics_is_watched_all_the_same():
    amdsmi = FakeAmdSmi()
    amdsmi.processes = [{"pid": 5, "mem": 1, "memory_usage": {"vram_mem": 1 << 20}}]

    def not_supported(handle):
        raise amdsmi.AmdSmiException("not supported")

    amdsmi.amdsmi_get_gpu_metrics_info = not_supported
    reading = AmdSmiSensor(amdsmi).read("GPU-1", "0000:22:00.0")
    assert reading == Reading(2100, 1300, None, (), (GpuProcess(5, 1 << 20),))


def test_an_amd_gpu_is_throttled_when_a_counter_has_grown():
    amdsmi = FakeAmdSmi()
    sensor = AmdSmiSensor(amdsmi)
    amdsmi.metrics |= {"ppt_residency_acc": 100, "hbm_thm_residency_acc": "N/A", "prochot_residency_acc": 3}
    told = [sensor.read("", "0000:22:00.0").throttle]
    amdsmi.metrics["ppt_residency_acc"] = 150
    told.append(sensor.read("", "0000:22:00.0").throttle)
    told.append(sensor.read("", "0000:22:00.0").throttle)
    assert told == [(), ("power cap",), ()]


@pytest.mark.parametrize(("status", "expected"), [(True, ("throttle status",)), (False, ()), ("N/A", ()), (0, ())])
def test_an_older_amd_gpu_has_one_bit(status, expected):
    amdsmi = FakeAmdSmi()
    amdsmi.metrics["throttle_status"] = status
    amdsmi.clocks = {"gfx": {"clk": "N/A"}}
    reading = AmdSmiSensor(amdsmi).read("", "0000:22:00.0")
    assert reading.throttle == expected
    assert (reading.sm_mhz, reading.memory_mhz) == (None, None)
