"""A linear layer on the CPU: C = A · Wᵀ + b.

torch gives one way of computing it unasked, ``F.linear``; the same product can be had from oneDNN with a weight packed
at load time, from another BLAS call on another layout, or cut along N or K into a batched product. Which one is fastest
depends on the shape, the dtype, the processor and the number of cores: that is what is tuned. ::

    a (M, K)   weight (N, K)   bias (N) or None ──prepare──▶ weight transposed, packed or cut, once
                                                ──run──────▶ (M, N), contiguous      ops/kernels/gemm_cpu.py

The ways were chosen by measuring (2 cores of an AVX-512 server, torch 2.13): each wins somewhere or did within a few
per cent of it; ``torch.cat`` of chunks, cutting along M and a bfloat16 ``mv`` never did and are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from aiter_tuning.keys import Key
from aiter_tuning.tuner.family import Candidate, Config, Family, Inputs, Shape, Tolerance, Work

if TYPE_CHECKING:
    from torch import Tensor

    from aiter_tuning.devices.device import Device

KINDS = (
    *("linear", "weight_transposed", "weight_first", "vector", "fp32_weight"),
    *("split_n", "split_k", "onednn", "onednn_packed", "mkl_packed"),
)
"""A way's place in here is its ``kernelId``: append only."""

_ITEM_BYTES = {"fp32": 4, "bf16": 2}
_SMALL_M = 16
"""Up to this many rows a product is bound by reading the weight, so that cutting it finer can pay."""


class GemmCpu(Family):
    name = "gemm_cpu"
    devices = ("cpu",)
    key = Key(M=int, N=int, K=int, dtype="fp32", bias=False)
    # Outputs are of order 1. bf16 rounds to 2^-9 of a value, so partial sums rounded to it stay inside; a dropped row,
    # block or bias does not.
    tolerance = Tolerance(rtol=1e-2, atol=1e-2, err_ratio=0.01, max_abs_delta=0.25)

    def inputs(self, shape: Shape, device: str, seed: int) -> Inputs:
        import torch

        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[shape["dtype"]]
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, device=device)

        m, n, k = shape["M"], shape["N"], shape["K"]
        a, weight = normal(m, k).to(dtype), (normal(n, k) / k**0.5).to(dtype)
        return {"a": a, "weight": weight, "bias": normal(n).to(dtype) if shape["bias"] else None}

    def reference(self, inputs: Inputs) -> Tensor:
        import torch

        a, weight, bias = inputs["a"], inputs["weight"], inputs["bias"]
        wide = torch.float64 if a.dtype == torch.float32 else torch.float32
        product = torch.mm(a.to(wide), weight.to(wide).t())
        return (product if bias is None else product + bias.to(wide)).to(a.dtype)

    def default(self, shape: Shape, device: Device) -> Candidate:
        return _candidate("linear", "linear")

    def candidates(self, shape: Shape, device: Device) -> Sequence[Candidate]:
        if shape["dtype"] not in _ITEM_BYTES:
            raise ValueError(f"gemm_cpu computes fp32 and bf16, not {shape['dtype']}")
        whole_lane = [
            self.default(shape, device),
            _candidate("weight_transposed", "weight_transposed"),
            _candidate("weight_first", "weight_first"),
            _candidate("onednn", "onednn"),
            _candidate("onednn_packed", "onednn_packed"),
            *_cut_ways(shape),
        ]
        if shape["dtype"] == "fp32":
            whole_lane.append(_candidate("mkl_packed", "mkl_packed", batch=shape["M"]))
            if shape["M"] == 1:
                whole_lane.append(_candidate("vector", "vector"))
        elif shape["M"] <= 4:
            whole_lane.append(_candidate("fp32_weight", "fp32_weight"))
        # Starting a thread's share costs microseconds, which the smallest products do not have; torch always uses all.
        fewer = [
            _candidate(f"{kernel}_t{threads}", kernel, threads=threads)
            for threads in _smaller_teams(device.cu_num)
            for kernel in ("linear", "onednn_packed")
        ]
        return whole_lane + fewer

    def prepare(self, inputs: Inputs, config: Config) -> Inputs:
        import torch

        if "threads" in config:
            torch.set_num_threads(config["threads"])
        prepared: Inputs = _ways().prepare(inputs, config)
        return prepared

    def run(self, inputs: Inputs, config: Config) -> Tensor:
        result: Tensor = _ways().run(inputs, config)
        return result

    def serve(self, inputs: Inputs) -> Tensor:
        from aiter_tuning import ops

        result: Tensor = ops.gemm_cpu(inputs["a"], inputs["weight"], inputs["bias"], constant_weight=True)
        return result

    def work(self, shape: Shape) -> Work:
        m, n, k = shape["M"], shape["N"], shape["K"]
        item, bias = _ITEM_BYTES[shape["dtype"]], n if shape["bias"] else 0
        return Work(
            flops=2.0 * m * n * k + m * bias,
            bytes=float(item * (m * k + n * k + m * n + bias)),
            workspace_bytes=4.0 * n * k,  # a second weight: packed, transposed or in fp32
        )


@functools.cache
def _ways() -> Any:
    """The module that computes; an import statement in every call would be part of its time."""
    from aiter_tuning.ops.kernels import gemm_cpu

    return gemm_cpu


def _candidate(name: str, kernel: str, **config: int) -> Candidate:
    split_k = config["parts"] if kernel == "split_k" else 0
    return Candidate(name, {"kernel": kernel, **config}, kernel_id=KINDS.index(kernel), split_k=split_k)


def _cut_ways(shape: Shape) -> list[Candidate]:
    parts_of = {"split_n": shape["N"], "split_k": shape["K"]}
    worth_four = {"split_n": shape["dtype"] == "fp32", "split_k": shape["M"] <= _SMALL_M and shape["dtype"] == "fp32"}
    return [
        _candidate(f"{kernel}{parts}", kernel, parts=parts)
        for kernel, length in parts_of.items()
        for parts in ((2, 4) if worth_four[kernel] else (2,))
        if length % parts == 0 and length > parts
    ]


def _smaller_teams(cores: int) -> list[int]:
    """Thread counts below the lane's: a half, a quarter and one."""
    return sorted({cores // 2, cores // 4, 1} & set(range(1, cores)))
