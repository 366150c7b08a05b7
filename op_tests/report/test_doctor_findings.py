"""The doctor's judgement: facts in, findings out."""

import io
import json
import math
import random
from dataclasses import replace

import pytest

from aiter_tuning.devices.conditions import Reading
from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.devices.device import Device
from aiter_tuning.devices.gpu_settings import GpuSettings
from aiter_tuning.devices.host_load import BusyProcess, HostLoad
from aiter_tuning.report.doctor.facts import Facts, GpuFindings, LockTrial, Noise, Pair, Place, Trial, Verdict
from aiter_tuning.report.doctor.findings import (
    COMPILE_CACHE,
    OUTPUT,
    SHARED_MEMORY,
    compile_cache_path,
    findings_of,
    lock_finding,
    place_finding,
    worst,
)
from aiter_tuning.report.doctor.gpu_findings import gpu_findings
from aiter_tuning.report.doctor.host_findings import environment_findings, host_findings, load_finding
from aiter_tuning.report.doctor.noise import noise_finding, resolution, trial_findings
from aiter_tuning.report.doctor.page import findings_json, print_findings

H200 = Device("aiter_tuning.devices.cuda:CudaKind", "cuda0", "GPU-0", "sm90", 132, "NVIDIA H200", torch_device="cuda:0")
MI300 = replace(
    H200, kind="aiter_tuning.devices.hip:HipKind", name="hip0", gfx="gfx942", cu_num=304, gpu_model="MI300X"
)
COOL = Reading(345, 3201, 40)
SETTINGS = GpuSettings(True, True, 0, 1980, 700.0, 700.0, "default", 0)
QUIET = GpuFindings(H200, COOL, COOL, SETTINGS)
LOCKS = LockTrial("/out", True, True, True)
GIB = 1 << 30
PLACES = (Place(OUTPUT, "/out", "ext4", 50 * GIB), Place(COMPILE_CACHE, "/c", "ext4", 50 * GIB))
PACKAGES = {
    "python": "3.12",
    "torch": "2.11",
    "triton": "3.6",
    "nvidia-ml-py": "13",
    "cupti-python": "13.0.1",
    "amdsmi": "",
}


def steady(noise_pct=0.2, pairs=16, us=20.0, bias_pct=0.0, name="short kernel", seed=1):
    rng = random.Random(seed)
    scale = noise_pct / 100

    def time(factor=1.0):
        return us * factor * (1 + rng.gauss(0, scale))

    return Noise(name, tuple(Pair(time(), time(1 + bias_pct / 100)) for _ in range(pairs)), "kernel")


GOOD = Facts(
    kind="cuda",
    devices=(H200,),
    torch_build="torch 2.11 is built for CUDA 13.0",
    torch_kind="cuda",
    packages=PACKAGES,
    driver="580.95",
    gpus=(QUIET,),
    load=HostLoad(16, 0.3),
    available_bytes=100 * GIB,
    open_files=1024,
    places=PLACES,
    locks=LOCKS,
    trial=Trial(2.9, 0.4, (steady(), steady(name="long kernel", us=200.0))),
)


def verdicts(findings, topic):
    return [finding.verdict for finding in findings if finding.topic == topic]


def bad_topics(facts):
    return {finding.topic for finding in findings_of(facts) if finding.verdict is Verdict.bad}


def test_a_good_machine_is_well_and_says_what_it_is():
    findings = findings_of(GOOD)

    assert {finding.verdict for finding in findings} == {Verdict.ok}
    assert worst(findings) is Verdict.ok
    found = {finding.topic: finding.found for finding in findings}
    assert found["device"] == "NVIDIA H200 (sm90, 132 CUs), driver 580.95"
    assert found["versions"] == "python 3.12, torch 2.11, triton 3.6, nvidia-ml-py 13, cupti-python 13.0.1"
    assert found["cuda0 clocks"] == "345 MHz now of 1980, 40 °C"
    assert found["cuda0 settings"] == "persistence mode on, ECC on, compute mode default"


def test_everything_that_is_not_well_comes_with_advice():
    facts = replace(
        GOOD,
        gpus=(QUIET._replace(problem="no library", foreign=("python (7)",), settings=GpuSettings(False, None, 2)),),
        load=HostLoad(4, 4.0, (BusyProcess(7, "make", 3.5),)),
        environ={"CUDA_LAUNCH_BLOCKING": "1", "TRITON_ALWAYS_COMPILE": "1"},
        places=(Place(OUTPUT, "/out", "", 0), Place(COMPILE_CACHE, "/c", "nfs4", GIB * 9)),
        locks=LockTrial("/out", False, True, True),
        trial=Trial(60.0, 9.0, (steady(20), steady(1.0, pairs=2)), "a candidate failed"),
        packages={},
    )
    findings = findings_of(facts)
    assert all(finding.advice for finding in findings if finding.verdict is not Verdict.ok)
    assert len([finding for finding in findings if finding.verdict is not Verdict.ok]) > 12


