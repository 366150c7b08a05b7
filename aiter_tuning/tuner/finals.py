"""The finals of a shape: from its screening and from what is on record to a contest in a worker.

::

    screening results ─▶ finalists ─┐
    record: blocks, verdicts ───────┴▶ Finals ─▶ Group with a Contest ─▶ (pool) ─▶ blocks, verdicts ─▶ choice

A contest that was interrupted goes on after its last whole block, if the rule would have had the same blocks measured:
another bar, other finalists or another strategy begin anew where they first differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from aiter_tuning.contest import Block, Contest
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint
from aiter_tuning.tables.checkpoint_record import BlockRows
from aiter_tuning.tables.checkpoint_row import DIGITS, FINALS
from aiter_tuning.task import Group
from aiter_tuning.tuner.finalists import pick_finalists
from aiter_tuning.tuner.finals_rule import FinalsRule
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.race_rule import RaceRule
from aiter_tuning.tuner.resume import SUSPICIONS_THAT_CONVICT
from aiter_tuning.tuner.tasks import FamilyTasks
from aiter_tuning.tuning_policy import DEFAULT_FINALISTS, DEFAULT_PROMOTION, DEFAULT_RACE, SAMPLE_SEED, PromotionPolicy

_CALLS_US = 20_000.0
"""Slow candidates are called less often in a block, so that it takes no longer than this for each."""
_CONTEST_US = 10e6
"""And there are fewer blocks, so that a shape's finals take no longer than about this."""
_FEWEST_BLOCKS = 8
_MOST_BLOCKS = 40


@dataclass(frozen=True)
class FinalsSettings:
    """What a run was asked to do about finals."""

    strategy: Literal["finals", "race"] = "finals"
    finalists: int = DEFAULT_FINALISTS.finalists
    """Besides incumbent and default; below 2 nobody is timed again."""
    rounds: int = DEFAULT_FINALISTS.rounds
    """Blocks at least."""
    policy: PromotionPolicy = DEFAULT_PROMOTION
    delta_pct: float = DEFAULT_PROMOTION.min_improvement_pct
    """Of a race: candidates that differ by less are equals."""
    err_ratio: float = 0.05


@dataclass
class Finals:
    """The finals of one shape while they go on."""

    names: tuple[str, ...]
    """Finalists by their index in the blocks: those that can still run, in the family's order, then those that failed
    in an earlier run."""
    running: int
    """How many can still run; they are the group's candidates."""
    rule: FinalsRule | RaceRule
    contest: Contest
    blocks: list[Block]
    results: dict[str, Measurement]
    """What each ended with so far."""
    attempts: Mapping[str, int]
    convicted: Mapping[str, Measurement] = field(default_factory=dict)
    """Verdicts that follow from the record and are still to be put there."""
    phase: str = FINALS
    """Of its rows in the checkpoint."""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """Of each there."""

    @property
    def is_over(self) -> bool:
        """Whether everybody who can run has a verdict."""
        return all(name in self.results for name in self.names)

    def take(self, block: Block) -> None:
        """A block of the contest; see :meth:`Contest.after`. With the digits that the record has."""
        rounded = block._replace(us=tuple(round(us, DIGITS) for us in block.us))
        self.blocks = [*(known for known in self.blocks if known.number < block.number), rounded]


class FinalsPlanner:
    """Makes the finals of shapes.

    Args:
        tasks: how candidates become tasks.
        checkpoint: what is on record, and where the workers write.
        settings: what was asked for.
        retry: failures of earlier runs that do not count.
    """

    def __init__(
        self,
        tasks: FamilyTasks,
        checkpoint: Checkpoint,
        settings: FinalsSettings,
        retry: frozenset[Status] = frozenset(),
    ) -> None:
        self._tasks = tasks
        self._checkpoint = checkpoint
        self.settings = settings
        self._retry = retry

    def plan(
        self, plan: ShapePlan, screened: Mapping[str, Measurement], fingerprints: Mapping[str, str]
    ) -> Finals | None:
        """The finals of a shape whose screening is over; None if there is nothing to compare."""
        settings = self.settings
        names = pick_finalists(
            plan.names,
            screened,
            incumbent=plan.incumbent,
            default=plan.default,
            finalists=settings.finalists,
            err_ratio=settings.err_ratio,
        )
        if not names:
            return None
        return contest_on_record(
            self._checkpoint,
            plan.shape,
            names,
            {name: screened[name].us for name in names},
            fingerprints,
            lambda ordered, running_us: self._rule(plan, ordered, running_us),
            retry=self._retry,
        )

    def group(self, plan: ShapePlan, finals: Finals, fingerprints: Mapping[str, str]) -> Group:
        """What a lane carries out."""
        running = finals.names[: finals.running]
        logbook = self._checkpoint.logbook(plan.shape, running, fingerprints, finals.attempts, phase=FINALS)
        group = self._tasks.group(plan, [plan.candidate(name) for name in running], logbook)
        return replace(group, contest=finals.contest)

    def _rule(self, plan: ShapePlan, names: Sequence[str], running_us: Sequence[float]) -> FinalsRule | RaceRule:
        settings = self.settings
        kept = frozenset(names.index(name) for name in (plan.incumbent, plan.default) if name in names)
        most = max(settings.rounds, most_blocks(running_us))
        if settings.strategy == "race":
            most = max(settings.rounds, min(most, DEFAULT_RACE.max_blocks))
            return RaceRule(kept, settings.delta_pct, DEFAULT_RACE.alpha, settings.rounds, most)
        incumbent = names.index(plan.incumbent) if plan.incumbent in names else None
        return FinalsRule(incumbent, kept, settings.rounds, most, settings.policy.min_improvement_pct)


