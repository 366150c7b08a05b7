"""When the finalists of a shape have been timed enough: the rule of ``--strategy finals``.

::

    after each block ─▶ enough blocks? ─▶ who is clearly beaten drops out (never the incumbent, never the default)
                                           │
                     would the choice be safe to make now? ──▶ stop
                       regret   whoever would be chosen is within 0.5 % of every rival, almost surely
                       gate     the difference to the incumbent is known well enough for the bar

Most shapes need five to seven blocks; near ties on a noisy device go on to the cap. Plain Python on a few hundred
numbers: a worker asks after every block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aiter_tuning.contest import Block
from aiter_tuning.tuner.paired import PairedTable, critical, still_in

TIE_BAND_PCT = 1.0
"""Candidates within this of the fastest, and within two standard errors where these are known, are equals, so that
reruns agree."""
TIE_ERRORS = 2.0
FALSE_PROMOTION = 1e-3
"""Chance that any of the challengers passes the noise floor although none is faster than the incumbent."""
_DOUBT = 1e-3
"""Chance of being wrong about one pair that is accepted when somebody drops out or the contest ends."""

_LEAST_FREEDOM = 3.0
"""With less nobody knows how large the noise is: two candidates need seven blocks, ten have enough after three."""


@dataclass(frozen=True)
class FinalsRule:
    """See the module; a :class:`aiter_tuning.contest.Rule`. Entrants are in the family's order, which breaks ties."""

    incumbent: int | None
    """Who has to be beaten; None: it did not get so far."""
    kept: frozenset[int] = frozenset()
    """Never dropped: incumbent and default."""
    rounds: int = 3
    """Blocks at least."""
    max_blocks: int = 40
    bar_pct: float = 3.0
    """Smallest improvement that promotes."""
    target_se_pct: float = 0.4
    """Standard error of the difference that the gate judges."""
    regret_pct: float = 0.5
    """How far the choice may be from the best, by the clock of the contest; half of what is promised, because other
    clocks and other processes see the same kernels a little differently."""
    beaten_pct: float = 1.0
    """Who is surely further behind than this drops out."""
    promotion_blocks: int = 6
    """Blocks before anybody is promoted: the spread of three says little about itself."""

    def active(self, entrants: Sequence[int], blocks: Sequence[Block]) -> tuple[int, ...]:
        staying = self.survivors(entrants, blocks)
        if len(blocks) < self.rounds:
            return staying
        if len(staying) < 2 or len(blocks) >= self.max_blocks:
            return ()
        return () if self._is_decided(PairedTable(blocks, staying)) else staying

    def survivors(self, entrants: Sequence[int], blocks: Sequence[Block]) -> tuple[int, ...]:
        """Those that the choice is made from: not beaten, and not failed."""
        current = still_in(entrants, blocks)
        return self.unbeaten(current, blocks) if len(blocks) >= self.rounds else current

    def unbeaten(self, entrants: Sequence[int], blocks: Sequence[Block]) -> tuple[int, ...]:
        """Those of ``entrants`` that are not clearly beaten by another of them, in the blocks that they share."""
        table = PairedTable(blocks, entrants)
        if len(entrants) < 2 or not table.blocks:
            return tuple(entrants)
        doubt = critical(_DOUBT, table.freedom)
        return tuple(one for one in entrants if one in self.kept or not self._is_beaten(table, one, doubt))

    def _is_beaten(self, table: PairedTable, entrant: int, doubt: float) -> bool:
        behind = table.difference(entrant, table.fastest)
        return behind.log - doubt * behind.standard_error > self.beaten_pct / 100

    def _is_decided(self, table: PairedTable) -> bool:
        if table.freedom < _LEAST_FREEDOM:
            return False
        doubt = critical(_DOUBT, table.freedom)
        chosen = first_of_ties(table, self.incumbent)
        for rival in table.entrants:
            behind = table.difference(chosen, rival)
            if behind.log + doubt * behind.standard_error > self.regret_pct / 100:
                return False
        if self.incumbent not in table.entrants or chosen == self.incumbent:
            return True
        floor, gap = noise_floor(table, chosen, self.incumbent), table.difference(chosen, self.incumbent)
        margin, error_pct = -gap.pct, 100 * gap.standard_error
        if self.bar_pct <= margin < floor:  # ambiguous so far
            return False
        if margin >= self.bar_pct and table.blocks < self.promotion_blocks:
            return False
        return error_pct <= self.target_se_pct or abs(margin - self.bar_pct) > doubt * error_pct


def first_of_ties(table: PairedTable, incumbent: int | None) -> int:
    """Who is chosen before any gate: the incumbent if it is as good as the fastest, else the first that is."""
    tied = [one for one in table.entrants if is_tied(table, one)]
    return incumbent if incumbent is not None and incumbent in tied else min(tied)


def is_tied(table: PairedTable, entrant: int) -> bool:
    """Whether an entrant is as good as the fastest one: within the tie band of 1 % or two standard errors."""
    behind = table.difference(entrant, table.fastest)
    band = min(math.log1p(TIE_BAND_PCT / 100), TIE_ERRORS * behind.standard_error)
    return entrant == table.fastest or behind.log <= band


def noise_floor(table: PairedTable, challenger: int, incumbent: int) -> float:
    """The margin in percent below which a challenger's lead may be chance alone, with so many challengers to pick from.

    At least the policy's two standard errors; more, so that of a thousand incumbents that nobody beats one is replaced.
    """
    challengers = max(1, len(table.entrants) - 1)
    errors = max(TIE_ERRORS, critical(FALSE_PROMOTION / challengers, table.freedom))
    return 100 * errors * table.difference(challenger, incumbent).standard_error
