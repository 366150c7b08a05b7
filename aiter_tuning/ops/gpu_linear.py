"""``gemm_bf16``: a linear layer in bf16 or fp16 that runs the kernel tuned for its shape.

::

    a, weight, bias ─▶ served here? ── no: other dtypes, strided rows, nothing to do ───▶ F.linear
                          └ yes ─▶ lookup, kept by (M, N, K, dtype, bias) ── a miss ─────▶ F.linear
                                        └ row ─▶ kernels.launch ── cannot be launched ──▶ F.linear, from now on
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from aiter_tuning.serving.bound import BoundLookup, bind, refuse
from aiter_tuning.status import describe

if TYPE_CHECKING:
    from aiter_tuning.tables.tuned_row import TunedRow

FAMILY = "gemm_bf16"
_DTYPES = frozenset({torch.bfloat16, torch.float16})
_TMA_BYTES = 16
"""A descriptor's rows start at multiples of so many bytes."""


def gemm_bf16(a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``a · weightᵀ + bias``, by the kernel that is tuned for this shape on this device, else by torch.

    Where a gradient is wanted torch computes it: kernels here have no backward.

    Args:
        a: (…, K), bf16 or fp16; other dtypes are left to torch, too.
        weight: (N, K), as in ``torch.nn.Linear``.
        bias: (N).

    Returns:
        (…, N) in a's dtype.
    """
    if torch.is_grad_enabled() and (
        a.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return linear(a, weight, bias)
    result: Tensor = _operator(a, weight, bias)
    return result


def _gemm_bf16(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = a if a.dim() == 2 else a.reshape(-1, a.shape[-1])
    row = _row_for(rows, weight, bias)
    if row is None or row.config["kernel"] == "linear":
        return linear(a, weight, bias)
    try:
        result = _launch()(rows, weight, bias, row.config)
    except Exception as error:
        refuse(FAMILY, row, describe(error))
        return linear(a, weight, bias)
    return result if a.dim() == 2 else result.reshape(*a.shape[:-1], weight.shape[0])


def _row_for(a: Tensor, weight: Tensor, bias: Tensor | None) -> TunedRow | None:
    """The tuned row for a call; None where torch has to do it."""
    m, k = a.shape
    n = weight.shape[0]
    if a.dtype not in _DTYPES or weight.dtype != a.dtype or not (m and n and k) or weight.shape[1:] != (k,):
        return None  # torch says what is wrong, if anything is
    row = _lookup(a.device)(m, n, k, a.dtype, bias is not None)
    if row is None or row.config["kernel"] == "linear":
        return row
    if a.stride(1) != 1 or weight.stride(1) != 1 or weight.device != a.device:
        return None
    if bias is not None and (bias.shape != (n,) or bias.stride(0) != 1 or bias.dtype != a.dtype):
        return None
    if row.config["kernel"].startswith("tma") and not (_aligned(a) and _aligned(weight)):
        return None
    return row


def _aligned(matrix: Tensor) -> bool:
    return not (matrix.data_ptr() % _TMA_BYTES or matrix.stride(0) * matrix.element_size() % _TMA_BYTES)


@functools.cache
def _lookup(device: torch.device) -> BoundLookup:
    return bind(FAMILY, device=str(device))


@functools.cache
def _launch() -> Callable[..., Tensor]:
    from aiter_tuning.ops.kernels.gemm_bf16 import launch  # Triton, which nobody needs without a tuned row

    return launch


def _fake(a: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return a.new_empty((*a.shape[:-1], weight.shape[0]))


# A definition and its implementation rather than torch.library.custom_op, whose wrapper costs 9 us a call on top of the
# dispatcher's 2.
torch.library.define("aiter_tuning::gemm_bf16", "(Tensor a, Tensor weight, Tensor? bias) -> Tensor")
torch.library.impl("aiter_tuning::gemm_bf16", "default", _gemm_bf16)
torch.library.register_fake("aiter_tuning::gemm_bf16", _fake)
_operator = torch.ops.aiter_tuning.gemm_bf16.default
