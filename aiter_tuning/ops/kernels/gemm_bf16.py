"""Triton kernels of a linear layer, C (M, N) = A (M, K) · Wᵀ + b with W (N, K), and how they are launched.

::

    launch(a, weight, bias, config)
      tiled            one program a tile of C, tiles in groups of rows so that neighbours share A and W in the L2
      split_k          tiles × slices of K ─▶ partial sums in fp32 ─▶ add_partials; the same sum in every run
      persistent       as many programs as compute units, each walks over tiles: the next one's loads overlap a store
      tma              tiled, with A and W fetched by the tensor memory accelerator (sm90 and later)
      tma_persistent   both

Products accumulate in fp32; the bias is added before the one rounding to C's type. Rows of A, W and C may be further
apart than they are long; elements in a row may not. Any M, N and K; offsets of rows are 64 bits wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter multiplies the bits of bf16 as if they were whole numbers; there products are taken in fp32."""
PARTIALS_BLOCK = 1024
_LAUNCH_OPTIONS = ("num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")


@triton.jit
def _place(tile, m, n, block_m: tl.constexpr, block_n: tl.constexpr, group_m: tl.constexpr):
    """Row and column of a tile: down ``group_m`` rows, then one column to the right."""
    tiles_m = tl.cdiv(m, block_m)
    group = group_m * tl.cdiv(n, block_n)
    first = tile // group * group_m
    rows = min(tiles_m - first, group_m)
    return first + tile % group % rows, tile % group // rows


@triton.jit
def _dot(x, y, sums):
    if INTERPRETED:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), sums)
    else:
        return tl.dot(x, y, sums)


@triton.jit
def _product(
    a,
    w,
    m,
    n,
    k,
    stride_a,
    stride_w,
    row,
    column,
    first_step,
    last_step,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    even_k: tl.constexpr,
):
    """A tile's sum over steps of ``block_k``. Rows past the end wrap around, so that only K needs a mask."""
    rows = ((row * block_m + tl.arange(0, block_m)) % m).to(tl.int64)
    columns = ((column * block_n + tl.arange(0, block_n)) % n).to(tl.int64)
    inner = first_step * block_k + tl.arange(0, block_k)
    a_at = a + rows[:, None] * stride_a + inner[None, :]
    w_at = w + columns[None, :] * stride_w + inner[:, None]
    sums = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in range(first_step, last_step):
        if even_k:
            x = tl.load(a_at)
            y = tl.load(w_at)
        else:
            left = k - step * block_k
            x = tl.load(a_at, mask=tl.arange(0, block_k)[None, :] < left, other=0.0)
            y = tl.load(w_at, mask=tl.arange(0, block_k)[:, None] < left, other=0.0)
        sums = _dot(x, y, sums)
        a_at += block_k
        w_at += block_k
    return sums


@triton.jit
def _product_by_tma(
    a,
    w,
    k,
    row,
    column,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
):
    """The same from descriptors, which read zeros past the end."""
    sums = tl.zeros((block_m, block_n), dtype=tl.float32)
    for step in range(tl.cdiv(k, block_k)):
        x = a.load([row * block_m, step * block_k])
        y = w.load([column * block_n, step * block_k])
        sums = _dot(x, tl.trans(y), sums)
    return sums


