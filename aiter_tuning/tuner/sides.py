"""What a contest of two says: what runs today, what is to run instead, and the gate between them; values only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from aiter_tuning.contest import Block
from aiter_tuning.measure.statistics import median
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint_row import DIGITS
from aiter_tuning.tuner.before_after import BeforeAfter, Side
from aiter_tuning.tuner.finals_rule import noise_floor
from aiter_tuning.tuner.paired import PairedTable, timed_in
from aiter_tuning.tuner.shape_contest import ShapeContest
from aiter_tuning.tuning_policy import GateDecision, PromotionPolicy, gate_against_incumbent


def sides_of(
    contest: ShapeContest, before: tuple[str, str], after: tuple[str, str] | None, policy: PromotionPolicy
) -> BeforeAfter:
    """Both sides of a contest.

    Args:
        contest: theirs, as far as it went.
        before: the entrant that is what runs today, and its kernel.
        after: the same of what is to replace it; None: nothing is to.
        policy: the bar.
    """
    blocks = tuple(contest.blocks)
    today = _side(contest, *before, blocks)
    if after is None:
        return BeforeAfter(today, blocks=len(blocks))
    then = _side(contest, *after, blocks)
    gate = None
    if today.us is not None and then.us is not None:
        gate = _gate(today.us, blocks, contest.names.index(before[0]), contest.names.index(after[0]), policy)
    return BeforeAfter(today, then, gate, len(blocks))


def _gate(before_us: float, blocks: Sequence[Block], before: int, after: int, policy: PromotionPolicy) -> GateDecision:
    table = PairedTable(blocks, (before, after))
    after_us = before_us * math.exp(table.difference(after, before).log)
    return gate_against_incumbent(before_us, after_us, policy, noise_floor(table, after, before))


def _side(contest: ShapeContest, name: str, kernel: str, blocks: Sequence[Block]) -> Side:
    index = contest.names.index(name)
    samples = tuple(timed_in(block).get(index) for block in blocks)
    measurement = contest.results.get(name)
    timed = [us for us in samples if us is not None]
    if measurement is None or measurement.status is Status.not_run:
        measurement = Measurement.failed(Status.not_run, "it was not run")
    elif measurement.status is Status.ok and timed:  # the record's digits, whoever was killed meanwhile
        measurement = replace(measurement, us=round(median(timed), DIGITS))
    return Side(kernel, measurement, tuple(None if us is None else round(us, 4) for us in samples))
