"""Rules that tests hold contests under. Workers import this module by name."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Rounds:
    """Everyone who is still in, so many times."""

    blocks: int = 3

    def active(self, entrants, blocks):
        return tuple(entrants) if len(blocks) < self.blocks else ()


@dataclass(frozen=True)
class DropSlowest:
    """After each block from the second on, the one with the largest total leaves; until one is left."""

    def active(self, entrants, blocks):
        left = list(entrants)
        for seen in range(2, len(blocks) + 1):
            if len(left) > 1:
                left.remove(max(left, key=lambda index: (total(index, blocks[:seen]), index)))
        return tuple(left) if len(left) > 1 else ()


@dataclass(frozen=True)
class Broken:
    """Fails after a block, one way or the other."""

    wants: int | None = None

    def active(self, entrants, blocks):
        if not blocks or not entrants:
            return tuple(entrants)
        if self.wants is None:
            raise ZeroDivisionError("the rule")
        return (self.wants,)


def total(index, blocks):
    return math.fsum(us for block in blocks for i, us in zip(block.order, block.us, strict=True) if i == index)
