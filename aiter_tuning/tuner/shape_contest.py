"""A contest of one shape: from what is on record of it to what a lane is to carry out.

::

    record: blocks, verdicts, suspicions ─┐
    entrants, rule ───────────────────────┴▶ ShapeContest ─▶ Group with a Contest ─▶ (pool) ─▶ blocks, verdicts

A contest that was interrupted goes on after its last whole block, if the rule would have had the same blocks measured:
another bar, other entrants or another strategy begin anew where they first differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiter_tuning.contest import Block, Contest
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint
from aiter_tuning.tables.checkpoint_record import BlockRows
from aiter_tuning.tables.checkpoint_row import DIGITS
from aiter_tuning.task import Group, Logbook
from aiter_tuning.tuner.finals_rule import FinalsRule
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.race_rule import RaceRule
from aiter_tuning.tuner.resume import SUSPICIONS_THAT_CONVICT
from aiter_tuning.tuner.tasks import FamilyTasks
from aiter_tuning.tuning_policy import DEFAULT_RACE, SAMPLE_SEED

_CALLS_US = 20_000.0
"""Slow candidates are called less often in a block, so that it takes no longer than this for each."""
_CONTEST_US = 10e6
"""And there are fewer blocks, so that a contest takes no longer than about this."""
_FEWEST_BLOCKS = 8
_MOST_BLOCKS = 40


RuleOf = Callable[[Sequence[str], Sequence[float]], FinalsRule | RaceRule]
"""Makes a rule from the entrants' names by their index in the blocks, and the latencies of those that can still run."""


@dataclass
class ShapeContest:
    """A contest of one shape while it goes on."""

    names: tuple[str, ...]
    """Entrants by their index in the blocks: those that can still run, in the order that breaks ties, then those that
    failed in an earlier run."""
    running: int
    """How many can still run; they are the group's candidates."""
    rule: FinalsRule | RaceRule
    contest: Contest
    blocks: list[Block]
    results: dict[str, Measurement]
    """What each ended with so far."""
    attempts: Mapping[str, int]
    phase: str
    """Of its rows in the checkpoint."""
    fingerprints: Mapping[str, str]
    """Of each there."""
    expected_s: float = 0.0
    """About how long it will take at least."""
    convicted: Mapping[str, Measurement] = field(default_factory=dict)
    """Verdicts that follow from the record and are still to be put there."""

    @property
    def is_over(self) -> bool:
        """Whether everybody who can run has a verdict."""
        return all(name in self.results for name in self.names)

    def take(self, block: Block) -> None:
        """A block of the contest; see :meth:`Contest.after`. With the digits that the record has."""
        rounded = block._replace(us=tuple(round(us, DIGITS) for us in block.us))
        self.blocks = [*(known for known in self.blocks if known.number < block.number), rounded]