def contest_on_record(
    checkpoint: Checkpoint,
    shape: Mapping[str, Any],
    names: Sequence[str],
    expected_us: Mapping[str, float],
    fingerprints: Mapping[str, str],
    make_rule: Callable[[Sequence[str], Sequence[float]], FinalsRule | RaceRule],
    *,
    phase: str = FINALS,
    retry: frozenset[Status] = frozenset(),
) -> Finals:
    """A contest as it stands on record.

    Args:
        checkpoint: what is on record.
        shape: whose contest it is.
        names: of the entrants, in the order that breaks ties.
        expected_us: about how long each takes.
        fingerprints: of each.
        make_rule: from the names by their index in the blocks, and the latencies of those that can still run.
        phase: of its rows.
        retry: failures of earlier runs that do not count.
    """
    known = {
        name: verdict
        for name, verdict in checkpoint.finished_results(shape, fingerprints, phase).items()
        if name in names and verdict.status not in retry
    }
    attempts = checkpoint.attempts(shape, phase)
    suspicions = checkpoint.suspects(shape, fingerprints, phase)
    convicted = {
        name: _convicted(count, attempts.get(name, count))
        for name, count in suspicions.items()
        if count >= SUSPICIONS_THAT_CONVICT and name in names and name not in known
    }
    if Status.crash in retry:
        convicted = {}
    failed = {name: v for name, v in (known | convicted).items() if v.status is not Status.ok}
    running = tuple(name for name in names if name not in failed)
    ordered = (*running, *(name for name in names if name in failed))
    running_us = [expected_us[name] for name in running]
    rule = make_rule(ordered, running_us)
    rows = checkpoint.blocks(shape, fingerprints, phase)
    blocks, device = recorded_blocks(ordered, len(running), rows, rule)
    contest = Contest(rule, SAMPLE_SEED, block_calls=calls_in_a_block(running_us), blocks=blocks, device=device)
    over = all(name in known for name in running) and not (blocks and rule.active(range(len(running)), blocks))
    results = known | failed if over and (blocks or not running) else failed
    return Finals(ordered, len(running), rule, contest, list(blocks), results, attempts, convicted, phase, fingerprints)


def recorded_blocks(
    names: Sequence[str], running: int, rows: Sequence[BlockRows], rule: FinalsRule | RaceRule
) -> tuple[tuple[Block, ...], str]:
    """The blocks on record that this contest would have had measured too, and the device that they are from.

    Args:
        names: finalists by their index.
        running: how many of them, from the front, have not failed.
        rows: whole blocks, numbered from 1.
        rule: the contest's.
    """
    blocks: list[Block] = []
    device = rows[0].device_uuid if rows else ""
    for row in rows:
        if row.device_uuid != device or not set(row.us) <= set(names):
            break
        order = tuple(names.index(name) for name in row.us)
        # Whoever killed a worker is missing in the block that was measured again without it, whatever the rule says.
        alive = [one for one in range(len(names)) if one < running or one in order]
        if set(rule.active(alive, blocks)) != set(order):
            break
        blocks.append(Block(row.number, order, tuple(row.us.values())))
    return tuple(blocks), device if blocks else ""


def _convicted(suspicions: int, attempt: int) -> Measurement:
    detail = f"the run died {suspicions} times while it was timed in the finals; --retry crash tries it again"
    return Measurement.failed(Status.crash, detail, us=math.inf, attempt=attempt)


def calls_in_a_block(running_us: Sequence[float]) -> int:
    """Timed calls of a finalist in a block, at least."""
    slowest = max(running_us, default=1.0)
    return max(1, min(DEFAULT_RACE.block_calls, int(_CALLS_US / slowest)))


def most_blocks(running_us: Sequence[float]) -> int:
    """The cap, for candidates of these latencies."""
    calls = calls_in_a_block(running_us)
    block_us = sum(max(Contest.block_us, calls * us) for us in running_us)
    return max(_FEWEST_BLOCKS, min(_MOST_BLOCKS, int(_CONTEST_US / max(1.0, block_us))))
