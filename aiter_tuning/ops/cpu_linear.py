"""``gemm_cpu``: a linear layer on the CPU that runs the way tuned for its shape.

::

    a, weight, bias ─▶ lookup ── a miss, or a way that copies a weight not said to be constant ──▶ F.linear
                          └ row ─▶ the weight prepared for this config, once ─▶ ways.run

Many ways compute from a copy of the weight: packed, transposed, cut. It is kept as long as the weight lives. torch
counts most writes to a tensor, but not those through ``.data`` or in inference mode, after which a copy would be
silently wrong: so copies are made only of weights that the caller says are constant.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from aiter_tuning.ops.kernels import gemm_cpu as ways
from aiter_tuning.serving.bound import BoundLookup, bind, refuse
from aiter_tuning.status import describe
from aiter_tuning.tables.tuned_row import TunedRow

FAMILY = "gemm_cpu"
_DTYPES = frozenset({torch.float32, torch.bfloat16})


def gemm_cpu(a: Tensor, weight: Tensor, bias: Tensor | None = None, *, constant_weight: bool = False) -> Tensor:
    """``a · weightᵀ + bias``, in the way that is tuned for this shape on this CPU, else by torch.

    Where a gradient is wanted torch computes it.

    Args:
        a: (…, K), fp32 or bf16, on the CPU; everything else is left to torch.
        weight: (N, K), as in ``torch.nn.Linear``.
        bias: (N).
        constant_weight: whether the weight is not written any more and the same tensor is passed each time. Without
            it, ways that copy the weight are left to torch.

    Returns:
        (…, N) in a's dtype.
    """
    if torch.is_grad_enabled() and (
        a.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return linear(a, weight, bias)
    result: Tensor = _operator(a, weight, bias, constant_weight)
    return result


def _gemm_cpu(a: Tensor, weight: Tensor, bias: Tensor | None, constant_weight: bool) -> Tensor:
    rows = a if a.dim() == 2 else a.reshape(-1, a.shape[-1])
    row = _row_for(rows, weight, bias)
    if row is None:
        return linear(a, weight, bias)
    try:
        if not constant_weight and ways.WAYS[row.config["kernel"]].copies:
            return linear(a, weight, bias)
        result = _run(rows, weight, bias, row)
    except Exception as error:
        refuse(FAMILY, row, describe(error))
        return linear(a, weight, bias)
    return result if a.dim() == 2 else result.reshape(*a.shape[:-1], weight.shape[0])


def _row_for(a: Tensor, weight: Tensor, bias: Tensor | None) -> TunedRow | None:
    """The tuned row for a call; None where torch has to do it."""
    m, k = a.shape
    n = weight.shape[0]
    if a.device.type != "cpu" or a.dtype not in _DTYPES or weight.dtype != a.dtype or weight.shape[1:] != (k,):
        return None  # torch says what is wrong, if anything is
    if not (m and n and k and weight.is_contiguous() and a.is_contiguous()):
        return None
    if bias is not None and (bias.shape != (n,) or bias.dtype != a.dtype or not bias.is_contiguous()):
        return None
    return _lookup()(m, n, k, a.dtype, bias is not None)


@functools.cache
def _lookup() -> BoundLookup:
    return bind(FAMILY)


def _run(a: Tensor, weight: Tensor, bias: Tensor | None, row: TunedRow) -> Tensor:
    inputs = {"a": a, "weight": weight, "bias": bias, "packed": _packed(weight, row)}
    threads = row.config.get("threads")
    if threads is None:
        return ways.run(inputs, row.config)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return ways.run(inputs, row.config)
    finally:
        torch.set_num_threads(before)


class _Copies:
    """What the ways have made of one weight, by kernel and how it was made."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.made: dict[tuple[object, ...], Any] = {}


_copies: dict[int, _Copies] = {}
"""By the weight's id, which is nobody else's while the weight lives."""


def _packed(weight: Tensor, row: TunedRow) -> Any:
    """The weight as the row's way wants it."""
    config = row.config
    if not ways.WAYS[config["kernel"]].copies:
        return ways.prepare({"weight": weight}, config).get("packed")
    version = 0 if weight.is_inference() else weight._version  # a write that does count is not ignored
    mine = _copies.get(id(weight))
    if mine is None or mine.version != version:
        if mine is None:
            weakref.finalize(weight, _copies.pop, id(weight), None)
        mine = _copies[id(weight)] = _Copies(version)
    how = (config["kernel"], config.get("parts"), config.get("batch"))
    if how not in mine.made:
        mine.made[how] = ways.prepare({"weight": weight}, config)["packed"]
    return mine.made[how]


def _fake(a: Tensor, weight: Tensor, bias: Tensor | None, constant_weight: bool) -> Tensor:
    return a.new_empty((*a.shape[:-1], weight.shape[0]))


# Not by torch.library.custom_op, whose wrapper costs 9 us a call on top of the dispatcher's 2.
torch.library.define(
    "aiter_tuning::gemm_cpu", "(Tensor a, Tensor weight, Tensor? bias, bool constant_weight) -> Tensor"
)
torch.library.impl("aiter_tuning::gemm_cpu", "default", _gemm_cpu)
torch.library.register_fake("aiter_tuning::gemm_cpu", _fake)
_operator = torch.ops.aiter_tuning.gemm_cpu.default
