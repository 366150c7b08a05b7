"""A real autotuned kernel for the GPU tests: a GEMM with 32 configs, and one whose cheapest config won't fit."""

import itertools

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_kernel(
    a, b, c, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left = a + rows[:, None] * K + inner[None, :]
    right = b + inner[:, None] * N + columns[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        x = tl.load(left, mask=(rows[:, None] < M) & (inner[None, :] + start < K), other=0.0)
        y = tl.load(right, mask=(inner[:, None] + start < K) & (columns[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
        left += BLOCK_K
        right += BLOCK_K * N
    where = c + rows[:, None] * N + columns[None, :]
    tl.store(where, total.to(tl.float16), mask=(rows[:, None] < M) & (columns[None, :] < N))


@triton.jit
def scale_kernel(x, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, offsets < n) * 2, offsets < n)


def config(m, n, k, warps, stages):
    return triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)


CONFIGS = [
    config(m, n, k, warps, stages)
    for m, n, k, warps, stages in itertools.product((32, 64), (32, 64), (32, 64), (4, 8), (2, 3))
]
TOO_LARGE_FIRST = [config(256, 256, 64, 8, 3), config(128, 128, 128, 8, 5)]
"""The second is cheaper and needs some 320 KB of shared memory."""

SHAPES = [(256, 256, 256), (300, 512, 384), (512, 512, 512), (128, 1024, 768)]

gemm = triton.autotune(CONFIGS, key=["M", "N", "K"])(gemm_kernel)


def scale(configs=2):
    """A fresh autotuner of the cheapest kernel there is, for what a launch costs."""
    sizes = [128, 256, 512][:configs]
    return triton.autotune([triton.Config({"BLOCK": size}) for size in sizes], key=["n"])(scale_kernel)


def multiply(kernel, m, n, k):
    generator = torch.Generator(device="cuda").manual_seed(m * n * k)
    a = torch.randn(m, k, device="cuda", dtype=torch.float16, generator=generator)
    b = torch.randn(k, n, device="cuda", dtype=torch.float16, generator=generator)
    c = torch.empty(m, n, device="cuda", dtype=torch.float16)
    kernel[lambda meta: (triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"]))](a, b, c, m, n, k)
    return a, b, c
