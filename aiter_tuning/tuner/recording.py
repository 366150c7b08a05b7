"""The tuner's eyes on the pool: every moment of a run goes to the checkpoint first, then to whoever watches.

::

    (worker)     ─▶ checkpoint "started", "finished", blocks of finals, by the shape's logbook
    measured     ─▶ checkpoint "finished", if the worker could not: it is dead, or was killed
    stopped      ─▶ checkpoint "stopped"   (a person ended the run: no suspicion)
    follow_up    ─▶ the finals of the shape that was screened, next on the same lane
    group_ended  ─▶ decide ─▶ publisher (evidence, then the row), profile; checkpoint synced
    tick         ─▶ publisher, if rows have waited long enough
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from aiter_tuning.contest import Block
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import LaneView, Watcher
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint
from aiter_tuning.tables.checkpoint_row import DECISION, FINALS, SCREEN
from aiter_tuning.task import Group
from aiter_tuning.tuner.deciding import Decision, decide
from aiter_tuning.tuner.finals import Finals, FinalsPlanner
from aiter_tuning.tuner.grounds import Grounds, now
from aiter_tuning.tuner.outcome import FailureCause, ShapeOutcome, gather_causes, merge_causes
from aiter_tuning.tuner.poison_list import PoisonList
from aiter_tuning.tuner.profile_file import ProfileFile
from aiter_tuning.tuner.publishing import Publisher, WriteFailedError, tuned_row
from aiter_tuning.tuner.reporter import Reporter
from aiter_tuning.tuner.shape_run import ShapeRun

MOST_CAUSES = 1000
"""Distinct causes of failure that are kept for the summary."""


class Recorder(Watcher):
    """Records a run's candidates and publishes its shapes."""

    run_ahead = True

    def __init__(
        self,
        runs: Sequence[ShapeRun],
        *,
        planner: FinalsPlanner,
        checkpoint: Checkpoint,
        publisher: Publisher,
        profile: ProfileFile | None,
        reporter: Reporter,
        grounds: Grounds,
        publish_incomplete: bool,
        poison: PoisonList | None = None,
    ) -> None:
        self._runs = runs
        self._groups: dict[int, _Place] = {}
        self._planner = planner
        self._checkpoint = checkpoint
        self._publisher = publisher
        self._profile = profile
        self._reporter = reporter
        self._grounds = grounds
        self._publish_incomplete = publish_incomplete
        self._poison = poison
        self.outcomes: dict[int, ShapeOutcome] = {}
        self.causes: tuple[FailureCause, ...] = ()

    def watch(self, numbers: Sequence[int]) -> None:
        """Which run each of the pool's groups is; those without anything left to screen are finals."""
        self._groups = {group: _Place(number, not self._runs[number].todo) for group, number in enumerate(numbers)}
        for number, is_finals in self._groups.values():
            if is_finals:
                self._finals_begin(number)

    # What the pool tells.

    def measured(self, group: int, index: int, measurement: Measurement, *, logged: bool) -> None:
        run, name, finals = self._find(group, index)
        earlier = run.attempts if finals is None else finals.attempts
        measurement = replace(measurement, attempt=measurement.attempt + earlier.get(name, 0))
        if not run.began:
            run.began, run.since = now(), time.monotonic()
        if logged:
            self._record(self._checkpoint.sync_if_due)
            (run.results if finals is None else finals.results)[name] = measurement
        else:
            self.put_on_record(run, name, measurement, finals)
        if self._poison is not None:
            self._poison.saw(run.plan.shape, name, run.fingerprints[name], measurement)
        if finals is None:
            self._reporter.candidate_measured(self._groups[group].run, index, measurement)

    def stopped(self, group: int, index: int, attempt: int) -> None:
        run, name, finals = self._find(group, index)
        attempt += (run.attempts if finals is None else finals.attempts).get(name, 0)
        shape, fingerprint, phase = run.plan.shape, run.fingerprints[name], SCREEN if finals is None else FINALS
        self._record(
            lambda: self._checkpoint.stopped(shape, name, phase=phase, attempt=attempt, fingerprint=fingerprint)
        )

    def block_done(self, group: int, block: Block) -> None:
        number = self._groups[group].run
        finals = self._runs[number].finals
        assert finals is not None
        finals.take(block)
        self._record(self._checkpoint.sync_if_due)
        self._reporter.block_done(number, block.number, len(block.order))

    def follow_up(self, group: int, results: Sequence[Measurement], number: int) -> Group | None:
        place = self._groups[group]
        run = self._runs[place.run]
        if place.is_finals or not self._plan_finals(run) or run.finals is None or run.finals.is_over:
            return None
        self._groups[number] = _Place(place.run, True)
        self._finals_begin(place.run)
        return self._planner.group(run.plan, run.finals, run.fingerprints)

    def group_ended(self, group: int, results: Sequence[Measurement]) -> None:
        place = self._groups[group]
        finals = self._runs[place.run].finals
        if place.is_finals or finals is None or finals.is_over:  # else they follow
            self.conclude(place.run)

    def output(self, group: int, index: int, text: str) -> None:
        place = self._groups[group]
        if not place.is_finals:  # there it prints what it has printed before
            self._reporter.candidate_printed(place.run, index, text)

    def note(self, text: str) -> None:
        self._reporter.note(text)

    def tick(self, lanes: Sequence[LaneView]) -> None:
        self._publisher.write_if_due()
        self._reporter.tick(
            [lane if lane.group is None else lane._replace(group=self._groups[lane.group].run) for lane in lanes]
        )

    # What follows from it.

    def put_on_record(self, run: ShapeRun, name: str, measurement: Measurement, finals: Finals | None = None) -> None:
        """Writes a candidate's verdict to the checkpoint and keeps it for the choice."""
        shape, fingerprint, phase = run.plan.shape, run.fingerprints[name], SCREEN if finals is None else FINALS
        self._record(lambda: self._checkpoint.finished(shape, name, measurement, phase=phase, fingerprint=fingerprint))
        (run.results if finals is None else finals.results)[name] = measurement

    def take_up(self) -> dict[int, Callable[[], Group]]:
        """Concludes the shapes that have nothing left to measure; the finals of those that have nothing else left."""
        contests: dict[int, Callable[[], Group]] = {}
        for number, run in enumerate(self._runs):
            for name, measurement in run.convicted.items():
                self.put_on_record(run, name, measurement)
            if run.todo:
                continue
            if self._plan_finals(run) and run.finals is not None and not run.finals.is_over:
                contests[number] = partial(self._planner.group, run.plan, run.finals, run.fingerprints)
            else:
                self.conclude(number)
        return contests

    def _plan_finals(self, run: ShapeRun) -> bool:
        """Whether the screening is over, so that it is known who the finalists are."""
        if not run.finals_planned and not run.missing:
            run.finals = self._planner.plan(run.plan, run.results, run.fingerprints)
            run.finals_planned = True
            for name, measurement in run.finals.convicted.items() if run.finals is not None else ():
                self.put_on_record(run, name, measurement, run.finals)
        return run.finals_planned

    def _finals_begin(self, number: int) -> None:
        finals = self._runs[number].finals
        assert finals is not None
        self._reporter.finals_began(number, finals.names[: finals.running], len(finals.blocks))

    def repair(self) -> None:
        """After a full disk, once nothing writes any more: the checkpoint holds whole rows only."""
        with contextlib.suppress(OSError):
            self._checkpoint.repair()

    @property
    def record_is_there(self) -> bool:
        """Whether the checkpoint can be gone on with: its directory may have been deleted under it."""
        return self._checkpoint.is_there

    def conclude_rest(self) -> None:
        """Concludes the shapes that the pool did not come to."""
        for index in range(len(self._runs)):
            if index not in self.outcomes:
                self.conclude(index)

    def publish_all(self) -> None:
        """Writes the rows that still wait, and looks up every row written."""
        self._publisher.write()
        for note in self._publisher.check():
            self._reporter.note(note)
        for note in self._poison.notes() if self._poison is not None else ():
            self._reporter.note(note)

    def conclude(self, index: int) -> ShapeOutcome:
        """Chooses for one shape from the results it has, and publishes what may be published."""
        run = self._runs[index]
        self._record(self._checkpoint.sync)
        self._plan_finals(run)
        decision = decide(run, self._planner.settings)
        published = self._may_publish(run, decision)
        if decision.is_complete or published:
            self._publish(run, decision, published)
        if self._profile is not None and not run.missing:
            self._profile.append(run.plan, run.results)
        outcome = outcome_of(run, decision, published)
        self.outcomes[index] = outcome
        label = run.plan.label
        failures = ((label, n, m) for n, m in decision.measurements.items() if m.status is not Status.ok)
        self.causes = merge_causes(self.causes, gather_causes(failures))[:MOST_CAUSES]
        self._reporter.shape_ended(index, outcome)
        run.results, run.finals = {}, None  # thousands of shapes: what is needed is on record
        return outcome

    def _publish(self, run: ShapeRun, decision: Decision, published: bool) -> None:
        plan, winner = run.plan, decision.choice.winner
        row = None
        if winner is not None:
            measurement = decision.measurements[winner]
            if published:
                row = tuned_row(plan, plan.candidate(winner), measurement, self._grounds.device)
            if decision.is_complete:
                self._put_decision_on_record(run, winner, measurement)
        evidence = self._grounds.evidence(
            plan,
            decision.choice,
            verdict=decision.verdict,
            published=published,
            measurements=decision.measurements,
            finalists=decision.finalists,
            blocks=decision.blocks,
            fingerprints=run.fingerprints,
            began=run.began or now(),
            since=run.since or time.monotonic(),
        )
        self._publisher.add(row, evidence)

    def _put_decision_on_record(self, run: ShapeRun, winner: str, measurement: Measurement) -> None:
        """So that a resumed run knows that the shape is done with, whatever its row says."""
        shape, fingerprint = run.plan.shape, run.fingerprints[winner]
        attempt = self._checkpoint.attempts(shape, DECISION).get(winner, 0) + 1
        made = replace(measurement, attempt=attempt)
        self._record(lambda: self._checkpoint.finished(shape, winner, made, phase=DECISION, fingerprint=fingerprint))

    def _may_publish(self, run: ShapeRun, decision: Decision) -> bool:
        if not decision.publishable or not (decision.is_complete or self._publish_incomplete):
            return False
        # A published row is only replaced by what was measured beside it, and not touched when it is retained.
        beside = run.plan.published is None or run.plan.incumbent in run.results
        return beside and (run.plan.published is None or not decision.choice.keeps_row)

    def _find(self, group: int, index: int) -> tuple[ShapeRun, str, Finals | None]:
        """The shape, the candidate's name, and the finals if the group is those."""
        place = self._groups[group]
        run = self._runs[place.run]
        if not place.is_finals:
            return run, run.todo[index].name, None
        assert run.finals is not None
        return run, run.finals.names[index], run.finals

    def _record(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except OSError as error:
            raise WriteFailedError(
                f"{self._checkpoint.path}: could not be written: {error.strerror or error}"
            ) from error


class _Place(NamedTuple):
    """What a group is."""

    run: int
    is_finals: bool


def outcome_of(run: ShapeRun, decision: Decision, published: bool) -> ShapeOutcome:
    """A decision for reports."""
    plan, choice, measurements = run.plan, decision.choice, decision.measurements
    default = measurements.get(plan.default)
    counts: Counter[Status] = Counter(measurement.status for measurement in measurements.values())
    counts[Status.not_run] += len(run.missing)
    gate = choice.gate
    return ShapeOutcome(
        label=plan.label,
        shape=plan.shape,
        verdict=decision.verdict,
        reason=decision.reason,
        winner=choice.winner,
        us=measurements[choice.winner].us if choice.winner is not None else None,
        default=plan.default,
        default_us=default.us if default is not None and default.status is Status.ok else None,
        incumbent=plan.incumbent,
        margin_pct=None if gate is None else gate.margin_pct,
        bar_pct=None if gate is None else gate.bar_pct,
        noise_pct=None if gate is None else gate.noise_pct,
        blocks=len(decision.blocks),
        counts={status: count for status, count in counts.items() if count},
        resumed=run.resumed,
        published=published,
    )
