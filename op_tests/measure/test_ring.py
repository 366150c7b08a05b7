"""How many copies of the inputs, and what a copy is."""

from __future__ import annotations

from collections import namedtuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.measure.gpu.ring import (
    ENOUGH_CACHES,
    MOST_COPIES,
    RingPlan,
    SharedRing,
    bytes_of,
    copy_of,
    plan_ring,
)
from aiter_tuning.measure.timer import Call

MB = 1 << 20
L2 = 60 * MB


def test_a_ring_is_three_times_the_cache_where_there_is_memory() -> None:
    assert plan_ring(34 * MB, L2, 100 << 30) == (6, 0, True)
    assert plan_ring(8 * MB, L2, 100 << 30) == (23, 0, True)


def test_inputs_that_fill_the_cache_three_times_need_no_copy() -> None:
    assert plan_ring(400 * MB, L2, 100 << 30) == (1, 0, True)


def test_small_inputs_are_copied_as_often_as_a_graph_has_calls_and_the_cache_is_flushed() -> None:
    assert plan_ring(MB, L2, 100 << 30) == (MOST_COPIES, 2 * L2, True)


def test_a_call_without_tensors_has_nothing_to_copy() -> None:
    assert plan_ring(0, L2, 100 << 30) == (1, 2 * L2, True)


@given(st.integers(0, 1 << 36), st.integers(1, 1 << 29), st.integers(0, 1 << 38))
def test_a_ring_fits_in_half_of_what_is_free_and_is_cold_or_says_that_it_is_not(
    call_bytes: int, cache_bytes: int, free_bytes: int
) -> None:
    plan = plan_ring(call_bytes, cache_bytes, free_bytes)
    assert 1 <= plan.copies <= MOST_COPIES
    assert (plan.copies - 1) * call_bytes + plan.flush_bytes <= free_bytes / 2
    enough = plan.copies * call_bytes >= ENOUGH_CACHES * cache_bytes
    assert plan.cold == (enough or plan.flush_bytes > 0)


def test_a_copy_has_other_memory_and_the_same_strides_offsets_and_sharing() -> None:
    Pair = namedtuple("Pair", "left right")
    base = torch.arange(64, dtype=torch.float32)
    weight = torch.randn(8, 4, requires_grad=True)
    call = Call(
        len,
        (base[8:40].view(4, 8).t(), {"w": weight, "n": 3}, [base, None], Pair(base[:4].expand(2, 4), "x")),
        {"bias": torch.zeros(3, dtype=torch.bfloat16)},
    )
    copy = copy_of(call)
    view, mapping, listed, pair = copy.args
    assert copy.func is len and mapping["n"] == 3 and pair.right == "x" and type(pair) is Pair
    assert view.stride() == (1, 8) and view.storage_offset() == 8 and torch.equal(view, call.args[0])
    assert view.untyped_storage().data_ptr() == listed[0].untyped_storage().data_ptr() != base.data_ptr()
    assert pair.left.stride() == (0, 1)
    assert mapping["w"].requires_grad and mapping["w"].data_ptr() != weight.data_ptr()
    assert copy.kwargs["bias"].dtype is torch.bfloat16
    assert bytes_of(call) == bytes_of(copy) == 64 * 4 + 32 * 4 + 6


def test_what_cannot_be_copied_is_shared() -> None:
    class Own(torch.Tensor):
        pass

    own = torch.zeros(4).as_subclass(Own)
    sparse = torch.eye(3).to_sparse()
    call = Call(len, (own, sparse, "text"), {})
    assert all(a is b for a, b in zip(copy_of(call).args, call.args, strict=True)) and bytes_of(call) == 0


def test_calls_that_share_inputs_share_the_copies_of_a_ring() -> None:
    a, b, c = torch.ones(64), torch.ones(64), torch.ones(64)
    calls = [Call(len, (a, b), {}), Call(max, (b[8:], {"a": a}), {}), Call(min, (c,), {})]
    assert bytes_of(*calls) == 3 * 256
    first, second, third = (ring.calls for ring in SharedRing(calls, RingPlan(3, 0, True)).rings)
    assert (first[0], second[0], third[0]) == tuple(calls)
    for ours, theirs, others in zip(first[1:], second[1:], third[1:], strict=True):
        assert ours.args[0].data_ptr() == theirs.args[1]["a"].data_ptr() != a.data_ptr()
        assert ours.args[1].data_ptr() + 32 == theirs.args[0].data_ptr()
        assert others.args[0].data_ptr() not in (c.data_ptr(), ours.args[0].data_ptr())
    assert first[1].args[0].data_ptr() != first[2].args[0].data_ptr()