def test_no_device_at_all_is_bad():
    facts = replace(GOOD, kind="", devices=(), gpus=(), trial=None, device_problem="no visible GPU: no driver")
    (finding,) = [finding for finding in findings_of(facts) if finding.topic == "device"]
    assert (finding.verdict, finding.found) == (Verdict.bad, "no visible GPU: no driver")


def test_a_cpu_in_the_place_of_a_gpu_that_torch_was_built_for_is_a_warning():
    lanes = cpu_lanes(1)
    on_cpu = replace(GOOD, kind="cpu", devices=lanes, gpus=(), device_problem="no visible GPU: no driver", driver="")
    (finding,) = [finding for finding in findings_of(on_cpu) if finding.topic == "device"]
    assert finding.verdict is Verdict.warning
    assert "no visible GPU: no driver" in finding.found

    meant = replace(on_cpu, torch_kind="cpu")
    assert verdicts(findings_of(meant), "device") == [Verdict.ok]


def test_notes_about_devices_are_warnings():
    facts = replace(GOOD, device_notes=("cuda0, cuda0#2 are lanes on one GPU",))
    assert verdicts(findings_of(facts), "device") == [Verdict.ok, Verdict.warning]


@pytest.mark.parametrize(
    ("kind", "missing"),
    [("cuda", "triton"), ("cuda", "nvidia-ml-py"), ("cuda", "cupti-python"), ("hip", "amdsmi"), ("hip", "triton")],
)
def test_a_package_that_is_missing_is_named_with_what_is_lost(kind, missing):
    facts = replace(GOOD, kind=kind, packages={**PACKAGES, "amdsmi": "6.4"} | {missing: ""})
    (finding,) = [f for f in findings_of(facts) if f.topic == "versions" and f.verdict is Verdict.warning]
    assert finding.found.startswith(f"{missing} is not installed: ")


def test_packages_of_the_other_vendor_are_not_missed():
    hip = replace(GOOD, kind="hip", devices=(MI300,), packages={"torch": "2.11", "triton": "3.6", "amdsmi": "6.4"})
    assert verdicts(findings_of(hip), "versions") == [Verdict.ok]
    cpu = replace(GOOD, kind="cpu", devices=cpu_lanes(1), gpus=(), torch_kind="cpu", packages={"torch": "2.13"})
    assert verdicts(findings_of(cpu), "versions") == [Verdict.ok]
    assert "versions" in bad_topics(replace(cpu, packages={"torch": ""}))


# GPUs


@pytest.mark.parametrize(
    ("reasons", "verdict"),
    [
        ((), Verdict.ok),
        (("power cap",), Verdict.warning),
        (("software thermal",), Verdict.bad),
        (("hardware slowdown", "power cap"), Verdict.bad),
        (("power brake",), Verdict.bad),
    ],
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_throttling_is_seen_before_and_under_load(reasons, verdict, when):
    gpu = QUIET._replace(**{when: COOL._replace(throttle=reasons)})
    assert verdicts(gpu_findings(gpu), "cuda0 clocks") == [verdict]


def test_a_hot_gpu_is_a_warning():
    assert verdicts(gpu_findings(QUIET._replace(after=COOL._replace(temperature_c=90))), "cuda0 clocks") == [
        Verdict.warning
    ]


@pytest.mark.parametrize(
    ("foreign", "busy", "verdict"),
    [
        ((), 0, Verdict.ok),
        ((), None, Verdict.ok),
        ((), 80, Verdict.bad),
        (("python (7)",), 0, Verdict.warning),
        (("python (7)",), 60, Verdict.bad),
        (("python (7)",), None, Verdict.bad),
    ],
)
def test_strangers_who_work_are_bad_and_those_who_idle_a_warning(foreign, busy, verdict):
    gpu = QUIET._replace(foreign=foreign, settings=SETTINGS._replace(utilisation_pct=busy))
    findings = [finding for finding in gpu_findings(gpu) if finding.topic == "cuda0 processes"]
    assert [finding.verdict for finding in findings] == [verdict]
    assert all(name in findings[0].found for name in foreign)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"persistence": False}, Verdict.warning),
        ({"uncorrected_errors": 2}, Verdict.bad),
        ({"power_limit_w": 500.0}, Verdict.warning),
        ({"compute_mode": "prohibited"}, Verdict.bad),
        ({"compute_mode": "exclusive"}, Verdict.ok),
        ({"ecc": False}, Verdict.ok),
    ],
)
def test_settings(change, verdict):
    gpu = QUIET._replace(settings=SETTINGS._replace(**change))
    assert verdicts(gpu_findings(gpu), "cuda0 settings") == [verdict]


