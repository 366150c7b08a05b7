"""Elimination in blocks: the rule of ``--strategy race``, and what its blocks come to.

::

    block n ─▶ leader: lowest median of its blocks
               each other one: paired differences to the leader, Student t
                 surely more than delta behind ──▶ eliminated, for good (incumbent and default: only marked)
                 maybe more than delta ahead   ──▶ undecided, go on
               nobody undecided ──▶ certified, stop

So the survivors are all within ``delta`` of each other as far as anybody can tell, and the steadiest of them is the
better choice. The chance of one wrong elimination in the whole race is ``alpha``, shared out over all decisions that it
may take. The same blocks lead to the same decisions, in whatever order the entrants are given.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from aiter_tuning.contest import Block
from aiter_tuning.tuner.paired import still_in, timed_in


class RaceState(StrEnum):
    """Where an entrant stands when the race is over."""

    leader = "leader"
    within_delta = "within_delta"
    """As good as the leader, as far as the race's delta goes."""
    protected_behind = "protected_behind"
    """Incumbent or default, surely slower: timed to the end all the same."""
    undecided = "undecided"
    """The blocks were used up first."""
    eliminated = "eliminated"
    crashed = "crashed"


@dataclass(frozen=True)
class RaceRule:
    """See the module; a :class:`aiter_tuning.contest.Rule`."""

    protected: frozenset[int] = frozenset()
    """Never eliminated: incumbent and default."""
    delta_pct: float = 3.0
    """Entrants that differ by less, in percent of the leader, are equals."""
    alpha: float = 0.05
    min_blocks: int = 3
    max_blocks: int = 30

    def active(self, entrants: Sequence[int], blocks: Sequence[Block]) -> tuple[int, ...]:
        current = still_in(entrants, blocks)
        if len(blocks) < self.min_blocks:
            return current
        if not current or len(blocks) >= self.max_blocks:
            return ()
        standing = _standing(self, current, blocks)
        staying = tuple(one for one in current if one in self.protected or one not in standing.behind)
        return staying if standing.undecided else ()


class TieBreak(StrEnum):
    """Why the winner, of all survivors."""

    incumbent_retained = "incumbent_retained"
    sole_survivor = "sole_survivor"
    lowest_spread = "lowest_spread"
    stable_sort = "stable_sort"


@dataclass(frozen=True)
class RaceEntry:
    """One entrant at the end."""

    state: RaceState
    us: float
    """Median of its blocks in microseconds; inf if it crashed."""
    relative_spread: float
    """Standard deviation of its blocks over ``us``; inf of fewer than two."""
    blocks: int

    @property
    def note(self) -> str:
        """For a person: ``dropped after block 4``; empty if there is nothing to say."""
        return f"dropped after block {self.blocks}" if self.state is RaceState.eliminated else ""


@dataclass(frozen=True)
class RaceOutcome:
    """A race that is over."""

    entries: Mapping[str, RaceEntry]
    blocks: int
    certified: bool
    """Nobody was undecided: whoever is not a survivor is surely worse by more than delta, or crashed."""
    winner: str | None
    """None: not certified, or everybody crashed."""
    tie_break: TieBreak | None

    @property
    def survivors(self) -> tuple[str, ...]:
        wanted = (RaceState.leader, RaceState.within_delta)
        return tuple(name for name, entry in self.entries.items() if entry.state in wanted)


