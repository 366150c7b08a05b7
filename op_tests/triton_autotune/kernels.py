"""Real autotuned kernels for tests without a GPU: interpreted by Triton, with a benchmarker that tells scripted times.

Interpretation is decided where a kernel is decorated, so the variable is set for that moment only: other tests start
processes that must not inherit it.
"""

import contextlib
import os

import torch
import triton
import triton.language as tl

BEFORE = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, inside) + tl.load(y + offsets, inside), inside)


@triton.jit
def fill_kernel(out, n, shape, BLOCK: tl.constexpr, KIND: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, offsets, offsets < n)


@triton.jit
def count_kernel(out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(out + offsets, inside) + 1, inside)


if BEFORE is None:
    del os.environ["TRITON_INTERPRET"]
else:
    os.environ["TRITON_INTERPRET"] = BEFORE


@triton.jit
def compiled_add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, inside) + tl.load(y + offsets, inside), inside)


MODULE = __name__
LARGE, MIDDLE, SMALL = 128, 64, 32


class Bench:
    """Stands in for Triton's benchmarker: runs the kernel, and tells the next of some times (ms); counts its calls."""

    def __init__(self, *times):
        self.times = times or (3.0, 1.0, 2.0)
        self.calls = 0

    def __call__(self, kernel_call, quantiles):
        kernel_call()
        time = self.times[self.calls % len(self.times)]
        self.calls += 1
        return [time, time * 0.99, time * 1.01]


def config(block, warps=4, **more):
    return triton.Config({"BLOCK": block}, num_warps=warps, **more)


def three_configs():
    return [config(LARGE), config(MIDDLE), config(SMALL)]


def autotuned(kernel=add_kernel, configs=None, key=("n",), bench=None, **more):
    """A fresh autotuner. The second config wins when it is timed, the third is the cheapest."""
    tuner = triton.autotune(
        configs if configs is not None else three_configs(), key=list(key), do_bench=bench or Bench(), **more
    )(kernel)
    tuner.bench = tuner._do_bench
    return tuner


def launch(tuner, n=100, dtype=torch.float32):
    """Adds ones to ones and checks the sum."""
    x = torch.ones(n, dtype=dtype)
    out = torch.zeros_like(x)
    tuner[grid(n)](x, x, out, n)
    assert bool((out == 2).all())
    return tuner.best_config.kwargs["BLOCK"]


@contextlib.contextmanager
def instead(owner, name, function):
    """Replaces a method of one object for a while; some Tritons keep it on the object, others on its class."""
    held = vars(owner).get(name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name) if held is None else setattr(owner, name, held)


def grid(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def key_text(n=100, dtype="torch.float32"):
    return "|".join([f"n={n}", *[dtype] * 3])


def entry(block, warps=4, stages=3):
    return {"kwargs": {"BLOCK": block}, "num_warps": warps, "num_stages": stages}