def test_a_gpu_that_tells_nothing_is_a_warning_and_no_more():
    findings = gpu_findings(GpuFindings(MI300, problem="amdsmi is not installed"))
    assert [(finding.topic, finding.verdict) for finding in findings] == [("hip0", Verdict.warning)]
    assert gpu_findings(GpuFindings(MI300, Reading(), None, GpuSettings()))


# The host


@pytest.mark.parametrize(
    ("busy", "on_gpu", "verdict"),
    [(0.5, False, Verdict.ok), (1.5, False, Verdict.warning), (3.0, False, Verdict.bad), (3.0, True, Verdict.ok),
     (6.0, True, Verdict.warning), (7.9, True, Verdict.bad)],
)  # fmt: skip
def test_load(busy, on_gpu, verdict):
    finding = load_finding(HostLoad(8, busy, (BusyProcess(7, "make", busy),)), on_gpu=on_gpu)
    assert finding.verdict is verdict
    assert ("make (7)" in finding.found) is (verdict is not Verdict.ok)


def test_a_container_with_less_time_than_its_lanes_have_cores_misleads():
    lanes = cpu_lanes(1)
    cpu = replace(GOOD, kind="cpu", devices=lanes, gpus=(), torch_kind="cpu")
    cores = len(lanes[0].cores)
    assert verdicts(host_findings(replace(cpu, quota_cores=cores - 0.5)), "cores") == [Verdict.bad]
    assert verdicts(host_findings(replace(cpu, quota_cores=float(cores))), "cores") == []
    assert verdicts(host_findings(replace(GOOD, quota_cores=1.0)), "cores") == [Verdict.warning]


def test_governors_matter_where_the_cpu_is_measured():
    slow = frozenset({"powersave", "performance"})
    cpu = replace(GOOD, kind="cpu", devices=cpu_lanes(1), gpus=(), governors=slow)
    assert verdicts(host_findings(cpu), "governor") == [Verdict.warning]
    assert verdicts(host_findings(replace(GOOD, governors=slow)), "governor") == []


def test_little_memory_and_few_descriptors_are_warnings():
    assert verdicts(host_findings(replace(GOOD, available_bytes=GIB)), "memory") == [Verdict.warning]
    assert verdicts(host_findings(replace(GOOD, open_files=64)), "open files") == [Verdict.warning]
    unknown = host_findings(replace(GOOD, available_bytes=-1, open_files=-1, load=None))
    assert unknown == []


@pytest.mark.parametrize(
    ("environ", "verdict"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, Verdict.bad),
        ({"TRITON_INTERPRET": "1"}, Verdict.bad),
        ({"AMD_SERIALIZE_KERNEL": "3"}, Verdict.bad),
        ({"TRITON_ALWAYS_COMPILE": "1"}, Verdict.warning),
        ({"CUDA_INJECTION64_PATH": "/opt/nsys.so"}, Verdict.warning),
    ],
)
def test_variables_that_change_what_times_mean(environ, verdict):
    (finding,) = environment_findings(environ)
    assert finding.verdict is verdict
    assert finding.found.startswith(f"{next(iter(environ))}=")


@pytest.mark.parametrize("value", ["", "0", "false", "OFF"])
def test_variables_that_are_off_are_nothing(value):
    assert environment_findings({"CUDA_LAUNCH_BLOCKING": value, "TRITON_INTERPRET": value}) == []


