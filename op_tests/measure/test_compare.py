"""What counts as right, as a table of cases."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aiter_tuning.measure import compare as compare_module
from aiter_tuning.measure.compare import RIGHT, Tolerance, compare

DEFAULT = Tolerance()


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.linspace(-2, 2, math.prod(shape)).reshape(shape).to(dtype)


def changed(tensor: torch.Tensor, *positions: int, to: float) -> torch.Tensor:
    copy = tensor.clone()
    copy.view(-1)[list(positions)] = to
    return copy


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.complex64,
    ],
)
def test_equal_tensors_of_every_type_are_right(dtype: torch.dtype) -> None:
    assert compare(ramp(8, 8, dtype=dtype), ramp(8, 8, dtype=dtype), DEFAULT) == RIGHT


def test_values_within_the_tolerance_are_right() -> None:
    assert compare(ramp(64), ramp(64) * 1.005 + 0.005, DEFAULT) == RIGHT


def test_the_error_ratio_is_the_fraction_of_wrong_elements_and_the_detail_shows_the_worst() -> None:
    reference = torch.ones(4, 1024)
    result = reference.clone()
    result.view(-1)[:1536] = 1.5
    result[0, 17] = 5.0
    comparison = compare(reference, result, DEFAULT)
    assert comparison.err_ratio == 0.375
    assert comparison.detail == "37.5 % of 4096 elements differ; worst |Δ| 4 at [0, 17]: 5 instead of 1"


def test_a_few_slightly_wrong_elements_give_their_fraction() -> None:
    assert compare(torch.ones(100), changed(torch.ones(100), 3, 5, to=1.3), DEFAULT).err_ratio == 0.02


def test_the_worst_element_shown_is_one_of_the_wrong_ones() -> None:
    reference = torch.full((100,), 1000.0)
    reference[7] = 0.0
    result = reference + 9.0
    comparison = compare(reference, result, DEFAULT)
    assert comparison.err_ratio == 0.01
    assert "at [7]: 9 instead of 0" in comparison.detail


# reference peak, one element of 1000 off by this, max_abs_delta, expected ratio
CATASTROPHES = [
    (1.0, 0.4, None, 0.001),
    (1.0, 0.6, None, 1.0),
    (0.01, 0.4, None, 0.001),
    (0.01, 0.6, None, 1.0),
    (100.0, 40.0, None, 0.001),
    (100.0, 60.0, None, 1.0),
    (1.0, 0.6, 0.7, 0.001),
    (1.0, 0.6, 0.5, 1.0),
    (100.0, 40.0, 30.0, 1.0),
    (100.0, 60.0, 70.0, 0.001),
    (1.0, math.inf, None, 1.0),
    (1.0, math.nan, None, 1.0),
    (1.0, math.nan, 5.0, 1.0),
]


@pytest.mark.parametrize(("peak", "off_by", "max_abs_delta", "expected"), CATASTROPHES)
def test_one_absurd_element_among_a_thousand_makes_the_result_wrong(
    peak: float, off_by: float, max_abs_delta: float | None, expected: float
) -> None:
    reference = torch.zeros(1000)
    reference[0] = peak
    result = reference.clone()
    result[500] = off_by
    comparison = compare(reference, result, Tolerance(max_abs_delta=max_abs_delta))
    assert comparison.err_ratio == pytest.approx(expected)
    assert ("counted as wrong altogether" in comparison.detail) is (expected == 1.0)


def test_a_delta_beyond_max_abs_delta_is_wrong_even_within_the_relative_tolerance() -> None:
    reference = torch.full((10,), 10_000.0)
    assert compare(reference, reference + 50, DEFAULT) == RIGHT
    assert compare(reference, reference + 50, Tolerance(max_abs_delta=20)).err_ratio == 1.0


def test_a_fraction_that_is_rejected_anyway_is_kept() -> None:
    result = changed(torch.ones(100), *range(50), to=math.nan)
    comparison = compare(torch.ones(100), result, DEFAULT)
    assert comparison.err_ratio == 0.5
    assert "50 are NaN (computed, or never written)" in comparison.detail


def test_an_accepted_fraction_includes_equality() -> None:
    result = changed(torch.ones(100), 1, 2, 3, 4, 5, to=99.0)
    assert compare(torch.ones(100), result, DEFAULT).err_ratio == 1.0, "5 % is still accepted, so absurdity decides"
    assert compare(torch.ones(100), result, Tolerance(err_ratio=0.04)).err_ratio == 0.05


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integers_are_compared_by_value_and_never_absurd(dtype: torch.dtype) -> None:
    reference = torch.full((100,), 3, dtype=dtype)
    comparison = compare(reference, changed(reference, 4, to=100), DEFAULT)
    assert comparison.err_ratio == 0.01
    assert "worst |Δ| 97 at [4]: 100 instead of 3" in comparison.detail


def test_large_integers_that_differ_by_one_are_told_apart_without_tolerance() -> None:
    reference = torch.tensor([2**53, 5])
    assert compare(reference, reference + torch.tensor([1, 0]), Tolerance(rtol=0, atol=0)).err_ratio == 0.5


def test_8_bit_floats_are_compared_by_value_not_by_bits() -> None:
    reference = torch.tensor([0.0, 1.0, 448.0, -0.5] * 25).to(torch.float8_e4m3fn)
    result = torch.tensor([-0.0, 1.0, 448.0, -0.5] * 25).to(torch.float8_e4m3fn)
    assert not torch.equal(reference.view(torch.uint8), result.view(torch.uint8))
    assert compare(reference, result, DEFAULT) == RIGHT
    off = compare(reference, changed(result.float(), 5, to=1.125).to(torch.float8_e4m3fn), DEFAULT)
    assert off.err_ratio == 0.01
    assert "1.125 instead of 1" in off.detail


def test_results_of_another_precision_are_compared_after_a_cast() -> None:
    # kernel_tuner#245: a TypeError where only the precision differed.
    assert compare(ramp(64, dtype=torch.float64), ramp(64), DEFAULT) == RIGHT
    assert compare(ramp(64), ramp(64, dtype=torch.bfloat16), DEFAULT) == RIGHT
    assert compare(ramp(64, dtype=torch.float64), ramp(64) + 1, DEFAULT).err_ratio > 0.9


@pytest.mark.parametrize("shape", [(8, 4), (32,), (4, 8, 1), (4, 7)])
def test_another_shape_is_wrong_and_both_are_named(shape: tuple[int, ...]) -> None:
    comparison = compare(torch.ones(4, 8), torch.ones(shape), DEFAULT)
    assert comparison == (1.0, f"shape {list(shape)} instead of [4, 8]")


def test_nan_is_never_right_unless_asked_for() -> None:
    reference = changed(torch.ones(100), 9, to=math.nan)
    assert compare(reference, reference.clone(), DEFAULT).err_ratio == 1.0
    assert compare(reference, reference.clone(), Tolerance(equal_nan=True)) == RIGHT
    elsewhere = changed(torch.ones(100), 8, to=math.nan)
    assert compare(reference, elsewhere, Tolerance(equal_nan=True)).err_ratio == 1.0


def test_nan_in_the_same_place_does_not_condemn_a_slight_error_elsewhere() -> None:
    reference = changed(torch.ones(100), 9, to=math.nan)
    assert compare(reference, changed(reference, 4, to=1.2), Tolerance(equal_nan=True)).err_ratio == 0.01


def test_equal_infinities_are_right_and_others_are_not() -> None:
    reference = changed(torch.ones(100), 9, to=math.inf)
    assert compare(reference, reference.to(torch.float64), DEFAULT) == RIGHT
    assert compare(reference, changed(reference, 9, to=-math.inf), DEFAULT).err_ratio == 1.0
    assert compare(reference, changed(reference, 9, to=3e38), DEFAULT).err_ratio == 1.0


def test_row_wise_takes_the_worst_row() -> None:
    reference = torch.ones(100, 10)
    result = reference.clone()
    result[42, :5] = 1.3
    assert compare(reference, result, DEFAULT).err_ratio == 0.005
    row_wise = compare(reference, result, Tolerance(row_wise=True))
    assert row_wise.err_ratio == 0.5
    assert "50 % of row [42]" in row_wise.detail


def test_the_worst_of_several_outputs_counts_and_is_named() -> None:
    right, off = torch.ones(10), changed(torch.ones(10), 0, 1, 2, to=1.3)
    assert compare([right, right], [right, right], DEFAULT) == RIGHT
    comparison = compare([right, right, right], (right, off, right), DEFAULT)
    assert comparison.err_ratio == 0.3
    assert comparison.detail.startswith("output 1: 30 % of 10")
    assert compare({"c": right, "lse": off}, {"lse": right, "c": right}, DEFAULT).detail.startswith("output lse: ")


@pytest.mark.parametrize(
    ("reference", "result", "expected"),
    [
        ([torch.ones(3), None, "text", 5], [torch.ones(3), 7, 8, 9], 0.0),
        ([torch.ones(3), torch.ones(3)], [torch.ones(3)], 1.0),
        (torch.ones(3), [torch.ones(3), "beyond"], 0.0),
        (torch.ones(3), "text", 1.0),
        (torch.ones(3), None, 1.0),
        (np.ones(3), torch.ones(3), 0.0),
        (np.ones(3), torch.zeros(3), 1.0),
        (torch.ones(3), np.ones(3), 0.0),
        (torch.ones(0, 5), torch.ones(0, 5), 0.0),
        (torch.tensor(2.0), torch.tensor(2.0), 0.0),
        (torch.tensor(2.0), torch.tensor(3.0), 1.0),
    ],
)
def test_outputs_of_every_form_are_paired_with_the_reference(reference: Any, result: Any, expected: float) -> None:
    assert compare(reference, result, DEFAULT).err_ratio == expected


@pytest.mark.parametrize(("given", "stored"), [(0.09, 0.09), (0.0, 0.0), (1.7, 1.7), (math.nan, 1.0), (math.inf, 1.0)])
def test_the_value_of_a_compare_fn_is_taken_as_it_is(given: float, stored: float) -> None:
    # aiter#4331: a metric below 0.1 was floored to 0.
    seen: list[Any] = []

    def compare_fn(reference: torch.Tensor, result: torch.Tensor, *, msg: str, printLog: bool) -> float:
        seen.append((tuple(reference.shape), tuple(result.shape), msg, printLog))
        return given

    assert compare(torch.ones(3), torch.ones(4), DEFAULT, compare_fn).err_ratio == stored
    assert seen == [((3,), (4,), "output 0", False)]


def test_an_assertion_in_a_compare_fn_means_wrong() -> None:
    def strict(reference: torch.Tensor, result: torch.Tensor, **_: object) -> float:
        if not torch.equal(reference, result):
            raise AssertionError("not\nbit by bit")
        return 0.0

    assert compare(torch.ones(3), torch.zeros(3), DEFAULT, strict) == (1.0, "compare_fn: not bit by bit")


def test_tensors_that_are_not_contiguous_are_compared_in_place() -> None:
    reference = ramp(32, 16)
    assert compare(reference, ramp(32, 16).t().contiguous().t(), DEFAULT) == RIGHT
    off = ramp(32, 16)
    off[3, 2] += 0.2
    assert "at [3, 2]" in compare(reference, off.t().contiguous().t(), DEFAULT).detail


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_chunked_walk_agrees_with_isclose(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(1,), (7,), (3, 5), (4, 3, 6), (2, 40)]))
    special = st.sampled_from([0.0, 1.0, 1.005, 1.2, -3.0, 1e4, math.nan, math.inf, -math.inf, 3e38])
    values = st.lists(special, min_size=math.prod(shape), max_size=math.prod(shape))
    reference = torch.tensor(data.draw(values)).reshape(shape)
    result = torch.tensor(data.draw(values)).reshape(shape)
    equal_nan = data.draw(st.booleans())
    expected = (~torch.isclose(result, reference, 1e-2, 1e-2, equal_nan=equal_nan)).double().mean().item()
    original = compare_module.CPU_CHUNK
    compare_module.CPU_CHUNK = data.draw(st.integers(1, 50))
    try:
        # err_ratio below any fraction: nothing is turned into 1.0.
        got = compare(reference, result, Tolerance(err_ratio=-1.0, equal_nan=equal_nan)).err_ratio
        rows = compare(reference, result, Tolerance(err_ratio=-1.0, equal_nan=equal_nan, row_wise=True)).err_ratio
    finally:
        compare_module.CPU_CHUNK = original
    assert got == pytest.approx(expected)
    by_row = (~torch.isclose(result, reference, 1e-2, 1e-2, equal_nan=equal_nan)).double().mean(dim=-1).max().item()
    assert rows == pytest.approx(by_row)


def test_a_large_result_is_compared_without_float_copies_of_it() -> None:
    import resource

    reference = torch.zeros(1 << 25, dtype=torch.bfloat16)
    result = reference + 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert compare(reference, result, DEFAULT).err_ratio == 1.0
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < 64, "one float32 copy of the result alone takes 128 MB"


@pytest.mark.parametrize("reference", [3.0, 2, "2", True, [], {}, [None, 2.0], [2.0] * 64, {"y": None}])
def test_a_reference_without_a_tensor_proves_nothing(reference: Any) -> None:
    comparison = compare(reference, ramp(64), DEFAULT)
    assert comparison.err_ratio == 1.0
    assert comparison.detail.startswith("nothing to compare with: the reference is ")
    assert comparison.detail.endswith("without a tensor in it; expected a tensor, or a list or dict of tensors")


def test_entries_beside_the_tensors_of_a_reference_are_skipped() -> None:
    assert compare([ramp(64), None, 7], [ramp(64), "x"], DEFAULT) == RIGHT


def test_outputs_may_be_nested_as_those_of_an_lstm() -> None:
    reference = (ramp(64), (ramp(8), {"c": ramp(4)}))
    assert compare(reference, (ramp(64), (ramp(8), {"c": ramp(4)})), DEFAULT) == RIGHT
    wrong = compare(reference, (ramp(64), (ramp(8), {"c": ramp(4) + 9})), DEFAULT)
    assert wrong.err_ratio == 1.0 and wrong.detail.startswith("output 1.1.c: 100 % of 4 elements differ")
    flat = compare(reference, (ramp(64), ramp(8)), DEFAULT)
    assert flat.err_ratio == 1.0 and flat.detail == "output 1.1.c: 0 outputs instead of 1"


def test_complex_results_are_compared_by_the_size_of_their_difference() -> None:
    reference = torch.polar(torch.ones(64), torch.linspace(0, 3, 64))
    assert compare(reference, reference * (1 + 1e-4j), DEFAULT) == RIGHT
    wrong = compare(reference, reference * 2j, DEFAULT)
    assert wrong.err_ratio == 1.0 and wrong.detail.startswith("100 % of 64 elements differ; worst |Δ| 2.23607 at ")
    assert compare(reference, reference.conj(), DEFAULT).err_ratio == 63 / 64
    assert compare(reference, reference.real, DEFAULT).err_ratio == 63 / 64
    one_nan = changed(reference, 3, to=math.nan)
    assert compare(reference, one_nan, DEFAULT).err_ratio == 1.0
    assert compare(one_nan, one_nan.clone(), Tolerance(equal_nan=True)) == RIGHT
