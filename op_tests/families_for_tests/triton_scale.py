"""A Triton family with one candidate for each way in which compiling may end.

``y = 2 x`` on N elements. ``gemm_*`` candidates compile a real matrix product beside it, to have something large.
"""

import os
import time

import triton
import triton.language as tl

from aiter_tuning.keys import Key
from aiter_tuning.tuner import Candidate, Family, Work


@triton.jit
def double(x, y, n, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y + at * stride, tl.load(x + at * stride, mask=inside) * 2, mask=inside)


@triton.jit
def double_small_only(x, y, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK <= 64, "only small blocks")
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def double_wrongly(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK + 1)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def double_in_assembly(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    value = tl.inline_asm_elementwise("no.such.instruction $0, $1;", "=r,r", [value], tl.float32, True, 1)
    tl.store(y + at, value, mask=at < n)


@triton.jit
def product(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + (start + k)[None, :])
        right = tl.load(b + (start + k)[:, None] * BN + n[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + m[:, None] * BN + n[None, :], total.to(tl.bfloat16))


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])
@triton.jit
def double_autotuned(x, y, n, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at * stride, tl.load(x + at * stride, mask=at < n) * 2, mask=at < n)


class TritonScale(Family):
    """Candidates named after what happens to them; ``blocks`` are the sizes that work."""

    name = "triton_scale"
    key = Key(N=int)
    precompiles = True
    blocks = (64, 128, 256)
    extra = ()

    def inputs(self, shape, device, seed):
        import torch

        generator = torch.Generator(device=device).manual_seed(seed)
        x = torch.randn(shape["N"], generator=generator, device=device, dtype=torch.float32)
        return {"x": x * 0.5}

    def reference(self, inputs):
        return inputs["x"] * 2

    def default(self, shape, device):
        return Candidate("torch", {"do": "torch"})

    def candidates(self, shape, device):
        works = [Candidate(f"block{block}", {"do": "block", "block": block}) for block in self.blocks]
        return [self.default(shape, device), *works, *(Candidate(name, {"do": name}) for name in self.extra)]

    def work(self, shape):
        return Work(flops=shape["N"], bytes=8 * shape["N"])

    def run(self, inputs, config):
        import torch

        x = inputs["x"]
        y = torch.empty_like(x)
        result = getattr(self, config["do"])(x, y, config)
        return y if result is None else result

    def torch(self, x, y, config):
        return x * 2

    def block(self, x, y, config):
        block = config["block"]
        double[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), x.stride(0), BLOCK=block)

    def view(self, x, y, config):
        """Pointers that are four bytes off the usual alignment, and a size that 16 does not divide."""
        double[(1,)](x[1:], y[1:], x.numel() - 1, 1, BLOCK=64)
        y[0] = x[0] * 2

    def strided(self, x, y, config):
        double[(1,)](x[::2], y[::2], x[::2].numel(), x[::2].stride(0), BLOCK=64)
        y[1::2] = x[1::2] * 2

    def asserts(self, x, y, config):
        double_small_only[(1,)](x, y, x.numel(), BLOCK=128)

    def malformed(self, x, y, config):
        double_wrongly[(1,)](x, y, x.numel(), BLOCK=64)

    def assembly(self, x, y, config):
        double_in_assembly[(1,)](x, y, x.numel(), BLOCK=64)

    def huge(self, x, y, config):
        """Compiles, and needs more shared memory than there is."""
        self._product(x, 64, 64, 64, num_stages=20)

    def falls_back(self, x, y, config):
        """As serving code does: the large tile where it fits, else a small one."""
        try:
            self._product(x, 64, 64, 64, num_stages=20)
        except triton.OutOfResources:
            self.block(x, y, {"block": 64})

    def _product(self, x, bm, bn, bk, num_stages):
        import torch

        a = torch.empty(bm, 32 * bk, device=x.device, dtype=torch.bfloat16)
        b = torch.empty(32 * bk, bn, device=x.device, dtype=torch.bfloat16)
        c = torch.empty(bm, bn, device=x.device, dtype=torch.bfloat16)
        product[(1,)](a, b, c, 32 * bk, BM=bm, BN=bn, BK=bk, num_warps=4, num_stages=num_stages)

    def autotunes(self, x, y, config):
        double_autotuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), x.stride(0))

    def looks(self, x, y, config):
        """Depends on values, which a dry run has none of."""
        self.block(x, y, {"block": 64 if x.abs().max().item() < 1e9 else 128})

    def hangs(self, x, y, config):
        """Where there is no device: a compiler that never ends."""
        if x.device.type == "meta":
            time.sleep(3600)
        self.block(x, y, {"block": 64})

    def dies(self, x, y, config):
        """Where there is no device: a compiler that aborts."""
        if x.device.type == "meta":
            os.abort()
        self.block(x, y, {"block": 64})


class Trying(TritonScale):
    """All of them."""

    name = "trying"
    blocks = (64, 128)
    extra = ("view", "strided", "asserts", "malformed", "assembly", "huge", "falls_back", "autotunes", "looks")


class Deadly(TritonScale):
    """Two candidates that compile, between two whose dry run ends badly."""

    name = "deadly"
    blocks = (64, 128)
    extra = ("dies", "hangs")
