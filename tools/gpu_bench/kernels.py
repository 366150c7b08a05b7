"""The Triton GEMM of workload W1: as candidates of a family, and under ``triton.autotune``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter multiplies the bits of bf16 as if they were whole numbers; there products are taken in fp32."""


@triton.jit
def gemm(
    a,
    b,
    c,
    m,
    n,
    k,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
):
    tile = tl.program_id(0)
    tiles_m = tl.cdiv(m, block_m)
    group = group_m * tl.cdiv(n, block_n)
    first = tile // group * group_m
    rows = min(tiles_m - first, group_m)
    row = first + tile % group % rows
    column = tile % group // rows
    at_m = (row * block_m + tl.arange(0, block_m)) % m
    at_n = (column * block_n + tl.arange(0, block_n)) % n
    at_k = tl.arange(0, block_k)
    a_at = a + at_m[:, None] * stride_am + at_k[None, :] * stride_ak
    b_at = b + at_k[:, None] * stride_bk + at_n[None, :] * stride_bn
    sums = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in range(tl.cdiv(k, block_k)):
        x = tl.load(a_at, mask=at_k[None, :] < k - step * block_k, other=0.0)
        y = tl.load(b_at, mask=at_k[:, None] < k - step * block_k, other=0.0)
        if INTERPRETED:
            sums = tl.dot(x.to(tl.float32), y.to(tl.float32), sums)
        else:
            sums = tl.dot(x, y, sums)
        a_at += block_k * stride_ak
        b_at += block_k * stride_bk
    at_m = row * block_m + tl.arange(0, block_m)
    at_n = column * block_n + tl.arange(0, block_n)
    c_at = c + at_m[:, None] * stride_cm + at_n[None, :] * stride_cn
    tl.store(c_at, sums.to(tl.bfloat16), mask=(at_m[:, None] < m) & (at_n[None, :] < n))


def launch(a: torch.Tensor, b: torch.Tensor, config: Mapping[str, Any], c: torch.Tensor | None = None) -> torch.Tensor:
    """A (M, K) · B (K, N) in bf16, under one config."""
    (m, k), n = a.shape, b.shape[1]
    if c is None:
        c = torch.empty((m, n), device=a.device, dtype=torch.bfloat16)
    grid = (triton.cdiv(m, config["block_m"]) * triton.cdiv(n, config["block_n"]),)
    gemm[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), **config)
    return c


def autotuned(configs: Sequence[Mapping[str, Any]]) -> Any:
    """The same kernel under Triton's own autotuner, with its defaults."""
    options = ("num_warps", "num_stages")
    choices = [
        triton.Config(
            {name: value for name, value in config.items() if name not in options},
            num_warps=config["num_warps"],
            num_stages=config["num_stages"],
        )
        for config in configs
    ]
    return triton.autotune(configs=choices, key=["m", "n", "k"])(gemm)


def launch_autotuned(tuner: Any, a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    """One call, which tunes; the config that it chose."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=torch.bfloat16)

    def grid(meta: Mapping[str, Any]) -> tuple[int]:
        return (triton.cdiv(m, meta["block_m"]) * triton.cdiv(n, meta["block_n"]),)

    tuner[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
    best = tuner.best_config
    return {**best.kwargs, "num_warps": best.num_warps, "num_stages": best.num_stages}
