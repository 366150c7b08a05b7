"""Devices on a real GPU: discovery, masks, binding, names, the probe, and what the monitor sees.

Discovery runs in processes of its own, as in the parent of a run: without torch, and without a context.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aiter_tuning import NoDeviceError, Pool, mp_tuner
from aiter_tuning.devices.conditions import driver_of_kernel
from aiter_tuning.devices.discovery import device_notes, discover, kind_of
from aiter_tuning.devices.identity import device_identity, facts_of
from aiter_tuning.devices.monitor import Monitor, open_sensor
from aiter_tuning.devices.peaks import peaks_of
from aiter_tuning.devices.torch_facts import ask_torch, torch_build
from aiter_tuning.devices.visibility import HIDE_ALL, mask_variable, outer_mask
from op_tests.pool.fault_candidates import exits, right, task
from op_tests.processes import wait_for

HIP = torch.version.hip is not None
KIND = "hip" if HIP else "cuda"
ROOT = Path(__file__).parent.parent.parent
SENSOR = "amdsmi" if HIP else "pynvml"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(90),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

needs_sensor = pytest.mark.skipif(importlib.util.find_spec(SENSOR) is None, reason=f"needs {SENSOR}")


def in_child(code, **environ):
    """The last line that a fresh interpreter prints, as JSON."""
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout.strip().splitlines()[-1])


DISCOVER = """
import json, sys, time
from aiter_tuning.devices.device import NoDeviceError
from aiter_tuning.devices.discovery import discover
from aiter_tuning.devices.torch_facts import _answer
before = time.perf_counter()
try:
    told = [[d.name, d.uuid, d.gfx, d.cu_num, d.gpu_model, d.settings["mask"]] for d in discover({request!r})]
except NoDeviceError as error:
    told = str(error)
