"""Masks: which devices a process may see, and how a worker's mask follows from the one that the user set.

::

    CUDA   CUDA_VISIBLE_DEVICES=3,1 ──position 0──▶ worker: CUDA_VISIBLE_DEVICES=3
    HIP    ROCR_VISIBLE_DEVICES=…   (stays: it acts below HIP, whose numbers count what it leaves)
           HIP_VISIBLE_DEVICES=3,1  ──position 0──▶ worker: HIP_VISIBLE_DEVICES=3
           CUDA_VISIBLE_DEVICES=3,1 (HIP reads it too where its own is missing or empty)

A device is asked for by its position among the visible ones; the worker's mask is the user's own word at that position.
Words are indices, ``GPU-…`` or ``MIG-…``; none is ever taken for a number, since a UUID or a MIG instance has none.
Strings in, strings out: nothing here looks at a device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

CUDA_MASK = "CUDA_VISIBLE_DEVICES"
HIP_MASK = "HIP_VISIBLE_DEVICES"
ROCR_MASK = "ROCR_VISIBLE_DEVICES"

HIDE_ALL: Mapping[str, str] = {CUDA_MASK: "-1", HIP_MASK: "-1"}
"""Environment of a process that must see no device. Not empty: HIP takes an empty mask for none at all."""

_WORD = re.compile(r"\+?[0-9]+|GPU-.+|MIG-.+", re.IGNORECASE)


class Mask(NamedTuple):
    """What the surroundings let through."""

    variable: str
    """The variable that says so; empty: none does."""
    words: tuple[str, ...] | None
    """One for each visible device, in order; None: every device there is."""

    def __str__(self) -> str:
        return f"{self.variable}={','.join(self.words)}" if self.words is not None else "no mask"


def mask_variable(kind: str) -> str:
    """The variable that a worker's mask goes into, for ``cuda`` or ``hip``."""
    return HIP_MASK if kind == "hip" else CUDA_MASK


def outer_mask(kind: str, environ: Mapping[str, str]) -> Mask:
    """The mask that the user set for ``cuda`` or ``hip`` devices."""
    candidates = (HIP_MASK, CUDA_MASK) if kind == "hip" else (CUDA_MASK,)
    for variable in candidates:
        # HIP itself passes over an empty variable and would show every device; whoever emptied it meant none.
        if variable in environ:
            return Mask(variable, parse_mask(environ[variable]))
    return Mask("", None)


def parse_mask(text: str) -> tuple[str, ...]:
    """The words of a mask, up to the first that names no device (``-1``, nothing): the runtimes stop there as well.

    Repeated words are kept: they are two lanes on one device.
    """
    words = []
    for part in text.split(","):
        word = part.strip()
        if not _WORD.fullmatch(word):
            break
        words.append((word.lstrip("+0") or "0") if word.lstrip("+").isdigit() else word)
    return tuple(words)


def distinct(words: tuple[str, ...]) -> tuple[str, ...]:
    """Each word once, in order: CUDA shows no device at all under a mask that repeats one."""
    return tuple(dict.fromkeys(words))


def compose(words: tuple[str, ...] | None, position: int) -> str:
    """The mask of a worker that is to see only the device at ``position`` among the visible ones."""
    return str(position) if words is None else words[position]
