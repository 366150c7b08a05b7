"""The tuner's eyes on the pool: every moment of a run goes to the checkpoint first, then to whoever watches.

::

    (worker)     ─▶ checkpoint "started", "finished", blocks of finals, by the shape's logbook
    measured     ─▶ checkpoint "finished", if the worker could not: it is dead, or was killed
    stopped      ─▶ checkpoint "stopped"   (a person ended the run: no suspicion)
    follow_up    ─▶ the finals of the shape that was screened, next on the same lane; then the review of a decision
                     that changes a row, together with others' in a fresh worker
    group_ended  ─▶ decide ─▶ publisher (evidence, then the row), profile; checkpoint synced
    tick         ─▶ publisher, if rows have waited long enough
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from aiter_tuning.contest import Block
from aiter_tuning.keys import full_key
from aiter_tuning.measurement import WRITES_INPUTS, Measurement
from aiter_tuning.pool.watcher import LaneView, Watcher
from aiter_tuning.quantities import counted
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint
from aiter_tuning.tables.checkpoint_row import DECISION, SCREEN
from aiter_tuning.tables.evidence import Evidence
from aiter_tuning.tables.tuned import TunedRow
from aiter_tuning.task import Group
from aiter_tuning.tuner.course import Course
from aiter_tuning.tuner.deciding import Decision, outcome_of
from aiter_tuning.tuner.finals import FinalsPlanner
from aiter_tuning.tuner.grounds import Grounds, now
from aiter_tuning.tuner.outcome import FailureCause, ShapeOutcome, Verdict, gather_causes, merge_causes
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.poison_list import PoisonList
from aiter_tuning.tuner.profile_file import ProfileFile
from aiter_tuning.tuner.publishing import Publisher, WriteFailedError, tuned_row
from aiter_tuning.tuner.reporter import Reporter
from aiter_tuning.tuner.review import Review, Waiting
from aiter_tuning.tuner.shape_contest import ShapeContest
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
        review: Review | None = None,
        update: bool = True,
    ) -> None:
        """Args: where all of it goes; ``review``: looks at decisions again before they are final; ``update``: whether
        the tuned table is written, or another one in its place."""
        self._runs = runs
        self._groups: dict[int, _Place] = {}
        self._course = Course(planner, review, self.put_on_record)
        self._checkpoint = checkpoint
        self._publisher = publisher
        self._profile = profile
        self._reporter = reporter
        self._grounds = grounds
        self._publish_incomplete = publish_incomplete
        self._poison = poison
        self._update = update
        self._waiting: Waiting[_Place] = Waiting()
        self._taken_up: dict[int, _Place] = {}
        """The contests that runs which were screened earlier go on with."""
        self._followed: set[int] = set()
        """Groups whose shape goes on in another one."""
        self._writers: dict[str, list[str]] = {}
        """Shapes by the kernel that their new row names, of kernels that write their inputs."""
        self.outcomes: dict[int, ShapeOutcome] = {}
        self.causes: tuple[FailureCause, ...] = ()

    def watch(self, numbers: Sequence[int]) -> None:
        """Which run each of the pool's groups is; those without anything left to screen are finals."""
        for group, number in enumerate(numbers):
            self._begin(group, self._taken_up.get(number, _Place(number)))

    # What the pool tells.

    def measured(self, group: int, index: int, measurement: Measurement, *, logged: bool) -> None:
        run, name, contest = self._find(group, index)
        earlier = run.attempts if contest is None else contest.attempts
        measurement = replace(measurement, attempt=measurement.attempt + earlier.get(name, 0))
        if not run.began:
            run.began, run.since = now(), time.monotonic()
        if logged:
            self._record(self._checkpoint.sync_if_due)
            (run.results if contest is None else contest.results)[name] = measurement
        else:
            self.put_on_record(run, name, measurement, contest)
        if self._poison is not None and name in run.fingerprints:
            self._poison.saw(run.plan.shape, name, run.fingerprints[name], measurement)
        if contest is None:
            self._reporter.candidate_measured(self._groups[group].run, index, measurement)

    def stopped(self, group: int, index: int, attempt: int) -> None:
        run, name, contest = self._find(group, index)
        attempt += (run.attempts if contest is None else contest.attempts).get(name, 0)
        shape, (phase, prints) = run.plan.shape, _on_record(run, contest)
        self._record(
            lambda: self._checkpoint.stopped(shape, name, phase=phase, attempt=attempt, fingerprint=prints[name])
        )

    def block_done(self, group: int, block: Block) -> None:
        place = self._groups[group]
        assert place.contest is not None
        place.contest.take(block)
        self._record(self._checkpoint.sync_if_due)
        self._reporter.block_done(place.run, block.number, len(block.order))

    def follow_up(self, group: int, results: Sequence[Measurement], number: int, *, idle: bool) -> Group | None:
        place = self._groups[group]
        contest = self._course.next(self._runs[place.run])
        follows = None
        if place.waited:
            self._waiting.ended()
        if contest is not None and contest is not place.contest:  # else it was cut short
            self._followed.add(group)
            follows = self._place(place.run, contest)
            if follows.fresh:
                self._waiting.add(follows._replace(waited=True), expected_s=contest.expected_s)
        if follows is None or follows.fresh:
            follows = self._waiting.take(idle=idle, is_fresh=place.fresh)
        if follows is None:
            return None
        self._begin(number, follows)
        return self._contest_group(follows)

    def group_ended(self, group: int, results: Sequence[Measurement]) -> None:
        place = self._groups[group]
        if group not in self._followed:
            self.conclude(place.run)
        self._groups[group] = _Place(place.run)  # thousands of contests are not kept

    def output(self, group: int, index: int, text: str) -> None:
        place = self._groups[group]
        if place.contest is None:  # in a contest it prints what it has printed before
            self._reporter.candidate_printed(place.run, index, text)

    def note(self, text: str) -> None:
        self._reporter.note(text)

    def tick(self, lanes: Sequence[LaneView]) -> None:
        self._publisher.write_if_due()
        self._reporter.tick(
            [lane if lane.group is None else lane._replace(group=self._groups[lane.group].run) for lane in lanes]
        )

    # What follows from it.

    def put_on_record(
        self, run: ShapeRun, name: str, measurement: Measurement, contest: ShapeContest | None = None
    ) -> None:
        """Writes a candidate's verdict to the checkpoint and keeps it for the choice."""
        shape, (phase, prints) = run.plan.shape, _on_record(run, contest)
        self._record(lambda: self._checkpoint.finished(shape, name, measurement, phase=phase, fingerprint=prints[name]))
        (run.results if contest is None else contest.results)[name] = measurement

    def take_up(self) -> dict[int, Callable[[], Group]]:
        """Concludes the shapes that have nothing left to measure; the contests of those that have nothing else left."""
        for number, run in enumerate(self._runs):
            for name, measurement in run.convicted.items():
                self.put_on_record(run, name, measurement)
            if run.todo:
                continue
            contest = self._course.next(run)
            if contest is not None:
                self._taken_up[number] = self._place(number, contest)
            else:
                self.conclude(number)
        return {number: partial(self._contest_group, place) for number, place in self._taken_up.items()}

    @property
    def fresh(self) -> frozenset[int]:
        """Shapes that :meth:`take_up` found to be waiting for a fresh worker."""
        return frozenset(number for number, place in self._taken_up.items() if place.fresh)

    def _contest_group(self, place: _Place) -> Group:
        """What a lane is to carry out."""
        run = self._runs[place.run]
        assert place.contest is not None

        def new_row(decision: Decision) -> Callable[[], tuple[TunedRow, Evidence]]:
            return lambda: (self._row(run.plan, decision), self._evidence(run, decision, published=False))

        return self._course.group(run, place.contest, new_row)

    def _place(self, number: int, contest: ShapeContest) -> _Place:
        return _Place(number, contest, self._course.is_fresh(contest))

    def _begin(self, group: int, place: _Place) -> None:
        self._groups[group], contest = place, place.contest
        if contest is not None:
            self._reporter.finals_began(place.run, contest.names[: contest.running], len(contest.blocks))

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
        self._correct_outcomes()
        for note in self._publisher.check():
            self._reporter.note(note)
        for kernel, labels in self._writers.items():
            more = f" and {counted(len(labels) - 1, 'more shape')}" if labels[1:] else ""
            self._reporter.note(f"the new row of {labels[0]}{more} names {kernel}, which writes its inputs")
        for note in self._poison.notes() if self._poison is not None else ():
            self._reporter.note(note)

    def _correct_outcomes(self) -> None:
        """By what came out when rows were to be written: serving did not take some, or others' rows stay."""
        refused, kept_out, device = self._publisher.refused, self._publisher.kept_out, self._grounds.device
        for index, outcome in self.outcomes.items() if refused or kept_out else ():
            key = full_key(device.gfx, device.cu_num, device.gpu_model, dict(outcome.shape))
            if key in refused and outcome.proposed:
                told = f"{outcome.winner} is not published, serving does not take it: {refused[key]}"
                outcome = replace(outcome, verdict=Verdict.not_served, reason=told, published=False, proposed=False)
            elif key in kept_out:
                outcome = replace(outcome, published=False)
            self.outcomes[index] = outcome
        if self._publisher.unproven:
            rows = counted(self._publisher.unproven, "row")
            self._reporter.note(f"{rows} not proven, so not written; the same command goes on with that")

    def conclude(self, index: int) -> ShapeOutcome:
        """Chooses for one shape from the results it has, and publishes what may be published."""
        run = self._runs[index]
        self._record(self._checkpoint.sync)
        decision = self._course.decide(run)
        writes = self._may_publish(run, decision)
        if decision.is_complete or writes:
            self._publish(run, decision, writes)
        if self._profile is not None and decision.is_complete:
            self._profile.append(run.plan, run.results)
        outcome = outcome_of(run, decision, published=writes and self._update, proposed=writes)
        self.outcomes[index] = outcome
        label, winner = run.plan.label, decision.choice.winner
        if writes and winner is not None and WRITES_INPUTS in decision.measurements[winner].flags:
            self._writers.setdefault(winner, []).append(label)
        failures = ((label, n, m) for n, m in decision.measurements.items() if m.status is not Status.ok)
        self.causes = merge_causes(self.causes, gather_causes(failures))[:MOST_CAUSES]
        self._reporter.shape_ended(index, outcome)
        # Of thousands of shapes nothing is kept: what is needed is on record.
        run.results, run.finals, run.decision, run.review = {}, None, None, None
        return outcome

    def _publish(self, run: ShapeRun, decision: Decision, writes: bool) -> None:
        plan, winner = run.plan, decision.choice.winner
        evidence = self._evidence(run, decision, published=writes and self._update)
        row = None
        if writes:
            row = self._row(plan, decision)
        else:
            self._publisher.tell(evidence, self._keys_of(plan))
        if winner is not None and decision.is_complete:
            self._put_decision_on_record(run, winner, decision.measurements[winner])
        if row is not None:
            self._publisher.add(row, evidence)

    def _row(self, plan: ShapePlan, decision: Decision) -> TunedRow:
        """What a decision has to write."""
        winner = decision.choice.winner
        assert winner is not None
        return tuned_row(plan, plan.candidate(winner), decision.measurements[winner], self._grounds.device)

    def _keys_of(self, plan: ShapePlan) -> set[tuple[Any, ...]]:
        """The full keys whose rows serve a shape: the device's own, and that of a row which names no model."""
        device = self._grounds.device
        own = full_key(device.gfx, device.cu_num, device.gpu_model, dict(plan.shape))
        return {own} if plan.published is None else {own, plan.published.full_key}

    def _evidence(self, run: ShapeRun, decision: Decision, *, published: bool) -> Evidence:
        return self._grounds.evidence(
            run.plan,
            decision.choice,
            verdict=decision.verdict,
            published=published,
            measurements=decision.measurements,
            finalists=decision.finalists,
            blocks=decision.blocks,
            fingerprints=run.fingerprints,
            began=run.began or now(),
            since=run.since or time.monotonic(),
            served=decision.served,
            confirmed=decision.confirmed,
        )

    def _put_decision_on_record(self, run: ShapeRun, winner: str, measurement: Measurement) -> None:
        """So that a resumed run knows that the shape is done with, whatever its row says."""
        shape, fingerprint = run.plan.shape, run.fingerprints[winner]
        attempt = self._checkpoint.attempts(shape, DECISION).get(winner, 0) + 1
        made = replace(measurement, attempt=attempt)
        self._record(lambda: self._checkpoint.finished(shape, winner, made, phase=DECISION, fingerprint=fingerprint))

    def _may_publish(self, run: ShapeRun, decision: Decision) -> bool:
        if not decision.publishable or not (decision.is_complete or self._publish_incomplete):
            return False
        if not decision.is_complete and run.plan.has_row and decision.choice.verdict is not Verdict.correctness_fix:
            return False  # what was decided by finals in two processes is not replaced by what looks better so far
        # A published row is only replaced by what was measured beside it, and not touched when it is retained.
        beside = run.plan.published is None or run.plan.incumbent in run.results
        return beside and (run.plan.published is None or not decision.choice.keeps_row)

    def _find(self, group: int, index: int) -> tuple[ShapeRun, str, ShapeContest | None]:
        """The shape, the candidate's name, and the contest if the group is one."""
        place = self._groups[group]
        run, contest = self._runs[place.run], place.contest
        if contest is None:
            return run, run.todo[index].name, None
        return run, contest.names[index], contest

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
    contest: ShapeContest | None = None
    """None: the shape's screening."""
    fresh: bool = False
    """Whether it is for a fresh worker."""
    waited: bool = False
    """Whether it waited for one, with others."""


def _on_record(run: ShapeRun, contest: ShapeContest | None) -> tuple[str, Mapping[str, str]]:
    """The phase of rows, and the fingerprints in them."""
    return (SCREEN, run.fingerprints) if contest is None else (contest.phase, contest.fingerprints)
