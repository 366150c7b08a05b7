"""A contest: a few candidates of one shape timed in turns, on one device, in one process, until the rule is satisfied.

::

    block 1   c a b d      every entrant still in is timed once, in an order of the block's own
    block 2   b d a c      drift and disturbances hit all entrants of a block alike,
    block 3   a c b        so that differences inside blocks tell more than the times themselves
      ⋮
    rule.active(entrants, blocks) ──▶ who is timed next; nobody: decided

A rule sees blocks and nothing else, so that the same blocks, measured now or read from a record, lead to the same
decisions. Standard library only: the parent makes contests, workers carry them out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Protocol

BLOCK_DIGITS = 6
"""Decimals of a block's latencies, as many as a record has: what was read decides as what was measured."""


class Block(NamedTuple):
    """One turn of all entrants that were still in."""

    number: int
    """From 1."""
    order: tuple[int, ...]
    """Entrants, by their index in the group, in the order in which they were timed."""
    us: tuple[float, ...]
    """Latency of each in microseconds, in that order; NaN where it could not be timed."""


class Rule(Protocol):
    """Decides who goes on. Implementations are frozen, picklable and pure."""

    def active(self, entrants: Sequence[int], blocks: Sequence[Block]) -> tuple[int, ...]:
        """Who is timed in the next block, of the ``entrants`` that can still run; empty: the contest is decided."""
        ...


@dataclass(frozen=True)
class Contest:
    """What makes a group a contest of its candidates."""

    rule: Rule
    seed: int
    block_calls: int = 10
    """Timed calls of an entrant in a block, at least."""
    block_us: float = 2000.0
    """Short entrants are called more often, until a block's calls last about so long; 0: exactly ``block_calls``."""
    blocks: tuple[Block, ...] = ()
    """Already on record: they count, and are not measured again."""
    device: str = ""
    """UUID of the device that ``blocks`` were measured on: on another one they do not count. Empty: on any."""
    verifying_calls: int = 1
    """Calls of each entrant that are compared with the reference once the contest is over, as far as there is time for
    them: a candidate that is wrong now and then passes one or two."""
    no_graph: tuple[int, ...] = ()
    """Entrants known not to be capturable in a graph (flag ``no_graph``): nobody tries it again."""

    def after(self, block: Block, device: str) -> Contest:
        """The contest with one more block on record. A block replaces that of the same number, and voids later ones.

        Blocks are numbered in the order in which they count, so that one of a lower number means that somebody began
        anew: on another device, say.
        """
        kept = self.blocks
        if kept and kept[-1].number >= block.number:
            kept = tuple(known for known in kept if known.number < block.number)
        return replace(self, blocks=(*kept, block), device=device)

    def on(self, device: str) -> Contest:
        """The contest as it stands on this device."""
        return self if not self.device or self.device == device else replace(self, blocks=(), device=device)


def untimed(block: Block) -> tuple[int, ...]:
    """Entrants that could not be timed in a block; they are out."""
    return tuple(index for index, us in zip(block.order, block.us, strict=True) if math.isnan(us))


def block_order(active: Sequence[int], seed: int, number: int) -> tuple[int, ...]:
    """The order of a block: a function of the contest's seed and the block's number alone."""
    order = list(active)
    Random(f"{seed}:{number}").shuffle(order)
    return tuple(order)
