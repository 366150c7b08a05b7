"""``aiter-tune doctor`` on this machine, and on machines that are not here."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from aiter_tuning.cli import main
from aiter_tuning.devices.conditions import GpuProcess, Reading
from aiter_tuning.devices.device import Device, NoDeviceError
from aiter_tuning.devices.gpu_settings import CannotTellSettingsError, GpuSettings
from aiter_tuning.devices.host_load import HostLoad
from aiter_tuning.report.doctor import gather as gather_module
from aiter_tuning.report.doctor import trial as trial_module
from aiter_tuning.report.doctor.facts import Noise, Pair, Trial
from aiter_tuning.report.doctor.gather import gather, place
from aiter_tuning.report.doctor.lock_trial import try_locks
from aiter_tuning.report.doctor.trial import try_worker
from op_tests.conftest import small_lanes

CUDA = Device("aiter_tuning.devices.cuda:CudaKind", "cuda0", "GPU-0", "sm90", 132, "NVIDIA H200", torch_device="cuda:0")
HIP = replace(CUDA, kind="aiter_tuning.devices.hip:HipKind", name="hip0", gfx="gfx942", gpu_model="AMD Instinct MI300X")
STEADY = Trial(2.0, 0.3, (Noise("short kernel", tuple(Pair(10.0 + i % 2 / 100, 10.0) for i in range(16)), "kernel"),))


class Machine:
    """Stands for a machine with a GPU: what its libraries say, and what a worker on it would measure."""

    def __init__(self, monkeypatch, device):
        self.devices, self.trial, self.load = (device,), STEADY, HostLoad(16, 0.1)
        self.processes, self.throttle, self.settings = (
            [],
            (),
            GpuSettings(True, True, 0, 1980, 700.0, 700.0, "default", 0),
        )
        for name in ("discover", "try_worker", "host_load", "open_sensor", "gpu_settings"):
            monkeypatch.setattr(gather_module, name, getattr(self, name))

    def discover(self, request=None, mp_num=0):
        if not self.devices:
            raise NoDeviceError("no visible GPU: no driver")
        return self.devices

    def try_worker(self, device):
        return self.trial

    def host_load(self, sample_s, name_processes):
        return self.load

    def open_sensor(self, kind):
        return self

    def read(self, uuid, pci):
        return Reading(1980, 3201, 50, self.throttle, tuple(GpuProcess(pid, 1) for pid in self.processes))

    def close(self):
        pass

    def gpu_settings(self, kind, uuid, pci):
        if self.settings is None:
            raise CannotTellSettingsError("no library")
        return self.settings


@pytest.fixture
def ask(capsys, tmp_path):
    """Runs the command in this process; returns exit code and what it found, by topic."""

    def run(*words):
        code = main(["doctor", "--json", "--directory", str(tmp_path), *words])
        found = json.loads(capsys.readouterr().out)
        return code, {finding["topic"]: finding for finding in found["findings"]}, found

    return run


@pytest.fixture
def machine(monkeypatch):
    return lambda device=CUDA: Machine(monkeypatch, device)


def test_a_cuda_machine_in_order_ends_with_0(machine, ask):
    machine()
    code, topics, found = ask()
    bad = [finding for finding in found["findings"] if finding["verdict"] == "bad"]
    assert (code, bad) == (0, [])
    assert topics["device"]["found"].startswith("NVIDIA H200 (sm90, 132 CUs)")
    assert topics["cuda0 clocks"]["verdict"] == "ok"
    assert topics["timer noise, short kernel"]["verdict"] == "ok"


@pytest.mark.parametrize("device", [CUDA, HIP])
@pytest.mark.parametrize(
    ("change", "topic"),
    [
        ({"processes": [1]}, "processes"),
        ({"throttle": ("hardware thermal",)}, "clocks"),
        ({"load": HostLoad(4, 4.0)}, "host load"),
        ({"trial": Trial(2.0, float("nan"), (), "no usable device is left")}, "worker"),
    ],
)
def test_what_would_mislead_ends_with_1(machine, ask, device, change, topic):
    there = machine(device)
    vars(there).update(change)
    there.settings = there.settings._replace(utilisation_pct=50 if "processes" in change else 0)
    code, topics, _ = ask()
    name = topic if topic in topics else f"{device.name} {topic}"
    assert (code, topics[name]["verdict"]) == (1, "bad")
    assert topics[name]["advice"]


def test_a_gpu_whose_library_is_missing_is_a_warning(machine, ask):
    there = machine(HIP)
    there.settings = None
    there.read = lambda uuid, pci: 1 / 0
    code, topics, _ = ask()
    assert (code, topics["hip0"]["verdict"]) == (0, "warning")
    assert "division by zero" in topics["hip0"]["found"]


def test_without_the_device_that_was_asked_for_the_rest_is_still_told(machine, ask):
    there = machine()
    there.devices = ()
    code, topics, _ = ask("--device", "cuda")
    assert (code, topics["device"]["found"]) == (1, "no visible GPU: no driver")
    assert topics["file locks"]["verdict"] == "ok"
    assert "worker start" not in topics


@pytest.mark.parametrize(
    ("words", "said"), [(("--device", "tpu"), "--device tpu"), (("--directory", "/no/such"), "no such directory")]
)
def test_a_request_that_means_nothing_ends_with_2(capsys, words, said):
    assert main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_command_on_this_machine(command, tmp_path):
    process = command("doctor", "--device", "cpu", "--json")
    out, err = process.communicate()

    found = json.loads(out)
    assert process.returncode == (1 if found["verdict"] == "bad" else 0), err
    topics = {finding["topic"]: finding for finding in found["findings"]}
    assert topics["file locks"]["verdict"] == "ok"
    assert topics["output"]["verdict"] == "ok"
    assert 0.1 < found["start_s"]["import"] < 120
    assert found["noise"]["short kernel"]["timer"] == "wall"
    assert found["noise"]["short kernel"]["pairs_us"]
    assert os.listdir(tmp_path) == []


# Its trials


def test_a_worker_that_cannot_start_is_a_problem_and_no_exception():
    nowhere = replace(small_lanes(1)[0], uuid="cpu:99+98", cores=(99, 98))
    trial = try_worker(nowhere, startup_timeout_s=20)
    assert "no usable device is left" in trial.problem
    assert trial.noise == ()


def test_a_product_that_comes_back_wrong_is_a_problem(monkeypatch):
    wrong = trial_module._group

    def group(*what, **more):
        made = wrong(*what, **more)
        return replace(made, tasks=tuple(task._replace(func=divmod) for task in made.tasks))

    monkeypatch.setattr(trial_module, "_group", group)
    trial = try_worker(small_lanes(1)[0])
    assert trial.problem.startswith("a plain matrix product came back as ")
    assert trial.import_s > 0


def test_locks_are_tried_by_two_processes_and_nothing_is_left(tmp_path):
    assert try_locks(tmp_path) == (str(tmp_path), True, True, True, "")
    assert os.listdir(tmp_path) == []


def test_where_locks_do_nothing_two_processes_notice(tmp_path, monkeypatch):
    from aiter_tuning.report.doctor import lock_trial

    class NoLock:
        def __init__(self, path, timeout):
            path.touch()

        __enter__ = __exit__ = lambda self, *what: None

    monkeypatch.setattr(lock_trial, "FileLock", NoLock)
    assert try_locks(tmp_path).excludes is False


def test_a_directory_that_refuses_files_is_a_problem_of_the_trial(tmp_path):
    assert "No such file or directory" in try_locks(tmp_path / "none").problem


def test_a_place_that_a_run_would_make_is_looked_at_where_it_would_be_made(tmp_path):
    made = place("compile cache", str(tmp_path / "deep" / "down"))
    assert made.problem == ""
    assert made.free_bytes > 0
    assert made.file_system
    assert place("output", str(tmp_path / "none"), make=False).problem == "No such file or directory"
    (tmp_path / "file").write_text("")
    assert place("compile cache", str(tmp_path / "file")).problem == "Not a directory"
    assert os.listdir(tmp_path) == ["file"]


def test_a_read_only_file_system_is_a_problem(read_only_disk):
    found = place("output", str(read_only_disk))
    assert found.problem == "Read-only file system"
    assert found.file_system == "tmpfs"


def test_gathering_imports_no_torch(tmp_path):
    program = (
        "import sys, pathlib\n"
        "from aiter_tuning.report.doctor import gather as module\n"
        "module.try_worker = lambda device: None\n"
        f"module.gather('cpu', pathlib.Path({str(tmp_path)!r}))\n"
        "print(sorted({'torch', 'triton', 'pandas', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout == "[]\n", done.stderr


def test_a_device_that_means_nothing_is_the_callers_error():
    with pytest.raises(ValueError, match="devices names 'tpu'"):
        gather("tpu")
