from types import SimpleNamespace

import pytest

from aiter_tuning.devices import amd_names, identity
from aiter_tuning.devices.identity import (
    GpuFacts,
    Identity,
    device_identity,
    facts_of,
    identity_of,
    normal_uuid,
    pci_address,
    uuid_of,
)
from op_tests.devices.fake_torch import cuda_properties, cuda_uuid, hip_properties


@pytest.mark.parametrize(
    ("capability", "gfx"), [((8, 0), "sm80"), ((9, 0), "sm90"), ((10, 3), "sm103"), ((12, 0), "sm120")]
)
def test_an_nvidia_gpu_is_called_by_its_compute_capability(capability, gfx):
    properties = cuda_properties(major=capability[0], minor=capability[1])
    assert identity_of(properties, hip=False, environ={}) == Identity(gfx, 132, "NVIDIA H200")


@pytest.mark.parametrize(
    ("arch", "reported", "environ", "gfx", "units"),
    [
        ("gfx942:sramecc+:xnack-", 304, {}, "gfx942", 304),
        ("gfx90a:sramecc+:xnack-", 110, {}, "gfx90a", 110),  # major.minor would make this sm90
        ("gfx950", 256, {}, "gfx950", 256),
        ("gfx1250", 256, {}, "gfx1250", 256),
        ("gfx1201", 32, {}, "gfx1201", 64),  # HIP counts work-group processors there
        ("gfx1100", 48, {}, "gfx1100", 96),
        ("gfx1030", 40, {}, "gfx1030", 80),
        ("gfx1201", 64, {"GPU_ENABLE_WGP_MODE": "0"}, "gfx1201", 64),
        ("gfx942", 304, {"GPU_ENABLE_WGP_MODE": "1"}, "gfx942", 304),
    ],
)
def test_an_amd_gpu_is_called_by_its_arch_without_features_and_counted_in_cus(arch, reported, environ, gfx, units):
    properties = hip_properties(gcnArchName=arch, multi_processor_count=reported)
    assert identity_of(properties, hip=True, environ=environ)[:2] == (gfx, units)


def test_a_model_is_one_line_without_stray_spaces_and_never_empty():
    assert identity_of(cuda_properties(name=" NVIDIA  H200 "), hip=False, environ={}).gpu_model == "NVIDIA H200"
    assert identity_of(hip_properties(name=""), hip=True, environ={}).gpu_model == "AMD gfx942"


@pytest.mark.parametrize(
    ("told", "device", "model"),
    [
        ("AMD Radeon Graphics", "0x74a1", "AMD Instinct MI300X"),
        ("AMD Radeon Graphics", "0x74a5", "AMD Instinct MI325X"),  # both are gfx942 with 304 CUs
        ("", "0x75a3", "AMD Instinct MI355X"),
        ("AMD Radeon Graphics", "0x164e", "AMD Radeon Graphics"),
        ("AMD Radeon Graphics", None, "AMD Radeon Graphics"),
        ("", None, "AMD gfx942"),
        ("AMD Instinct MI300X VF", "0x74a1", "AMD Instinct MI300X VF"),
    ],
)
def test_an_instinct_has_its_name_also_where_the_list_of_names_is_missing(monkeypatch, tmp_path, told, device, model):
    monkeypatch.setattr(amd_names, "PCI_DEVICES", tmp_path)
    if device is not None:
        (tmp_path / "0000:1b:00.0").mkdir()
        (tmp_path / "0000:1b:00.0" / "device").write_text(f"{device}\n")
    assert identity_of(hip_properties(name=told), hip=True, environ={}).gpu_model == model


def test_uuids_have_the_spelling_of_masks():
    assert uuid_of(cuda_properties(7), hip=False) == cuda_uuid(7)
    assert uuid_of(hip_properties(7), hip=True) == "GPU-000000000000abc7"  # torch has the digits as bytes
    nameless = cuda_properties()
    del nameless.uuid
    assert uuid_of(nameless, hip=False) == ""


@pytest.mark.parametrize("told", [b"XX", b"0" * 16, b""])
def test_an_amd_gpu_without_a_number_has_no_uuid_rather_than_that_of_every_other_one(told):
    properties = hip_properties(uuid=SimpleNamespace(bytes=list(told.ljust(16, b"\0"))))
    assert uuid_of(properties, hip=True) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [("GPU-AB12", "GPU-ab12"), ("gpu-ab12", "GPU-ab12"), ("ab12-CD", "GPU-ab12-cd"), ("MIG-AB", "MIG-ab")],
)
def test_one_spelling_for_a_uuid(text, expected):
    assert normal_uuid(text) == expected


def test_facts_hold_what_torch_tells():
    assert facts_of(cuda_properties(1), hip=False, environ={}) == GpuFacts(
        cuda_uuid(1), Identity("sm90", 132, "NVIDIA H200"), "0000:1c:00.0", 150754820096, 60 << 20
    )
    old = cuda_properties()
    del old.pci_domain_id
    assert facts_of(old, hip=False, environ={}).pci == ""
    assert pci_address(1, 0xE5, 0) == "0001:e5:00.0"


def test_the_lookup_asks_the_cpu_by_the_name_of_a_lane_of_all_cores():
    from aiter_tuning.devices.cpu import cpu_lanes

    (lane,) = cpu_lanes(1)
    expected = (lane.gfx, lane.cu_num, lane.gpu_model)
    assert device_identity("cpu") == expected
    assert device_identity() == expected  # there is no GPU


def test_the_lookup_and_a_bound_worker_ask_a_gpu_the_same_way(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: cuda_properties(major=8 + index))
    identity._gpu_identity.cache_clear()
    try:
        assert device_identity().gfx == device_identity(1).gfx == device_identity("cuda:1").gfx == "sm90"
        assert device_identity("cuda:0").gfx == "sm80"
        assert device_identity(1) == facts_of(cuda_properties(), hip=False, environ={}).identity
    finally:
        identity._gpu_identity.cache_clear()


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        (Identity("sm90", 132, "H200"), "H200 (sm90, 132 CUs)"),
        (Identity("gfx942", 1, "MI300X"), "MI300X (gfx942, 1 CU)"),
        (Identity("x86-64-v4", 2, "AMD EPYC"), "AMD EPYC (x86-64-v4, 2 cores)"),
    ],
)
def test_a_device_is_shown_with_the_units_that_it_has(named, shown):
    assert str(named) == shown
