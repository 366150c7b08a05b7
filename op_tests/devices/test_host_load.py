"""What else the host's cores are doing."""

import os
import subprocess
import sys
import time

import pytest

from aiter_tuning.devices import host_load as host_load_module
from aiter_tuning.devices.conditions import GpuProcess, Reading
from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.devices.device import Device
from aiter_tuning.devices.disturbances import disturbance_notes, foreign_note, load_note
from aiter_tuning.devices.host_load import BusyProcess, HostLoad, LoadWatch, crowding, governors, host_load, quota_cores

GPUS = tuple(
    Device("aiter_tuning.devices.cuda:CudaKind", f"cuda{i}", f"GPU-{i}", "sm90", 132, "NVIDIA H200") for i in (0, 1)
)
CALM = HostLoad(8, 0.2)


@pytest.fixture
def burner():
    """A process that keeps one core busy; it says so once it does."""
    code = "print('on', flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "on\n"
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_burns_a_core_is_seen_and_named(burner):
    for _ in range(20):  # a machine under test is busy; the burner gets its turn
        load = host_load(0.3, name_processes=True)
        named = {process.pid: process for process in load.processes}
        if burner.pid in named:
            break
    assert named[burner.pid].cores > 0.05
    assert "python" in named[burner.pid].name
    assert load.busy_cores > 0.05
    assert load.cores == len(os.sched_getaffinity(0))


def test_what_this_process_burns_itself_is_no_load(monkeypatch):
    watch = LoadWatch()
    with monkeypatch.context() as patch:
        patch.setattr(host_load_module, "_own_seconds", lambda: 0.0)
        everything = LoadWatch()
        burn_until = time.process_time() + 0.5
        while time.process_time() < burn_until:
            pass
        all_load = everything.read(0)
    seconds, load = time.monotonic() - watch._began, watch.read(0)
    assert load.busy_cores >= 0
    assert (all_load.busy_cores - load.busy_cores) * seconds > 0.3


def test_a_watch_looks_for_as_long_as_it_is_told_and_waits_for_no_more_than_what_is_left(monkeypatch):
    watch, slept = LoadWatch(), []
    monkeypatch.setattr(host_load_module.time, "sleep", slept.append)
    watch.read(1000.0)
    watch.read(0.0)
    assert 900 < slept[0] < 1000
    assert slept[1] == 0


@pytest.mark.parametrize(
    ("busy", "on_cpu", "on_gpu"),
    [
        (0.0, "", ""),
        (1.0, "loaded", ""),
        (2.1, "crowded", ""),
        (5.0, "crowded", "loaded"),
        (7.5, "crowded", "crowded"),
    ],
)
def test_a_cpu_lane_is_disturbed_by_less_than_the_host_of_a_gpu(busy, on_cpu, on_gpu):
    load = HostLoad(8, busy)
    assert (crowding(load, on_gpu=False), crowding(load, on_gpu=True)) == (on_cpu, on_gpu)


def test_a_quota_is_read_in_both_spellings(tmp_path):
    assert quota_cores(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert quota_cores(tmp_path) is None
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    assert quota_cores(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert quota_cores(tmp_path) is None
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert quota_cores(tmp_path) == 0.5


def test_governors_of_the_cores_that_may_be_used(tmp_path):
    for cpu, governor in ((0, "performance"), (1, "powersave"), (2, "ondemand")):
        (tmp_path / f"cpu{cpu}" / "cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "cpufreq" / "scaling_governor").write_text(governor + "\n")
    assert governors([0, 1, 7], tmp_path) == {"performance", "powersave"}


# The short form, at the start of a run


class Sensor:
    def __init__(self, **processes):
        self.processes, self.closed = processes, False

    def read(self, uuid, pci):
        found = self.processes.get(uuid.replace("-", ""), ())
        if isinstance(found, Exception):
            raise found
        return Reading(processes=tuple(GpuProcess(pid, 1 << 30) for pid in found))

    def close(self):
        self.closed = True


def test_a_quiet_machine_says_nothing():
    assert disturbance_notes(cpu_lanes(1), CALM) == ()
    assert disturbance_notes(GPUS, CALM, lambda kind: Sensor()) == ()


def test_a_busy_host_is_one_line():
    (note,) = disturbance_notes(cpu_lanes(1), HostLoad(8, 4.0, (BusyProcess(7, "make", 4.0),)))
    assert note == (
        "other processes keep 4.0 of 8 cores busy: latencies and gains will be those of a busy machine; "
        "`aiter-tune doctor` says more"
    )
    assert load_note(HostLoad(8, 4.0), on_gpu=True) == ""
    assert "launches may come late" in load_note(HostLoad(8, 7.9), on_gpu=True)


def test_a_stranger_on_a_gpu_is_one_line_and_the_sensor_is_closed():
    sensor = Sensor(GPU1=[1])
    note = foreign_note(GPUS, lambda kind: sensor)
    assert note.startswith("others work on cuda1 too:")
    assert sensor.closed


def test_our_own_process_is_no_stranger():
    assert foreign_note(GPUS, lambda kind: Sensor(GPU0=[os.getpid()])) == ""


def test_a_gpu_that_cannot_be_looked_at_is_no_reason_to_stop():
    def no_sensor(kind):
        raise OSError("no library")

    assert foreign_note(GPUS, no_sensor) == ""
    sensor = Sensor(GPU0=RuntimeError("lost"))
    assert foreign_note(GPUS, lambda kind: sensor) == ""
    assert sensor.closed
