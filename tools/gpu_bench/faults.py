"""Candidates that break a GPU's context for real, each in its own way. Workers import this module by name.

Each takes what a candidate of W1 takes, and the path of a file in which it leaves the moment at which it broke.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _store_far_away(pointer, distance):
    tl.store(pointer + distance.to(tl.int64) * 16777216, 1.0)


@triton.jit
def _spin(pointer, until):
    value = tl.load(pointer)
    while value < until:
        value = tl.load(pointer, volatile=True)
    tl.store(pointer + 1, value)


def compile_kernels(inputs: Mapping[str, Any]) -> torch.Tensor:
    """A candidate that fills the compile cache, so that a fault's clock measures the fault."""
    device = inputs["a"].device
    floats = torch.zeros(4, dtype=torch.float32, device=device)
    _store_far_away.warmup(floats, _FAR, grid=(1,))
    _spin.warmup(torch.zeros(4, dtype=torch.int32, device=device), 5, grid=(1,))
    return inputs["a"] @ inputs["b"]


_FAR = 100_000  # times 64 MB: past whatever is mapped


def exits(inputs: Mapping[str, Any], moment: str) -> torch.Tensor:
    _note(moment)
    os._exit(7)


def accesses_illegally(inputs: Mapping[str, Any], moment: str) -> torch.Tensor:
    _note(moment)
    _store_far_away[(1,)](torch.zeros(4, dtype=torch.float32, device=inputs["a"].device), _FAR)
    return inputs["a"] @ inputs["b"]


def asserts(inputs: Mapping[str, Any], moment: str) -> torch.Tensor:
    """An index past the end: torch's own kernels assert on the device."""
    device = inputs["a"].device
    _note(moment)
    torch.zeros(4, device=device)[torch.tensor([9], device=device)]
    return inputs["a"] @ inputs["b"]


def spins(inputs: Mapping[str, Any], moment: str) -> torch.Tensor:
    """A kernel that waits for a value that nobody writes."""
    _note(moment)
    _spin[(1,)](torch.zeros(4, dtype=torch.int32, device=inputs["a"].device), 5)
    return inputs["a"] @ inputs["b"]


FAULTS = (exits, accesses_illegally, asserts, spins)


@dataclass(frozen=True)
class Fault:
    """One of them as a task's function."""

    name: str
    moment: str

    def __call__(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        result: torch.Tensor = globals()[self.name](inputs, self.moment)
        return result


@dataclass(frozen=True)
class Noting:
    """A candidate of W1 that leaves the moment of its first call."""

    config: Mapping[str, Any]
    moment: str

    def __call__(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        from gpu_bench.kernels import launch

        if not os.path.exists(self.moment):
            _note(self.moment)
        return launch(inputs["a"], inputs["b"], self.config)


def _note(moment: str) -> None:
    Path(moment).write_text(repr(time.monotonic()))