def race_outcome(names: Sequence[str], blocks: Sequence[Block], rule: RaceRule) -> RaceOutcome:
    """What the blocks of a race come to.

    Args:
        names: of the entrants, by their index; none of them twice.
        blocks: all of them, in order.
        rule: the rule that the race was run by.
    """
    latencies = {
        index: [us for b in blocks if (us := timed_in(b).get(index)) is not None] for index in range(len(names))
    }
    current = still_in(range(len(names)), blocks) if blocks else ()
    standing = _standing(rule, current, blocks) if current else None
    crashed = {index for block in blocks for index in block.order if index not in timed_in(block)}

    def state(index: int) -> RaceState:
        if index in crashed or not latencies[index] or standing is None:
            return RaceState.crashed
        if index not in current:
            return RaceState.eliminated
        if index == standing.leader:
            return RaceState.leader
        if index in standing.behind:
            return RaceState.protected_behind if index in rule.protected else RaceState.eliminated
        if index in standing.undecided:
            return RaceState.undecided
        if statistics.median(latencies[index]) <= standing.leader_us * (1 + rule.delta_pct / 100):
            return RaceState.within_delta
        return RaceState.protected_behind if index in rule.protected else RaceState.undecided

    entries = {name: _entry(state(index), latencies[index]) for index, name in enumerate(names)}
    certified = standing is not None and not standing.undecided
    outcome = RaceOutcome(entries, len(blocks), certified, None, None)
    if not certified:
        return outcome
    protected = frozenset(names[index] for index in rule.protected if index < len(names))
    winner, tie_break = _winner(entries, outcome.survivors, protected)
    return RaceOutcome(entries, len(blocks), certified, winner, tie_break)


def _winner(
    entries: Mapping[str, RaceEntry], survivors: Sequence[str], protected: frozenset[str]
) -> tuple[str, TieBreak]:
    kept = [name for name in survivors if name in protected]
    if kept:
        return min(kept, key=lambda name: (entries[name].us, name)), TieBreak.incumbent_retained
    ranked = sorted(survivors, key=lambda name: (entries[name].relative_spread, name))
    if len(ranked) == 1:
        return ranked[0], TieBreak.sole_survivor
    equal = entries[ranked[0]].relative_spread == entries[ranked[1]].relative_spread
    return ranked[0], TieBreak.stable_sort if equal else TieBreak.lowest_spread


@dataclass(frozen=True)
class _Standing:
    leader: int
    leader_us: float
    behind: frozenset[int]
    """Surely more than delta slower than the leader."""
    undecided: frozenset[int]
    """May be more than delta faster than it."""


def _standing(rule: RaceRule, current: Sequence[int], blocks: Sequence[Block]) -> _Standing:
    """Where those stand that were timed in every block."""
    latencies = {index: [timed_in(block)[index] for block in blocks] for index in current}
    middles = {index: statistics.median(values) for index, values in latencies.items()}
    # Of equal medians the same one leads however the entrants are numbered, unless they are equal throughout.
    leader = min(current, key=lambda index: (middles[index], latencies[index], index))
    tolerance = math.log1p(rule.delta_pct / 100)
    decisions = len(blocks[0].order) * rule.max_blocks
    behind, undecided = set(), set()
    for index in current:
        if index == leader:
            continue
        # Of logarithms: a clock that drops by a quarter halfway would spread plain differences, and decide by it.
        differences = [math.log(a / b) for a, b in zip(latencies[index], latencies[leader], strict=True)]
        lower = _lower_bound(differences, rule.alpha / decisions)
        if lower > tolerance:
            behind.add(index)
        elif lower <= -tolerance:
            undecided.add(index)
    return _Standing(leader, middles[leader], frozenset(behind), frozenset(undecided))


def _lower_bound(differences: Sequence[float], alpha: float) -> float:
    """Lower end of the two-sided confidence interval of their mean; -inf of fewer than two."""
    count = len(differences)
    if count < 2:
        return -math.inf
    spread = statistics.stdev(differences)
    return statistics.fmean(differences) - student_t(count - 1, alpha) * spread / math.sqrt(count)


@lru_cache(maxsize=1024)
def student_t(freedom: int, alpha: float) -> float:
    """The two-sided critical value of Student's t."""
    from scipy.special import stdtrit  # not scipy.stats, which takes a second to import

    return float(stdtrit(freedom, 1 - alpha / 2))


def _entry(state: RaceState, latencies: Sequence[float]) -> RaceEntry:
    if state is RaceState.crashed:
        return RaceEntry(state, math.inf, math.inf, len(latencies))
    middle = statistics.median(latencies)
    spread = statistics.stdev(latencies) / middle if len(latencies) > 1 else math.inf
    return RaceEntry(state, middle, spread, len(latencies))
