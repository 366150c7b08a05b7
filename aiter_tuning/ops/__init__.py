"""Operators that serve: each looks up which kernel is tuned for what it is given, and runs torch's own where none is.

::

    gemm_bf16(a, weight, bias) ─▶ serving.bind(…)(M, N, K, dtype, bias) ─▶ row ── None ──▶ F.linear
                                                                            └ config ────▶ ops/kernels

    from aiter_tuning.ops import gemm_bf16

They are custom operators of torch with a fake implementation: ``torch.compile`` takes them whole, and they can be
captured in a CUDA or HIP graph, which keeps the kernel that was chosen when it was captured. Names are loaded when they
are first used, and torch with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiter_tuning.lazy_names import lazy_names

if TYPE_CHECKING:
    from aiter_tuning.ops.cpu_linear import gemm_cpu
    from aiter_tuning.ops.gpu_linear import gemm_bf16

_HOMES = {"gemm_bf16": "gpu_linear", "gemm_cpu": "cpu_linear"}

__all__ = ["gemm_bf16", "gemm_cpu"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