seconds = time.perf_counter() - before
listed = {listed}
print(json.dumps([told, seconds, "torch" in sys.modules, listed, _answer.cache_info().misses]))
"""
NOT_LISTED = "None"
LISTED = """__import__("subprocess").run(
    ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"], capture_output=True, text=True
).stdout.split().count(str(__import__("os").getpid())) if __import__("shutil").which("nvidia-smi") else 0"""


def discovered(request, listed=NOT_LISTED, **environ):
    return in_child(DISCOVER.format(request=request, listed=listed), **environ)


def test_discovery_agrees_with_torch_and_needs_neither_torch_nor_a_context():
    told, seconds, torch_imported, listed, _ = discovered(KIND, NOT_LISTED if HIP else LISTED)
    expected = [
        facts_of(torch.cuda.get_device_properties(index), hip=HIP, environ=os.environ)
        for index in range(torch.cuda.device_count())
    ]
    print(f"{len(told)} GPUs in {seconds:.3f} s: {told}")
    assert [tuple(one[1:5]) for one in told] == [(facts.uuid, *facts.identity) for facts in expected]
    assert not torch_imported
    assert not listed, "the process that discovered has a context"


@needs_sensor
@pytest.mark.skipif(HIP, reason="AMD is asked by a child")
def test_where_nvml_is_there_no_child_is_asked():
    told, seconds, _, _, asked = discovered(KIND)
    if any("MIG" in one[4] for one in told) or len({one[4] for one in told}) > 1:
        pytest.skip("a host on which CUDA has to be asked")
    assert not asked, f"a child was asked, in {seconds:.2f} s"


def test_a_child_with_torch_says_the_same_as_discovery():
    facts = ask_torch(KIND, outer_mask(KIND, os.environ))
    devices = discover(KIND)
    assert [(one.uuid, *one.identity) for one in facts] == [(d.uuid, d.gfx, d.cu_num, d.gpu_model) for d in devices]
    for one, device in zip(facts, devices, strict=True):
        told = {name: device.settings[name] for name in ("pci", "l2_bytes", "memory_bytes")}
        print(f"torch: {one}\ndiscovery: {told}")
        if one.pci:
            assert device.settings["pci"] == one.pci
        if device.settings["l2_bytes"] != "0":
            assert int(device.settings["l2_bytes"]) == pytest.approx(one.l2_bytes, rel=0.3), "correct devices/peaks.py"
        assert int(device.settings["memory_bytes"]) == pytest.approx(one.memory_bytes, rel=0.05)


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_mask_that_hides_everything_ends_in_one_line(value):
    told, seconds, *_ = discovered(KIND, **{mask_variable(KIND): value})
    assert "hides every device" in told
    assert seconds < 1.0, "nothing had to be asked"


def test_masks_by_index_uuid_and_beginning_of_a_uuid_all_bind():
    (first, *_) = discover(KIND)
    code = (
        "import torch, json; print(json.dumps([torch.cuda.device_count(), torch.ones(2, device='cuda').sum().item()]))"
    )
    beginning = () if HIP else (first.uuid[:12],)  # HIP takes whole ones only
    for word in (first.settings["mask"], first.uuid, *beginning):
        told, *_ = discovered(KIND, **{mask_variable(KIND): word})
        assert [(one[1], one[5]) for one in told] == [(first.uuid, word)], word
        assert in_child(code, **{mask_variable(KIND): word}) == [1, 2.0], word


def test_a_process_that_must_see_no_device_sees_none():
    code = "import torch, json; print(json.dumps(torch.cuda.device_count()))"
    assert in_child(code, **HIDE_ALL) == 0


def test_a_gpu_that_is_not_there_is_one_line():
    for name in ("99", "GPU-ffffffff-0000", "MIG-1"):
        with pytest.raises(NoDeviceError, match=f"no visible GPU {name}: there"):
            discover([name])


def test_lookup_and_lane_use_one_name():
    lane = discover(KIND)[0]
    assert device_identity("cuda:0") == (lane.gfx, lane.cu_num, lane.gpu_model)
    assert kind_of(lane) == torch_build().kind == KIND
    assert lane.settings["driver"]
    print(f"driver {lane.settings['driver']} (kernel says {driver_of_kernel(KIND)!r}), peaks {peaks_of(lane)}")


def test_a_worker_binds_its_gpu_and_a_killed_one_is_replaced_on_it():
    with Pool([discover(KIND)[0]]) as pool:
        tasks = [task(("s", index), func) for index, func in enumerate((right, exits, right))]
        results = mp_tuner(tasks, [(3, None)], return_status=True, on_fault="continue", pool=pool)
        assert [str(result.status) for result in results] == ["ok", "crash", "ok"], [r.detail for r in results]
        assert not pool.lanes[0].last_failure, pool.lanes[0].last_failure


def test_a_lane_under_a_uuid_mask_works(monkeypatch):
    first = discover(KIND)[0]
    monkeypatch.setenv(mask_variable(KIND), first.uuid)
    with Pool(KIND, standbys=False) as pool:
        assert [device.settings["mask"] for device in pool.devices] == [first.uuid]
        (result,) = mp_tuner([task(("s", 0), right)], [(1, None)], return_status=True, pool=pool)
        assert str(result.status) == "ok", f"{result.detail} {pool.lanes[0].last_failure}"


def test_two_lanes_on_one_gpu_work_and_say_that_times_are_not_trustworthy():
    with Pool([0, 0], standbys=False) as pool:
        assert [device.name for device in pool.devices] == [f"{KIND}0", f"{KIND}0#2"]
        assert "not trustworthy" in device_notes(pool.devices)[0]
        tasks = [task((f"s{index}", 0), right) for index in range(4)]
        results = mp_tuner(tasks, [(1, None)] * 4, shape_grouped=True, return_status=True, pool=pool)
        assert [str(result.status) for result in results] == ["ok"] * 4, [r.detail for r in results]
        pool.post_circumstances()
        for lane in pool.lanes:
            assert "shared" in pool.monitor.flags(lane.device)


def test_a_lane_whose_gpu_is_another_than_it_says_is_refused():
    from dataclasses import replace

    wrong = replace(discover(KIND)[0], uuid="GPU-00000000-0000-0000-0000-000000000000")
    with Pool([wrong], standbys=False) as pool:
        (result,) = mp_tuner([task(("s", 0), right)], [(1, None)], return_status=True, pool=pool)
        assert str(result.status) == "not_run"
        assert "instead of GPU-00000000" in pool.lanes[0].last_failure


BIND = """
import json, time
started = time.perf_counter()
import torch
imported = time.perf_counter()
from aiter_tuning.devices.device import load_kind
from aiter_tuning.devices.discovery import discover
device = discover({kind!r})[0]
kind = load_kind(device.kind)
before = time.perf_counter()
uuid = kind.bind(device)
bound = time.perf_counter()
kind.probe()
probed = time.perf_counter()
kind.probe()
again = time.perf_counter()
kind.synchronize(); kind.empty_cache()
print(json.dumps([uuid, device.uuid, imported - started, bound - before, probed - bound, again - probed]))
"""


def test_binding_and_the_probe_are_quick_enough_for_a_restart():
    uuid, expected, imported, bound, probed, again = in_child(BIND.format(kind=KIND))
    print(f"import torch {imported:.2f} s, bind {bound:.3f} s, probe {probed:.3f} s, again {again * 1e3:.2f} ms")
    assert uuid == expected
    assert bound + probed < 3.0


@needs_sensor
def test_the_sensor_reads_this_gpu():
    device = discover(KIND)[0]
    sensor = open_sensor(KIND)
    reading = sensor.read(device.uuid, device.settings["pci"])
    sensor.close()
    print(reading)
    assert reading.sm_mhz
    assert reading.sm_mhz > 100
    assert reading.temperature_c
    assert 10 < reading.temperature_c < 110


@needs_sensor
def test_a_stranger_on_the_gpu_is_seen_and_our_worker_is_not():
    device = discover(KIND)[0]
    code = (
        "import torch; x = torch.ones(1 << 24, device='cuda'); torch.cuda.synchronize(); print(1, flush=True); input()"
    )
    with Pool([device], standbys=False) as pool:
        pool.monitor.close()
        mp_tuner([task(("s", 0), right)], [(1, None)], pool=pool)
        monitor = Monitor([device], period_s=0.1)
        monitor.know([(device.uuid, pool.lanes[0].worker.pid)])
        monitor.start()
        wait_for(lambda: monitor.conditions(device.uuid) is not None, 20)
        calm = monitor.conditions(device.uuid)
        print(f"beside our worker: {calm} blind={monitor.blind!r}")
        # Not a child of this process any more once its parent has ended.
        stranger = subprocess.Popen(
            [sys.executable, "-c", "import os, sys\nif os.fork(): os._exit(0)\nos.setsid()\n" + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert stranger.stdout.readline().strip() == "1"
            reading = open_sensor(KIND).read(device.uuid, device.settings["pci"])
            print(f"with a stranger: {reading}")
            if not reading.processes:
                pytest.skip("the driver lists no processes in this container")
            wait_for(lambda: monitor.conditions(device.uuid).foreign, 20)
            assert "foreign" in monitor.flags(device)
            print(json.dumps(monitor.record(device.uuid)))
        finally:
            stranger.communicate("\n")
            monitor.close()
        # Where the driver lists the host's numbers, a context of this process itself cannot be told from a stranger's.
        if all(os.path.exists(f"/proc/{process.pid}") for process in reading.processes):
            assert not calm.foreign, f"taken for a stranger: {calm.foreign}"
