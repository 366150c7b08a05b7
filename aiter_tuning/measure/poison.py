"""Fills memory with what no correct candidate would leave there.

A candidate that writes half of its output looks right when the other half still holds what the previous candidate
wrote. Declared outputs are therefore filled before each checked call: floats with NaN, integers with a sentinel. An
integer or boolean sentinel may be the right value by chance; the two checked calls of a candidate use different ones,
so that no element can hide in both. Memory that a candidate allocates itself is reached through the allocator, which
hands out first what was freed last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

_PATTERNS = (0xA5, 0x5A)
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FREED_BLOCKS = 2
"""A loop that drops each result after making the next one leaves two free blocks of its size."""


def poison(tensors: Iterable[torch.Tensor], turn: int = 0) -> None:
    """Fills ``tensors``: NaN for floats, a sentinel for the rest that differs between even and odd ``turn``."""
    with torch.no_grad():
        for tensor in tensors:
            _fill(tensor, turn % 2)


def _fill(tensor: torch.Tensor, turn: int) -> None:
    if tensor.dtype is torch.bool:
        tensor.fill_(turn == 0)
    elif tensor.is_complex():
        tensor.fill_(complex(math.nan, math.nan))
    elif tensor.is_floating_point():
        try:
            tensor.fill_(math.nan)
        except (RuntimeError, NotImplementedError):  # packed types such as float4_e2m1fn_x2 know no fill
            tensor.view(torch.uint8).fill_(_PATTERNS[turn])
    else:
        signed = _SIGNED[tensor.itemsize]
        pattern = int.from_bytes(bytes([_PATTERNS[turn]]) * tensor.itemsize, "little", signed=True)
        tensor.view(signed).fill_(pattern)


def poison_free_memory(like: Iterable[torch.Tensor], turn: int = 0) -> None:
    """Leaves poison in freed blocks of the size of ``like``, for candidates that allocate their own output."""
    for tensor in like:
        blocks = [torch.empty_like(tensor) for _ in range(_FREED_BLOCKS)]
        poison(blocks, turn)