@triton.jit
def _store(
    c,
    bias,
    sums,
    m,
    n,
    stride_c,
    row,
    column,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    has_bias: tl.constexpr,
):
    rows = row * block_m + tl.arange(0, block_m)
    columns = column * block_n + tl.arange(0, block_n)
    if has_bias:
        sums += tl.load(bias + columns, mask=columns < n, other=0.0).to(tl.float32)[None, :]
    at = c + rows.to(tl.int64)[:, None] * stride_c + columns[None, :]
    tl.store(at, sums.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


@triton.jit
def gemm_tiled(
    a,
    w,
    bias,
    c,
    m,
    n,
    k,
    stride_a,
    stride_w,
    stride_c,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    even_k: tl.constexpr,
    has_bias: tl.constexpr,
):
    row, column = _place(tl.program_id(0), m, n, block_m, block_n, group_m)
    steps = tl.cdiv(k, block_k)
    sums = _product(a, w, m, n, k, stride_a, stride_w, row, column, 0, steps, block_m, block_n, block_k, even_k)
    _store(c, bias, sums, m, n, stride_c, row, column, block_m, block_n, has_bias)


@triton.jit
def gemm_split_k(
    a,
    w,
    partials,
    m,
    n,
    k,
    stride_a,
    stride_w,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    split_k: tl.constexpr,
    even_k: tl.constexpr,
):
    """Slice ``program_id(1)`` of K; ``partials`` is (split_k, M, N), contiguous. A slice without steps writes zeros."""
    row, column = _place(tl.program_id(0), m, n, block_m, block_n, group_m)
    part = tl.program_id(1)
    steps = tl.cdiv(k, block_k)
    share = tl.cdiv(steps, split_k)
    first = part * share
    last = min(first + share, steps)
    sums = _product(a, w, m, n, k, stride_a, stride_w, row, column, first, last, block_m, block_n, block_k, even_k)
    mine = partials + part.to(tl.int64) * m * n
    _store(mine, mine, sums, m, n, n, row, column, block_m, block_n, False)


@triton.jit
def add_partials(partials, bias, c, m, n, stride_c, split_k: tl.constexpr, has_bias: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    size = tl.full((), 1, tl.int64) * m * n  # m may be specialised to the number 1, which has no methods
    inside = at < size
    sums = tl.zeros((block,), dtype=tl.float32)
    for part in tl.static_range(split_k):
        sums += tl.load(partials + part * size + at, mask=inside, other=0.0)
    column = at % n
    if has_bias:
        sums += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(c + at // n * stride_c + column, sums.to(c.dtype.element_ty), mask=inside)


@triton.jit
def gemm_persistent(
    a,
    w,
    bias,
    c,
    m,
    n,
    k,
    stride_a,
    stride_w,
    stride_c,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    even_k: tl.constexpr,
    has_bias: tl.constexpr,
):
    steps = tl.cdiv(k, block_k)
    tiles = tl.cdiv(m, block_m) * tl.cdiv(n, block_n)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = _place(tile, m, n, block_m, block_n, group_m)
        sums = _product(a, w, m, n, k, stride_a, stride_w, row, column, 0, steps, block_m, block_n, block_k, even_k)
        _store(c, bias, sums, m, n, stride_c, row, column, block_m, block_n, has_bias)


@triton.jit
def gemm_tma(
    a,
    w,
    bias,
    c,
    m,
    n,
    k,
    stride_c,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    has_bias: tl.constexpr,
):
    row, column = _place(tl.program_id(0), m, n, block_m, block_n, group_m)
    sums = _product_by_tma(a, w, k, row, column, block_m, block_n, block_k)
    _store(c, bias, sums, m, n, stride_c, row, column, block_m, block_n, has_bias)


@triton.jit
def gemm_tma_persistent(
    a,
    w,
    bias,
    c,
    m,
    n,
    k,
    stride_c,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    group_m: tl.constexpr,
    has_bias: tl.constexpr,
):
    tiles = tl.cdiv(m, block_m) * tl.cdiv(n, block_n)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, column = _place(tile, m, n, block_m, block_n, group_m)
        sums = _product_by_tma(a, w, k, row, column, block_m, block_n, block_k)
        _store(c, bias, sums, m, n, stride_c, row, column, block_m, block_n, has_bias)


class _Launch:
    """One call: the result's tensor, the sizes, and a config taken apart."""

    def __init__(
        self, a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: Mapping[str, Any]
    ) -> None:
        self.m, self.k = a.shape
        self.n = weight.shape[0]
        self.a, self.weight, self.config = a, weight, config
        self.c = torch.empty((self.m, self.n), dtype=a.dtype, device=a.device)
        # A kernel without a bias is handed a pointer that it never follows: None would be a type of its own.
        self.bias = self.c if bias is None else bias
        self.has_bias = bias is not None
        self.tiles: int = triton.cdiv(self.m, config["block_m"]) * triton.cdiv(self.n, config["block_n"])
        self.even_k = self.k % config["block_k"] == 0
        self.options = {name: config[name] for name in _LAUNCH_OPTIONS if name in config}
        self.blocks = {name: config[name] for name in ("block_m", "block_n", "block_k", "group_m")}

    def by_pointers(self, kernel: Any, programs: int) -> None:
        kernel[(programs,)](
            *(self.a, self.weight, self.bias, self.c, self.m, self.n, self.k),
            *(self.a.stride(0), self.weight.stride(0), self.c.stride(0)),
            **self.blocks,
            even_k=self.even_k,
            has_bias=self.has_bias,
            **self.options,
        )

    def by_tma(self, kernel: Any, programs: int) -> None:
        block_k = self.config["block_k"]
        kernel[(programs,)](
            TensorDescriptor.from_tensor(self.a, [self.config["block_m"], block_k]),
            TensorDescriptor.from_tensor(self.weight, [self.config["block_n"], block_k]),
            *(self.bias, self.c, self.m, self.n, self.k, self.c.stride(0)),
            **self.blocks,
            has_bias=self.has_bias,
            **self.options,
        )

    def split(self) -> None:
        parts = self.config["split_k"]
        partials = torch.empty((parts, self.m, self.n), dtype=torch.float32, device=self.a.device)
        gemm_split_k[(self.tiles, parts)](
            *(self.a, self.weight, partials, self.m, self.n, self.k, self.a.stride(0), self.weight.stride(0)),
            **self.blocks,
            split_k=parts,
            even_k=self.even_k,
            **self.options,
        )
        add_partials[(triton.cdiv(self.m * self.n, PARTIALS_BLOCK),)](
            *(partials, self.bias, self.c, self.m, self.n, self.c.stride(0)),
            split_k=parts,
            has_bias=self.has_bias,
            block=PARTIALS_BLOCK,
        )

    @property
    def resident(self) -> int:
        return min(self.tiles, int(self.config["programs"]))


_KINDS: Mapping[str, Callable[[_Launch], None]] = {
    "tiled": lambda launch: launch.by_pointers(gemm_tiled, launch.tiles),
    "split_k": _Launch.split,
    "persistent": lambda launch: launch.by_pointers(gemm_persistent, launch.resident),
    "tma": lambda launch: launch.by_tma(gemm_tma, launch.tiles),
    "tma_persistent": lambda launch: launch.by_tma(gemm_tma_persistent, launch.resident),
}


def launch(a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, config: Mapping[str, Any]) -> torch.Tensor:
    """C = A · Wᵀ + b in A's type, by the kernel and with the tile that ``config`` names."""
    call = _Launch(a, weight, bias, config)
    _KINDS[config["kernel"]](call)
    return call.c
