"""What no device can do, and what does not fit on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.devices.device import Device
from aiter_tuning.measure.plausibility import MARGIN, Limits, implausible, limits_of
from aiter_tuning.measure.preflight import shortfall
from aiter_tuning.measure.statistics import is_launch_bound, is_still_running
from aiter_tuning.tuner.family import Work

GEMM = Work(flops=2.0 * 4096**3, bytes=3.0 * 2 * 4096**2)
H200 = {"peak_flops_per_s": 989.5e12, "peak_bytes_per_s": 4.8e12}


def test_a_gemm_at_the_speed_of_the_device_is_believed_and_one_twice_as_fast_is_not() -> None:
    assert implausible(170.0, GEMM, **H200, cold_cache=True) == ""
    said = implausible(50.0, GEMM, **H200, cold_cache=True)
    assert said == "50.000 us cannot be: that is 2749 TFLOP/s, and the device's peak is 989.5"


def test_bandwidth_counts_only_where_the_cache_is_cold() -> None:
    copy = Work(flops=0.0, bytes=16.0 * (1 << 20))
    assert "GB/s" in implausible(1.5, copy, **H200, cold_cache=True)
    assert implausible(1.5, copy, **H200, cold_cache=False) == ""
    assert implausible(4.0, copy, **H200, cold_cache=True) == ""


@given(st.floats(0.01, 1e6), st.floats(0, 1e16), st.floats(0, 1e13))
def test_nothing_is_refused_on_a_device_that_nobody_knows(us: float, flops: float, size: float) -> None:
    assert implausible(us, Work(flops, size), peak_flops_per_s=0.0, peak_bytes_per_s=0.0, cold_cache=True) == ""


@given(st.floats(0.1, 1e5), st.floats(0.01, 10))
def test_the_bound_is_one_and_a_half_times_the_peak(us: float, share: float) -> None:
    work = Work(flops=share * MARGIN * 1e15 * us * 1e-6, bytes=0.0)
    refused = implausible(us, work, peak_flops_per_s=1e15, peak_bytes_per_s=0.0, cold_cache=True) != ""
    if abs(share - 1) > 1e-6:
        assert refused is (share > 1)


def test_narrow_operands_may_be_faster_and_wide_ones_may_not() -> None:
    device = Device("", "cuda0", "GPU-1", gfx="sm90", cu_num=132, gpu_model="NVIDIA H200")
    limits = limits_of(device)
    assert limits is not None and limits.bytes_per_s == 4.8e12
    assert limits.of_operands(1) == 1979e12
    assert limits.of_operands(2) == pytest.approx(989.5e12)
    assert limits.of_operands(8) == limits.of_operands(4) == pytest.approx(494.7e12)
    assert Limits({}).of_operands(2) == 0.0


def test_an_unknown_device_has_no_limits() -> None:
    assert limits_of(Device("", "cuda0", "GPU-1", gfx="sm999", cu_num=1, gpu_model="Imaginary 9000")) is None


def test_a_workspace_that_does_not_fit_is_said_in_gib() -> None:
    assert shortfall(1 << 30, 1 << 30) == ""
    assert shortfall(1 << 30, 3 << 30) == "needs 3.00 GiB of workspace beside its inputs, and 1.00 GiB are free"


def test_a_launch_is_the_bound_only_where_it_takes_much_longer() -> None:
    assert is_launch_bound(2.0, event_us=12.0)
    assert not is_launch_bound(10.0, event_us=15.0)
    assert not is_launch_bound(1.0, event_us=3.0), "noise of events"
    assert is_launch_bound(20.0, launching_us=19.0)
    assert not is_launch_bound(200.0, launching_us=19.0)


def test_a_device_that_goes_on_for_long_is_still_running() -> None:
    assert is_still_running(5000.0, 100.0)
    assert not is_still_running(150.0, 10.0) and not is_still_running(900.0, 5000.0)
