"""The tuner's eyes on the pool: every moment of a run goes to the checkpoint first, then to whoever watches.

::

    (worker)     ─▶ checkpoint "started", "finished", by the shape's logbook
    measured     ─▶ checkpoint "finished", if the worker could not: it is dead, or was killed
    stopped      ─▶ checkpoint "stopped"   (a person ended the run: no suspicion)
    group_ended  ─▶ choose ─▶ publisher, profile; checkpoint synced
    tick         ─▶ publisher, if rows have waited long enough
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import LaneView, Watcher
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint
from aiter_tuning.tuner.choice import Choice, Today, choose
from aiter_tuning.tuner.family import Candidate
from aiter_tuning.tuner.outcome import FailureCause, ShapeOutcome, Verdict, gather_causes, merge_causes
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.poison_list import PoisonList
from aiter_tuning.tuner.profile_file import ProfileFile
from aiter_tuning.tuner.publishing import Publisher, WriteFailedError, tuned_row
from aiter_tuning.tuner.reporter import Reporter

MOST_CAUSES = 1000
"""Distinct causes of failure that are kept for the summary."""


@dataclass
class ShapeRun:
    """One shape while it is being tuned."""

    plan: ShapePlan
    fingerprints: Mapping[str, str]
    todo: tuple[Candidate, ...]
    """What the group holds; its indices count in here."""
    attempts: Mapping[str, int]
    """Attempts on record from earlier runs."""
    results: dict[str, Measurement]
    """By candidate; starts with what is on record."""
    resumed: int
    convicted: Mapping[str, Measurement] = field(default_factory=dict)
    """Verdicts that follow from the record and are still to be put there."""


class Recorder(Watcher):
    """Records a run's candidates and publishes its shapes."""

    run_ahead = True

    def __init__(
        self,
        runs: Sequence[ShapeRun],
        group_runs: Sequence[int],
        *,
        checkpoint: Checkpoint,
        publisher: Publisher,
        profile: ProfileFile | None,
        reporter: Reporter,
        device: Device,
        err_ratio: float,
        publish_incomplete: bool,
        poison: PoisonList | None = None,
    ) -> None:
        self._runs = runs
        self._group_runs = group_runs
        """Which run each of the pool's groups is."""
        self._checkpoint = checkpoint
        self._publisher = publisher
        self._profile = profile
        self._reporter = reporter
        self._device = device
        self._err_ratio = err_ratio
        self._publish_incomplete = publish_incomplete
        self._poison = poison
        self.outcomes: dict[int, ShapeOutcome] = {}
        self.causes: tuple[FailureCause, ...] = ()

    # What the pool tells.

    def measured(self, group: int, index: int, measurement: Measurement, *, logged: bool) -> None:
        run, candidate = self._find(group, index)
        name = candidate.name
        measurement = replace(measurement, attempt=measurement.attempt + run.attempts.get(name, 0))
        if logged:
            self._record(self._checkpoint.sync_if_due)
            run.results[name] = measurement
        else:
            self.put_on_record(run, name, measurement)
        if self._poison is not None:
            self._poison.saw(run.plan.shape, name, run.fingerprints[name], measurement)
        self._reporter.candidate_measured(self._group_runs[group], index, measurement)

    def stopped(self, group: int, index: int, attempt: int) -> None:
        run, candidate = self._find(group, index)
        name = candidate.name
        attempt += run.attempts.get(name, 0)
        shape, fingerprint = run.plan.shape, run.fingerprints[name]
        self._record(lambda: self._checkpoint.stopped(shape, name, attempt=attempt, fingerprint=fingerprint))

    def group_ended(self, group: int, results: Sequence[Measurement]) -> None:
        self.conclude(self._group_runs[group])

    def output(self, group: int, index: int, text: str) -> None:
        self._reporter.candidate_printed(self._group_runs[group], index, text)

    def note(self, text: str) -> None:
        self._reporter.note(text)

    def tick(self, lanes: Sequence[LaneView]) -> None:
        self._publisher.write_if_due()
        self._reporter.tick(
            [lane if lane.group is None else lane._replace(group=self._group_runs[lane.group]) for lane in lanes]
        )

    # What follows from it.

    def put_on_record(self, run: ShapeRun, name: str, measurement: Measurement) -> None:
        """Writes a candidate's verdict to the checkpoint and keeps it for the choice."""
        shape, fingerprint = run.plan.shape, run.fingerprints[name]
        self._record(lambda: self._checkpoint.finished(shape, name, measurement, fingerprint=fingerprint))
        run.results[name] = measurement

    def conclude_resumed(self) -> None:
        """Concludes the shapes that have nothing left to measure."""
        for index, run in enumerate(self._runs):
            for name, measurement in run.convicted.items():
                self.put_on_record(run, name, measurement)
            if not run.todo:
                self.conclude(index)

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
        plan = run.plan
        self._record(self._checkpoint.sync)
        missing = [name for name in plan.names if name not in run.results]
        row = plan.published.kernelName if plan.published is not None else None
        today = Today(plan.incumbent, plan.default, row)
        choice = choose(plan.names, run.results, today, err_ratio=self._err_ratio)
        verdict = Verdict.incomplete if missing else choice.verdict
        published = self._may_publish(plan, choice, missing)
        if published and choice.winner is not None:
            winner = run.results[choice.winner]
            self._publisher.add(tuned_row(plan, plan.candidate(choice.winner), winner, self._device))
        if self._profile is not None and not missing:
            self._profile.append(plan, run.results)
        default = run.results.get(plan.default)
        counts: Counter[Status] = Counter(measurement.status for measurement in run.results.values())
        counts[Status.not_run] += len(missing)
        outcome = ShapeOutcome(
            label=plan.label,
            shape=plan.shape,
            verdict=verdict,
            reason=f"{len(missing)} of {len(plan.names)} candidates not run" if missing else choice.reason,
            winner=choice.winner,
            us=run.results[choice.winner].us if choice.winner is not None else None,
            default=plan.default,
            default_us=default.us if default is not None and default.status is Status.ok else None,
            counts={status: count for status, count in counts.items() if count},
            resumed=run.resumed,
            published=published,
        )
        self.outcomes[index] = outcome
        failures = ((plan.label, n, m) for n, m in run.results.items() if m.status is not Status.ok)
        self.causes = merge_causes(self.causes, gather_causes(failures))[:MOST_CAUSES]
        self._reporter.shape_ended(index, outcome)
        run.results = {}  # thousands of shapes: what is needed is on record
        return outcome

    def _may_publish(self, plan: ShapePlan, choice: Choice, missing: Sequence[str]) -> bool:
        if choice.winner is None:
            return False
        if plan.published is not None:
            # A published row is only replaced by what was measured beside it, and not touched when it is retained.
            return not choice.keeps_row and plan.incumbent not in missing and (self._publish_incomplete or not missing)
        return self._publish_incomplete or not missing

    def _find(self, group: int, index: int) -> tuple[ShapeRun, Candidate]:
        run = self._runs[self._group_runs[group]]
        return run, run.todo[index]

    def _record(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except OSError as error:
            raise WriteFailedError(
                f"{self._checkpoint.path}: could not be written: {error.strerror or error}"
            ) from error
