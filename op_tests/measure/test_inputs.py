"""Inputs, poison and pristine copies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from aiter_tuning.measure.inputs import Inputs, MissingInputError, seed_generators, tensors_in
from aiter_tuning.measure.poison import poison, poison_free_memory
from aiter_tuning.measure.pristine import Pristine, can_be_copied
from aiter_tuning.task import ALL_INPUTS

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e4m3fnuz, torch.float8_e8m0fnu, torch.complex64])
def test_floats_are_poisoned_with_nan(dtype: torch.dtype) -> None:
    tensor = torch.zeros(4, 4).to(dtype)
    poison([tensor])
    values = tensor if tensor.is_complex() else tensor.float()
    assert bool(values.isnan().all())


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
def test_no_integer_can_hide_in_both_poisons(dtype: torch.dtype) -> None:
    first, second = torch.zeros(4, 4, dtype=dtype), torch.zeros(4, 4, dtype=dtype)
    poison([first], turn=0)
    poison([second], turn=1)
    assert len(set(first.flatten().tolist())) == 1
    assert set(first.flatten().tolist()).isdisjoint(second.flatten().tolist())


def test_packed_types_and_views_are_poisoned_too() -> None:
    packed = torch.zeros(8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    poison([packed])
    assert set(packed.view(torch.uint8).tolist()) == {0xA5}
    whole = torch.zeros(4, 4)
    poison([whole[:, 1::2]])
    assert int(whole.isnan().sum()) == 8
    leaf = torch.zeros(3, requires_grad=True)
    poison([leaf])
    assert bool(leaf.isnan().all())


def test_memory_that_was_freed_does_not_come_back_with_old_results() -> None:
    like = torch.empty(1000)
    right = torch.full((1000,), 7.0)
    address = right.data_ptr()
    del right
    poison_free_memory([like])
    reused = torch.empty(1000)
    assert reused.data_ptr() != address or not bool((reused == 7.0).any())


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.complex128])
@pytest.mark.parametrize("shape", [(3,), (8, 8), (0,), ()])
def test_what_was_written_is_seen_and_put_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(dtype)
    before = tensor.clone()
    pristine = Pristine([tensor])
    assert not pristine.find_written()
    tensor.zero_()
    assert pristine.find_written() is (tensor.numel() > 0)
    pristine.dirty().restore()
    assert torch.equal(tensor, before)


def test_a_nan_that_stays_is_not_a_write_and_another_nan_is() -> None:
    tensor = torch.full((4,), math.nan)
    pristine = Pristine([tensor])
    assert not pristine.find_written()
    tensor.view(torch.int32)[2] += 1
    assert bool(tensor.isnan().all()) and pristine.find_written()


def test_a_write_that_torch_cannot_see_is_found_by_its_bits() -> None:
    tensor = torch.zeros(16)
    pristine = Pristine([tensor])
    tensor.detach().numpy()[3] = 5.0
    assert not pristine.written_for_torch()
    assert pristine.find_written()
    pristine.settle()
    assert not bool(tensor.any())


@pytest.mark.parametrize(
    "strided",
    [
        torch.arange(12.0).reshape(3, 4).t(),
        torch.arange(12.0)[1:],
        torch.arange(12.0)[::3],
        torch.arange(3.0).expand(4, 3),
        torch.arange(24.0).reshape(2, 3, 4)[:, 1:, ::2],
        torch.arange(6, dtype=torch.uint8)[1:4],
    ],
)
def test_views_of_every_stride_are_copied_and_restored(strided: torch.Tensor) -> None:
    before = strided.tolist()
    pristine = Pristine([strided])
    assert not pristine.find_written()
    strided.select(0, 0).fill_(99) if strided.stride(0) else strided[0].fill_(99)
    assert pristine.find_written()
    pristine.settle()
    assert strided.tolist() == before


@pytest.mark.parametrize("disturb", [lambda t: t.t_(), lambda t: t.resize_(2, 2), lambda t: t.set_(torch.zeros(5))])
def test_a_tensor_reshaped_in_place_gets_its_shape_back(disturb: Any) -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    pristine = Pristine([tensor])
    disturb(tensor)
    assert pristine.written_for_torch() and pristine.find_written()
    pristine.settle()
    assert tensor.shape == (3, 4) and torch.equal(tensor, torch.arange(12.0).reshape(3, 4))


def test_inference_tensors_are_protected_as_well() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(4)
    pristine = Pristine([tensor])
    with torch.inference_mode():
        tensor.fill_(1)
    assert pristine.find_written()


def test_sparse_tensors_and_meta_tensors_are_left_alone() -> None:
    assert not can_be_copied(torch.eye(3).to_sparse())
    assert not can_be_copied(torch.empty(3, device="meta"))
    assert can_be_copied(torch.empty(3))


def test_names_are_resolved_and_a_missing_one_is_told_with_those_there_are() -> None:
    inputs = Inputs({"a": 1, "b": 2}, "gen_data")
    assert inputs.arguments((["b", "a"], "tile", 3)) == (2, 1, "tile", 3)
    assert inputs.arguments(()) == ()
    with pytest.raises(MissingInputError, match="gen_data returned no 'x'; it returned a, b"):
        inputs.arguments((["a", "x"],))


def test_a_candidate_that_takes_all_inputs_cannot_add_to_those_of_its_neighbours() -> None:
    inputs = Inputs({"a": 1}, "gen_data")
    (everything, extra) = inputs.arguments((ALL_INPUTS, 5))
    everything["b"] = 2
    assert extra == 5 and inputs.values == {"a": 1} and inputs.names((ALL_INPUTS,)) == ("a",)


def test_tensors_are_found_in_nested_values() -> None:
    tensors = [torch.zeros(i) for i in range(4)]
    nested = {"a": tensors[0], "b": [tensors[1], (tensors[2], None)], "c": {"d": tensors[3]}, "e": 5}
    assert [tensor.numel() for tensor in tensors_in(nested)] == [0, 1, 2, 3]


def test_one_seed_makes_one_set_of_inputs() -> None:
    import random

    import numpy as np

    def draw() -> tuple[float, float, float]:
        seed_generators(3)
        return random.random(), float(torch.rand(1)), float(np.random.rand())

    assert draw() == draw()
