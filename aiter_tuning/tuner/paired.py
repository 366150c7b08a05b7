"""What blocks say about the differences between candidates: estimates that drift and outliers leave alone.

::

    block 1   a 10.0  b 10.5  c 12.1      what all of a block have in common (a clock that dropped) cancels
    block 2   a 11.0  b 11.6  c 13.2      in ln(a/b) of the same block
      ⋮                                   trimmed mean of those over the blocks ─▶ difference
                                          their spread, and the table's as a whole ─▶ its standard error

Logarithms, because noise on kernels is proportional to their latency; the unit is 1 = 100 % all the same, for small
differences. Pure functions of numbers; standard library only, since a worker decides with them after every block and
should not import scipy for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import NamedTuple

from aiter_tuning.contest import Block
from aiter_tuning.measure.statistics import deviation, median

_TRIMMED = 0.2
"""Share of the differences that is left out at either end, and one at least: one block in fifty has an outlier."""
_TRIMMED_PER_MEAN = 1.1
"""Standard error of such a trimmed mean over that of a mean, for normal noise and few blocks."""
_MAD_FREEDOM = 0.5
"""Degrees of freedom of a spread from a median deviation, over those of a standard deviation."""


class Difference(NamedTuple):
    """How much slower one candidate is than another."""

    log: float
    """``ln(us / other_us)``; below 0: faster."""
    standard_error: float
    """Of ``log``; inf where it is not known."""

    @property
    def pct(self) -> float:
        return 100.0 * math.expm1(self.log)


class PairedTable:
    """The blocks in which all of some entrants were timed, and what they say.

    Args:
        blocks: of a contest, in order.
        entrants: who is compared; a block that lacks one of them is left out, so that all are judged alike.
    """

    def __init__(self, blocks: Sequence[Block], entrants: Collection[int]) -> None:
        self.entrants = tuple(entrants)
        whole = [timed for block in blocks if (timed := timed_in(block)).keys() >= set(self.entrants)]
        self.blocks = len(whole)
        self._logs = {entrant: [math.log(timed[entrant]) for timed in whole] for entrant in self.entrants}

    def difference(self, entrant: int, other: int) -> Difference:
        """How much slower ``entrant`` is than ``other``."""
        if entrant == other:
            return Difference(0.0, 0.0)
        pairs = [a - b for a, b in zip(self._logs[entrant], self._logs[other], strict=True)]
        pooled = math.sqrt(2.0 / self.blocks) * _TRIMMED_PER_MEAN * self.noise if self.blocks else math.inf
        return Difference(trimmed_mean(pairs), max(pooled, trimmed_error(pairs)))

    @cached_property
    def fastest(self) -> int:
        """The entrant with the lowest latency; of equal ones the first."""
        return min(self.entrants, key=lambda entrant: self._centres[entrant])

    @cached_property
    def noise(self) -> float:
        """Typical deviation of one latency in a block from what block and entrant have in common; inf: not known.

        From all entrants together: three blocks of ten candidates tell what three of one do not. Robust.
        """
        rows, columns = len(self.entrants), self.blocks
        if rows < 2 or columns < 2:
            return math.inf
        left = [
            log - middle - self._centres[entrant]
            for entrant, logs in self._logs.items()
            for log, middle in zip(logs, self._middles, strict=True)
        ]
        fitted = rows * columns / ((rows - 1) * (columns - 1))
        return deviation(left, 0.0) * math.sqrt(fitted)

    @property
    def freedom(self) -> float:
        """Degrees of freedom that the standard errors have."""
        return max(1.0, _MAD_FREEDOM * (len(self.entrants) - 1) * (self.blocks - 1))

    @cached_property
    def _middles(self) -> list[float]:
        return [median(column) for column in zip(*self._logs.values(), strict=True)]

    @cached_property
    def _centres(self) -> dict[int, float]:
        """Each entrant's place relative to the middle of its blocks."""
        return {
            entrant: trimmed_mean([log - middle for log, middle in zip(logs, self._middles, strict=True)])
            for entrant, logs in self._logs.items()
        }


def timed_in(block: Block) -> dict[int, float]:
    """Who was timed in a block, and at how many microseconds; without those that failed in it."""
    timed = zip(block.order, block.us, strict=True)
    return {entrant: us for entrant, us in timed if math.isfinite(us) and us > 0}


def still_in(entrants: Collection[int], blocks: Sequence[Block]) -> tuple[int, ...]:
    """Those of ``entrants`` that are in the race: out is out, for whatever reason one is missing in a block."""
    if not blocks:
        return tuple(entrants)
    timed = timed_in(blocks[-1])
    return tuple(entrant for entrant in entrants if entrant in timed)


def trimmed_mean(values: Sequence[float]) -> float:
    """The mean without the lowest and highest fifth, one at least if there are three; NaN of nothing."""
    if not values:
        return math.nan
    cut = _cut(len(values))
    kept = sorted(values)[cut : len(values) - cut]
    return math.fsum(kept) / len(kept)


def trimmed_error(values: Sequence[float]) -> float:
    """Standard error of :func:`trimmed_mean` from these values alone (Tukey, McLaughlin); inf of fewer than two.

    Up to four values have too little left once trimmed: there the plain one, which an outlier makes large.
    """
    count = len(values)
    if count < 2:
        return math.inf
    cut = _cut(count) if count > 4 else 0
    ordered = sorted(values)
    low, high = ordered[cut], ordered[count - cut - 1]
    winsorised = [min(max(value, low), high) for value in ordered]
    mean = math.fsum(winsorised) / count
    variance = math.fsum((value - mean) ** 2 for value in winsorised) / (count - 1)
    return math.sqrt(variance / count) / (1 - 2 * cut / count)


def _cut(count: int) -> int:
    return max(1, int(_TRIMMED * count)) if count > 2 else 0


@lru_cache(maxsize=4096)
def critical(chance: float, freedom: float) -> float:
    """How many standard errors a difference of nothing exceeds, to one side, with this chance.

    Student's t by its expansion around the normal quantile (Abramowitz and Stegun 26.7.5).
    """
    z = -NormalDist().inv_cdf(chance)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