class Contests:
    """Makes contests of shapes.

    Args:
        tasks: how candidates become tasks.
        checkpoint: what is on record, and where the workers write.
        retry: failures of earlier runs that do not count.
    """

    def __init__(self, tasks: FamilyTasks, checkpoint: Checkpoint, retry: frozenset[Status] = frozenset()) -> None:
        self.tasks = tasks
        self._checkpoint = checkpoint
        self._retry = retry

    def on_record(
        self,
        shape: Mapping[str, Any],
        names: Sequence[str],
        expected_us: Mapping[str, float],
        fingerprints: Mapping[str, str],
        rule_of: RuleOf,
        *,
        phase: str,
        verifying_calls: int = 1,
    ) -> ShapeContest:
        """A contest as it stands on record.

        Args:
            shape: whose contest it is.
            names: of the entrants, in the order that breaks ties.
            expected_us: about how long each takes.
            fingerprints: of each.
            rule_of: makes its rule.
            phase: of its rows.
            verifying_calls: see :class:`~aiter_tuning.contest.Contest`.
        """
        known = {
            name: verdict
            for name, verdict in self._checkpoint.finished_results(shape, fingerprints, phase).items()
            if name in names and verdict.status not in self._retry
        }
        attempts = self._checkpoint.attempts(shape, phase)
        suspicions = self._checkpoint.suspects(shape, fingerprints, phase)
        convicted = {
            name: _convicted(count, attempts.get(name, count))
            for name, count in suspicions.items()
            if count >= SUSPICIONS_THAT_CONVICT and name in names and name not in known
        }
        if Status.crash in self._retry:
            convicted = {}
        failed = {name: v for name, v in (known | convicted).items() if v.status is not Status.ok}
        running = tuple(name for name in names if name not in failed)
        ordered = (*running, *(name for name in names if name in failed))
        running_us = [expected_us[name] for name in running]
        rule = rule_of(ordered, running_us)
        rows = self._checkpoint.blocks(shape, fingerprints, phase)
        blocks, device = recorded_blocks(ordered, len(running), rows, rule)
        calls = calls_in_a_block(running_us)
        contest = Contest(rule, SAMPLE_SEED, calls, blocks=blocks, device=device, verifying_calls=verifying_calls)
        over = all(name in known for name in running) and not (blocks and rule.active(range(len(running)), blocks))
        results = known | failed if over and (blocks or not running) else failed
        seconds = (_FEWEST_BLOCKS - len(blocks)) * block_us(running_us) / 1e6
        return ShapeContest(
            ordered,
            len(running),
            rule,
            contest,
            list(blocks),
            results,
            attempts,
            phase,
            fingerprints,
            max(0.0, seconds),
            convicted,
        )

    def failures_on_record(
        self, shape: Mapping[str, Any], fingerprints: Mapping[str, str], phase: str
    ) -> dict[str, Measurement]:
        """Who failed in the contests of a phase, but for failures that do not count."""
        known = self._checkpoint.finished_results(shape, fingerprints, phase)
        return {
            name: verdict
            for name, verdict in known.items()
            if verdict.status is not Status.ok and verdict.status not in self._retry
        }

    def group_of_candidates(self, plan: ShapePlan, contest: ShapeContest) -> Group:
        """What a lane carries out where candidates are timed as they are."""
        return self.group(
            plan.shape,
            contest,
            lambda names, logbook: self.tasks.group(plan, [plan.candidate(n) for n in names], logbook),
        )

    def group(
        self, shape: Mapping[str, Any], contest: ShapeContest, group_of: Callable[[Sequence[str], Logbook], Group]
    ) -> Group:
        """What a lane carries out.

        Args:
            shape: whose contest it is.
            contest: as it stands.
            group_of: makes a group of entrants by their names, with this logbook.
        """
        running = contest.names[: contest.running]
        logbook = self._checkpoint.logbook(shape, running, contest.fingerprints, contest.attempts, phase=contest.phase)
        return replace(group_of(running, logbook), contest=contest.contest)


def recorded_blocks(
    names: Sequence[str], running: int, rows: Sequence[BlockRows], rule: FinalsRule | RaceRule
) -> tuple[tuple[Block, ...], str]:
    """The blocks on record that this contest would have had measured too, and the device that they are from.

    Args:
        names: entrants by their index.
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
    detail = f"the run died {suspicions} times while it was timed in turns; --retry crash tries it again"
    return Measurement.failed(Status.crash, detail, us=math.inf, attempt=attempt)


def paired_rule(
    names: Sequence[str], running_us: Sequence[float], incumbent: str, rounds: int, bar_pct: float
) -> FinalsRule:
    """A rule by which nobody drops out: each is timed until its difference to the incumbent is sure."""
    kept = frozenset(range(len(names)))
    return FinalsRule(names.index(incumbent), kept, rounds, max(rounds, most_blocks(running_us)), bar_pct)


def calls_in_a_block(running_us: Sequence[float]) -> int:
    """Timed calls of an entrant in a block, at least."""
    slowest = max(running_us, default=1.0)
    return max(1, min(DEFAULT_RACE.block_calls, int(_CALLS_US / slowest)))


def most_blocks(running_us: Sequence[float]) -> int:
    """The cap, for candidates of these latencies."""
    return max(_FEWEST_BLOCKS, min(_MOST_BLOCKS, int(_CONTEST_US / max(1.0, block_us(running_us)))))


def block_us(running_us: Sequence[float]) -> float:
    """Microseconds of a block, about."""
    calls = calls_in_a_block(running_us)
    return sum(max(Contest.block_us, calls * us) for us in running_us)
