import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.devices.identity import Identity
from aiter_tuning.devices.peaks import (
    _BY_MODEL,
    last_level_cache_bytes,
    peaks_of,
)


@pytest.mark.parametrize(
    ("model", "gfx", "units", "bf16", "gb_per_s"),
    [
        ("NVIDIA H200", "sm90", 132, 989.5, 4800),
        ("NVIDIA H200 NVL", "sm90", 132, 835.5, 4800),
        ("NVIDIA H100 80GB HBM3", "sm90", 132, 989.5, 3350),
        ("NVIDIA H100 PCIe", "sm90", 114, 756.5, 2039),
        ("NVIDIA A100-SXM4-80GB", "sm80", 108, 312, 2039),
        ("NVIDIA A100-SXM4-40GB", "sm80", 108, 312, 1555),
        ("NVIDIA A100 80GB PCIe", "sm80", 108, 312, 2039),
        ("NVIDIA A10", "sm86", 72, 125, 600),
        ("NVIDIA A10G", "sm86", 80, 140, 600),
        ("NVIDIA L4", "sm89", 58, 121, 300),
        ("NVIDIA L40S", "sm89", 142, 366, 864),
        ("NVIDIA B200", "sm100", 148, 2250, 8000),
        ("NVIDIA GB200", "sm100", 152, 2500, 8000),
        ("NVIDIA GH200 480GB", "sm90", 132, 989.5, 4900),
        ("NVIDIA GeForce RTX 4090", "sm89", 128, 165.2, 1008),
        ("NVIDIA GeForce RTX 5090", "sm120", 170, 209.5, 1792),
        ("NVIDIA RTX 6000 Ada Generation", "sm89", 142, 364.2, 960),
        ("AMD Instinct MI250X/MI250", "gfx90a", 110, 191.5, 1638),
        ("AMD Instinct MI250X / MI250", "gfx90a", 104, 191.5 * 104 / 110, 1638),
        ("AMD Instinct MI300X VF", "gfx942", 304, 1307.4, 5325),
        ("AMD Instinct MI210", "gfx90a", 104, 181, 1638),
        ("AMD Instinct MI300X", "gfx942", 304, 1307.4, 5325),
        ("AMD Instinct MI325X", "gfx942", 304, 1307.4, 6000),
        ("AMD Instinct MI355X", "gfx950", 256, 2516.6, 8000),
        ("AMD Radeon Graphics", "gfx942", 304, 1307.4, 6000),  # a container that lacks the names
    ],
)
def test_common_gpus_have_bounds(model, gfx, units, bf16, gb_per_s):
    peaks = peaks_of(Identity(gfx, units, model))
    assert peaks.tflops["bf16"] == pytest.approx(bf16)
    assert peaks.bytes_per_s == gb_per_s * 1e9


@pytest.mark.parametrize("model", ["NVIDIA H300", "NVIDIA A1000", "Tesla K80", "AMD EPYC 9654", "", "Fake H2000"])
def test_an_unknown_gpu_has_none(model):
    device = Identity("sm90", 132, model)
    assert peaks_of(device) is None
    assert last_level_cache_bytes(device, 123) == 123


def test_a_part_of_a_gpu_has_its_share_of_the_arithmetic():
    whole = peaks_of(Identity("sm80", 108, "NVIDIA A100-SXM4-40GB"))
    part = peaks_of(Identity("sm80", 14, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"))
    assert part.tflops["bf16"] == pytest.approx(whole.tflops["bf16"] * 14 / 108)
    assert part.bytes_per_s == whole.bytes_per_s
    partition = peaks_of(Identity("gfx942", 38, "AMD Instinct MI300X"))
    assert partition.tflops["fp8"] == pytest.approx(2614.9 / 8)


def test_dtypes_have_their_own_bounds():
    h200 = peaks_of(Identity("sm90", 132, "NVIDIA H200")).tflops
    assert h200["fp8"] > h200["bf16"] > h200["fp32"]
    assert "fp64" not in h200
    assert "bf16" not in peaks_of(Identity("sm70", 80, "Tesla V100-SXM2-16GB")).tflops


def test_the_last_cache_is_torchs_l2_but_for_infinity_cache():
    assert last_level_cache_bytes(Identity("sm90", 132, "NVIDIA H200"), 50 << 20) == 50 << 20
    assert last_level_cache_bytes(Identity("sm90", 132, "NVIDIA H200")) == 60 << 20
    assert last_level_cache_bytes(Identity("gfx942", 304, "AMD Instinct MI300X"), 4 << 20) == 256 << 20
    assert last_level_cache_bytes(Identity("gfx90a", 110, "AMD Instinct MI250X"), 8 << 20) == 8 << 20


@pytest.mark.parametrize(("gfx", "model"), [("gfx1030", "AMD Radeon RX 6900 XT"), ("gfx1151", "AMD Radeon 8060S")])
def test_the_l2_of_an_amd_gpu_that_is_not_in_the_table_is_not_taken_for_its_last_cache(gfx, model):
    assert last_level_cache_bytes(Identity(gfx, 80, model), 4 << 20) == 0


@given(st.sampled_from(sorted(_BY_MODEL)), st.sampled_from(["NVIDIA", "AMD Instinct", ""]), st.integers(1, 400))
def test_every_entry_is_found_by_its_own_name_and_is_plausible(name, vendor, units):
    peaks = peaks_of(Identity("sm0", units, f"{vendor} {name}"))
    assert peaks is not None
    assert peaks.units == _BY_MODEL[name].units
    assert 2e11 < peaks.bytes_per_s < 1e13
    assert 0 < peaks.l2_bytes <= peaks.llc_bytes
    assert all(0 < tflops < 2e4 for tflops in peaks.tflops.values())
    assert peaks.tflops["fp32"] < peaks.tflops["fp16"]