def test_masks_are_shown_and_two_that_disagree_are_a_warning():
    (finding,) = environment_findings({"CUDA_VISIBLE_DEVICES": "3", "ROCR_VISIBLE_DEVICES": "1"})
    assert (finding.verdict, finding.found) == (Verdict.ok, "CUDA_VISIBLE_DEVICES=3 ROCR_VISIBLE_DEVICES=1")
    (finding,) = environment_findings({"CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "1"})
    assert finding.verdict is Verdict.warning
    (finding,) = environment_findings({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"})
    assert finding.verdict is Verdict.ok


# Files


@pytest.mark.parametrize(
    ("place", "verdict"),
    [
        (Place(OUTPUT, "/o", "ext4", GIB), Verdict.ok),
        (Place(OUTPUT, "/o", "ext4", -1), Verdict.ok),
        (Place(OUTPUT, "/o", "ext4", 10 << 20), Verdict.warning),
        (Place(OUTPUT, "/o", "ext4", 4096), Verdict.bad),
        (Place(OUTPUT, "/o", "ext4", GIB, "Read-only file system"), Verdict.bad),
        (Place(OUTPUT, "/o", "nfs4", GIB), Verdict.ok),
        (Place(COMPILE_CACHE, "/o", "nfs4", 9 * GIB), Verdict.warning),
        (Place(COMPILE_CACHE, "/o", "fuse.sshfs", 9 * GIB), Verdict.warning),
        (Place(SHARED_MEMORY, "/dev/shm", "tmpfs", 1 << 25), Verdict.warning),
    ],
)
def test_places(place, verdict):
    assert place_finding(place).verdict is verdict


@pytest.mark.parametrize(
    ("change", "verdict"),
    [({}, Verdict.ok), ({"excludes": False}, Verdict.bad), ({"hands_over": False}, Verdict.bad),
     ({"links": False}, Verdict.warning), ({"problem": "OSError: no locks"}, Verdict.warning)],
)  # fmt: skip
def test_locks(change, verdict):
    assert lock_finding(LOCKS._replace(**change)).verdict is verdict


def test_the_compile_cache_is_where_triton_keeps_it(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert compile_cache_path({}) == "/home/me/.triton/cache"
    assert compile_cache_path({"TRITON_HOME": "/t"}) == "/t/.triton/cache"
    assert compile_cache_path({"TRITON_HOME": "/t", "TRITON_CACHE_DIR": "/c"}) == "/c"


# Noise


def test_the_smallest_gap_shrinks_with_the_noise_and_with_the_pairs():
    gaps = [resolution(steady(noise).pairs).gap_pct for noise in (0.1, 1.0, 10.0)]
    assert gaps == sorted(gaps)
    assert resolution(steady(1.0, pairs=100).pairs).gap_pct < resolution(steady(1.0, pairs=10).pairs).gap_pct


def test_a_gap_that_the_pairs_can_tell_is_told_and_one_that_they_cannot_is_not():
    """The gap is two standard errors: of equal kernels it is exceeded about once in twenty times."""
    exceeded = sum(
        abs(seen.bias_pct) > seen.gap_pct for seed in range(400) for seen in [resolution(steady(1.0, seed=seed).pairs)]
    )
    assert exceeded / 400 < 0.12


@pytest.mark.parametrize(
    ("noise", "verdict"),
    [
        (steady(0.2), Verdict.ok),
        (steady(3.0), Verdict.warning),
        (steady(30.0), Verdict.bad),
        (steady(0.2, bias_pct=2.0), Verdict.warning),
        (steady(0.2, bias_pct=5.0), Verdict.bad),
        (steady(0.2, pairs=3), Verdict.bad),
        (Noise("k", (), "", ()), Verdict.bad),
        (Noise("k", tuple(Pair(us, 1.0) for us in (math.inf, math.nan, 0.0, -1.0, 1.0)), "wall"), Verdict.bad),
    ],
)
def test_noise(noise, verdict):
    assert noise_finding(noise).verdict is verdict


def test_flags_of_the_measurement_are_shown():
    finding = noise_finding(steady()._replace(flags=("hot_cache",)))
    assert "(hot_cache)" in finding.found
    assert finding.verdict is Verdict.ok


@pytest.mark.parametrize("flag", ["throttled", "foreign"])
def test_a_disturbance_under_load_is_a_warning_however_steady_the_times_look(flag):
    finding = noise_finding(steady()._replace(flags=(flag, "standby")))
    assert finding.verdict is Verdict.warning
    assert flag in finding.advice


def test_a_worker_that_could_not_measure_is_bad_and_what_is_known_is_still_told():
    findings = trial_findings(Trial(3.0, math.nan, (), "no usable device is left"))
    assert [(finding.topic, finding.verdict) for finding in findings] == [
        ("worker", Verdict.bad),
        ("worker start", Verdict.ok),
    ]
    assert trial_findings(Trial(30.0, 6.0))[0].verdict is Verdict.warning


# What is shown


def test_the_page_has_a_line_for_each_finding_and_one_for_them_all():
    out = io.StringIO()
    print_findings(findings_of(replace(GOOD, load=HostLoad(4, 4.0))), out)
    lines = out.getvalue().splitlines()
    assert lines[-1] == "bad: tuning here would mislead or fail; put right what is bad"
    (load,) = [line for line in lines if "host load" in line]
    assert load.startswith("bad      host load")
    assert "→ launches come late" in lines[lines.index(load) + 1]


def test_json_is_strict_and_holds_the_times():
    facts = replace(GOOD, trial=Trial(math.nan, math.nan, (steady(), steady(pairs=0, name="long kernel"))))
    found = json.loads(findings_json(facts, findings_of(facts)), parse_constant=lambda name: pytest.fail(name))
    assert found["verdict"] == "bad"
    assert len(found["noise"]["short kernel"]["pairs_us"]) == 16
    assert 0 < found["noise"]["short kernel"]["gap_pct"] < 1
    assert found["start_s"] == {"import": None, "bind": None}
    assert {"topic", "verdict", "found", "advice"} == set(found["findings"][0])
