"""``--compare``: what serving runs for a shape today and what it would run with the new row, timed in turns.

::

    finals ─▶ decision ─▶ staged table: the new row alone ─┐
    -o as it was when the run began ─ a copy of it ────────┴▶ Group of two ServeShape with a Contest ─▶ served_choice

Both are timed in a fresh worker. Where no row is to change, what serving runs today is timed and checked alone, in
whichever worker is there. The contest is put on record like the finals, so that a run that was killed goes on after its
last block.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint_row import COMPARISON
from aiter_tuning.tables.evidence import Evidence, append_evidence, evidence_path
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.task import Group, Logbook
from aiter_tuning.tuner.arguments import TuneArguments
from aiter_tuning.tuner.deciding import Decision
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.finals import FinalsSettings
from aiter_tuning.tuner.fingerprint import DIGEST_LENGTH, source_digest
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.review import VERIFYING_CALLS, NewRow
from aiter_tuning.tuner.served_choice import BEFORE, after_name, judge_served, served_of
from aiter_tuning.tuner.serving_tasks import ServeShape
from aiter_tuning.tuner.shape_contest import Contests, ShapeContest, paired_rule


class StagedTables:
    """The tables that serving is compared under, in a directory of their own; a context manager that removes it.

    Args:
        tables: those that serving looks into today; copied at once, so that a contest never sees one change.
        key: of the family.
    """

    def __init__(self, tables: Sequence[Path], family: Family) -> None:
        self._family = family
        self._directory = tempfile.TemporaryDirectory(prefix="aiter_tuning_compare_")
        self._root = Path(self._directory.name)
        self._staged = 0
        self.today = tuple(self._copied(number, path) for number, path in enumerate(tables) if path.is_file())

    def _copied(self, number: int, path: Path) -> str:
        place = self._root / f"today{number}"
        place.mkdir()
        copy = place / path.name
        shutil.copyfile(path, copy)
        evidence = evidence_path(path)
        if evidence.is_file():
            shutil.copyfile(evidence, evidence_path(copy))
        return str(copy)

    def stage(self, row: TunedRow, evidence: Evidence) -> str:
        """A table that holds this row alone, with the versions that it was measured under."""
        self._staged += 1
        path = self._root / f"staged{self._staged}.csv"
        TunedCsv(path, self._family.key).update([row])
        append_evidence(path, [evidence])
        return str(path)

    def __enter__(self) -> StagedTables:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._directory.cleanup()


def begin_proposal(arguments: TuneArguments) -> Path | None:
    """Makes the candidate table, a copy of the tuned one if there is one; None where that is to be written itself."""
    candidate = arguments.candidate_file
    candidate.unlink(missing_ok=True)  # an older proposal says nothing any more
    if arguments.update_improved:
        return None
    if arguments.tune_file.is_file():
        shutil.copyfile(arguments.tune_file, candidate)
    return candidate


class Comparison:
    """Compares what serving makes of decisions; a :class:`~aiter_tuning.tuner.review.Review`.

    Args:
        family: the operator; it has a public one, ``serve``.
        contests: makes them.
        settings: the bar and the number of blocks.
        tables: where the two sides look.
    """

    unfinished = "what it serves is not compared yet"

    def __init__(self, family: Family, contests: Contests, settings: FinalsSettings, tables: StagedTables) -> None:
        self._contests = contests
        self._settings = settings
        self._tables = tables
        self._source = source_digest(family, ("serve",))

    def plan(self, plan: ShapePlan, decision: Decision, fingerprints: Mapping[str, str]) -> ShapeContest | None:
        """The comparison of a shape whose finals are over; None if nothing is to be served."""
        winner = decision.choice.winner
        if winner is None or not decision.is_complete:
            return None
        winner_us = decision.measurements[winner].us
        expected_us = {BEFORE: _us(decision.measurements.get(plan.incumbent)) or winner_us}
        if changes_row(plan, decision):
            expected_us[after_name(winner)] = winner_us
        settings = self._settings
        return self._contests.on_record(
            plan.shape,
            tuple(expected_us),
            expected_us,
            self.fingerprints(plan, decision, fingerprints),
            lambda ordered, running_us: paired_rule(
                ordered, running_us, BEFORE, settings.rounds, settings.policy.min_improvement_pct
            ),
            phase=COMPARISON,
            verifying_calls=VERIFYING_CALLS,
        )

    def fingerprints(self, plan: ShapePlan, decision: Decision, fingerprints: Mapping[str, str]) -> dict[str, str]:
        """Of both sides, by their names: what serves, and from where."""
        winner = decision.choice.winner
        assert winner is not None
        row = plan.published
        today = [plan.incumbent] if row is None else [row.kernelName, row.us, dict(row.config)]
        return {
            BEFORE: self._digest([*today, fingerprints.get(plan.incumbent, "")]),
            after_name(winner): self._digest([winner, fingerprints[winner]]),
        }

    def is_fresh(self, contest: ShapeContest) -> bool:
        """Whether a row is to change."""
        return len(contest.names) > 1

    def group(self, plan: ShapePlan, decision: Decision, contest: ShapeContest, new_row: NewRow) -> Group:
        """What a lane carries out.

        Raises:
            OSError: the new row could not be staged.
        """
        tasks, winner = self._contests.tasks, decision.choice.winner or ""
        staged = self._tables.stage(*new_row()) if after_name(winner) in contest.names[: contest.running] else ""

        def serve(name: str) -> ServeShape:
            tables, kernel = (self._tables.today, "") if name == BEFORE else ((staged,), winner)
            return ServeShape(tasks.reference, dict(plan.shape), tables, kernel, plan.work)

        def group_of(names: Sequence[str], logbook: Logbook) -> Group:
            ways = [((name,), serve(name)) for name in names]
            return tasks.group_of(plan.shape, plan.label, plan.work, ways, logbook)

        return replace(self._contests.group(plan.shape, contest, group_of), fresh=self.is_fresh(contest))

    def judge(self, plan: ShapePlan, decision: Decision, contest: ShapeContest) -> Decision:
        """The decision now that it is known what serving makes of it."""
        settings, winner = self._settings, decision.choice.winner or ""
        served = served_of(contest, plan.today, winner, settings.policy)
        return judge_served(decision, plan, served, err_ratio=settings.err_ratio, policy=settings.policy)

    def _digest(self, what: Sequence[object]) -> str:
        return hashlib.sha256(json.dumps([self._source, *what]).encode()).hexdigest()[:DIGEST_LENGTH]


def changes_row(plan: ShapePlan, decision: Decision) -> bool:
    """Whether a decision is to write a row."""
    return decision.choice.winner is not None and (plan.published is None or not decision.choice.keeps_row)


def _us(measurement: Measurement | None) -> float | None:
    return measurement.us if measurement is not None and measurement.status is Status.ok else None
