"""Which of the finalists a shape's row names, from blocks in which they were timed side by side.

::

    blocks ─▶ who is left ─▶ ties of the fastest ─▶ challenger ─▶ paired margin over the incumbent ─▶ gate ─▶ verdict
                             race: survivors, the steadiest                 noise floor ──────────────┘

The margin is that of the pairs, not of two medians: what drifts during a contest moves both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiter_tuning.contest import Block
from aiter_tuning.measurement import Measurement
from aiter_tuning.tuner.choice import Choice, Today, choose, conclude, is_correct, tie_text
from aiter_tuning.tuner.finals_rule import FinalsRule, first_of_ties, noise_floor
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.paired import PairedTable, timed_in
from aiter_tuning.tuner.race_rule import RaceOutcome, RaceRule, RaceState, race_outcome
from aiter_tuning.tuning_policy import DEFAULT_PROMOTION, PROMOTE, PromotionPolicy, gate_against_incumbent


def choose_finalist(
    names: Sequence[str],
    measurements: Mapping[str, Measurement],
    blocks: Sequence[Block],
    today: Today,
    rule: FinalsRule | RaceRule,
    *,
    err_ratio: float,
    policy: PromotionPolicy = DEFAULT_PROMOTION,
) -> Choice:
    """Picks the row's candidate from the finalists.

    Args:
        names: of the finalists by their index in the blocks; the order breaks ties.
        measurements: what the contest ended with for each of them; who failed in it, or is wrong, is out.
        blocks: all blocks, in order.
        today: what runs before.
        rule: what the contest was run by.
        err_ratio: largest accepted fraction of wrong elements.
        policy: the bar of a promotion.
    """
    right = [index for index, name in enumerate(names) if is_correct(measurements.get(name), err_ratio)]
    if not right or not blocks:  # nobody, or a single one that nothing had to be compared with
        return choose(names, measurements, today, err_ratio=err_ratio, policy=policy)
    if isinstance(rule, RaceRule):
        return _by_race(names, right, measurements, blocks, today, rule, err_ratio, policy)
    return _by_finals(names, right, measurements, blocks, today, rule, err_ratio, policy)


def _by_finals(
    names: Sequence[str],
    right: Sequence[int],
    measurements: Mapping[str, Measurement],
    blocks: Sequence[Block],
    today: Today,
    rule: FinalsRule,
    err_ratio: float,
    policy: PromotionPolicy,
) -> Choice:
    # Whom somebody beat that turned out to be wrong when all was over is judged again without it.
    misled = any(index not in right for index in timed_in(blocks[-1]))
    staying = rule.unbeaten(right, blocks) if misled else rule.survivors(right, blocks)
    table = PairedTable(blocks, staying)
    if not staying or not table.blocks:
        return choose(names, measurements, today, err_ratio=err_ratio, policy=policy)
    current = measurements.get(today.incumbent)
    incumbent = next((index for index in staying if names[index] == today.incumbent), None)
    chosen = first_of_ties(table, incumbent)
    if incumbent is None:
        text = f"the fastest of {_count(table)}"
        return conclude(today, names[chosen], current, text, policy=policy, err_ratio=err_ratio)
    challenger = chosen if chosen != incumbent else _best_other(table, incumbent)
    gate = None
    if challenger is not None:
        incumbent_us = measurements[today.incumbent].us
        challenger_us = incumbent_us * math.exp(table.difference(challenger, incumbent).log)
        gate = gate_against_incumbent(incumbent_us, challenger_us, policy, noise_floor(table, challenger, incumbent))
    if chosen == incumbent:
        reason = tie_text(table.difference(incumbent, table.fastest).pct)
        choice = conclude(today, today.incumbent, current, f"{reason} of {_count(table)}", err_ratio=err_ratio)
        return replace(choice, gate=gate)
    assert gate is not None
    winner = names[chosen] if gate.outcome == PROMOTE else today.incumbent
    return conclude(today, winner, current, gate.reason, gate=gate, policy=policy, err_ratio=err_ratio)


def _by_race(
    names: Sequence[str],
    right: Sequence[int],
    measurements: Mapping[str, Measurement],
    blocks: Sequence[Block],
    today: Today,
    rule: RaceRule,
    err_ratio: float,
    policy: PromotionPolicy,
) -> Choice:
    outcome = race_outcome(names, [_without(block, right) for block in blocks], rule)
    current = measurements.get(today.incumbent)
    winner = outcome.winner
    if winner is None:
        choice = conclude(today, _fallback(names, right, today, outcome), current, _undecided_text(outcome))
        return replace(choice, verdict=Verdict.ambiguous) if choice.keeps_row else choice
    assert outcome.tie_break is not None
    reason = f"{winner} of {len(outcome.survivors)} within {rule.delta_pct:g} %: {outcome.tie_break.replace('_', ' ')}"
    counts = is_correct(current, err_ratio) and outcome.entries[today.incumbent].state is not RaceState.crashed
    if winner == today.incumbent or not counts:
        return conclude(today, winner, current, reason, policy=policy, err_ratio=err_ratio)
    entries = outcome.entries
    gate = gate_against_incumbent(entries[today.incumbent].us, entries[winner].us, policy, rule.delta_pct)
    if gate.outcome != PROMOTE:
        winner = today.incumbent
    return conclude(today, winner, current, f"{gate.reason}; {reason}", gate=gate, policy=policy, err_ratio=err_ratio)


def _best_other(table: PairedTable, incumbent: int) -> int | None:
    others = [one for one in table.entrants if one != incumbent]
    return min(others, key=lambda one: table.difference(one, incumbent).log, default=None)


def _without(block: Block, right: Sequence[int]) -> Block:
    """A block without those who turned out to be wrong, or failed, when it was over."""
    kept = [(index, us) for index, us in zip(block.order, block.us, strict=True) if index in right]
    return Block(block.number, tuple(index for index, _ in kept), tuple(us for _, us in kept))


def _fallback(names: Sequence[str], right: Sequence[int], today: Today, outcome: RaceOutcome) -> str:
    """Who is taken although the race did not certify anybody: what is there, else the leader."""
    correct = [names[index] for index in right]
    for name in (today.incumbent, today.default):
        if name in correct and outcome.entries[name].state is not RaceState.crashed:
            return name
    leads = (name for name in correct if outcome.entries[name].state is RaceState.leader)
    return next(leads, correct[0])


def _undecided_text(outcome: RaceOutcome) -> str:
    undecided = [name for name, entry in outcome.entries.items() if entry.state is RaceState.undecided]
    return f"the race was undecided after {outcome.blocks} blocks: {', '.join(undecided) or 'nobody could be timed'}"


def _count(table: PairedTable) -> str:
    return f"{len(table.entrants)} in {table.blocks} blocks"
