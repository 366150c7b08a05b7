"""One family's run: shapes in, tuned rows out, resumable at every moment.

::

    untuned CSV ─ shapes ─▶ plan ─▶ remaining (record) ─▶ groups ─▶ pool ─▶ recorder ─▶ tuned CSV ─▶ look-up of each row
                              ▲                                                  │
                          family: candidates                                checkpoint, one row per candidate

This module only puts the parts in order: ``plan`` (what to try), ``resume`` (what is left), ``tasks`` (for the
workers), ``recording`` (what came of it), ``choice`` and ``publishing``. Nothing here imports torch or touches a
device; workers are started before anything slow is done, since they take seconds to import it.
"""

from __future__ import annotations

import argparse
import errno
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiter_tuning.devices.disturbances import disturbance_notes
from aiter_tuning.devices.host_load import LoadWatch
from aiter_tuning.pool.pool import Pool
from aiter_tuning.pool.watcher import RunEnd, RunOutcome
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.tables.evidence import evidence_path
from aiter_tuning.task import LogbookError
from aiter_tuning.tuner.arguments import ARG_DEFAULTS, TuneArguments, check_writable
from aiter_tuning.tuner.comparison import Comparison, StagedTables, begin_proposal
from aiter_tuning.tuner.confirmation import Confirmation
from aiter_tuning.tuner.earlier_outcome import compared_earlier
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.family_reference import check_declarations, is_file_reference, reference_of
from aiter_tuning.tuner.finals import FinalsPlanner, FinalsSettings
from aiter_tuning.tuner.fingerprint import run_fields
from aiter_tuning.tuner.generation import Generation, versions_in_evidence
from aiter_tuning.tuner.grounds import Grounds
from aiter_tuning.tuner.lanes import clocks_of, device_name, measure_plan, preload_of, timer_of
from aiter_tuning.tuner.outcome import ExitCode, LaneTime, RunSummary, Verdict, exit_code_of, in_order
from aiter_tuning.tuner.plan import ShapePlan, plan_shape
from aiter_tuning.tuner.poison_list import PoisonList
from aiter_tuning.tuner.profile_file import ProfileFile
from aiter_tuning.tuner.proving import Prover
from aiter_tuning.tuner.publishing import Publisher, WriteFailedError
from aiter_tuning.tuner.record import discard_if_empty, has_record, open_record, put_away, resume_notes
from aiter_tuning.tuner.recording import Recorder
from aiter_tuning.tuner.remaining_shapes import groups_of, shape_runs
from aiter_tuning.tuner.reporter import PlannedShape, Reporter, RunOverview, Silent
from aiter_tuning.tuner.request import Request, read_request, refusals_placed
from aiter_tuning.tuner.review import Review
from aiter_tuning.tuner.run_notes import advice_at_the_end, bare_text, notes_on_shapes
from aiter_tuning.tuner.shape_contest import Contests
from aiter_tuning.tuner.tasks import FamilyTasks, ShapeGroups
from aiter_tuning.tuning_policy import SAMPLE_SEED, PromotionPolicy

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TunerCommon:
    """Tunes one family.

    Args:
        family: the operator.

    ``ARG_DEFAULTS`` holds the default of every flag; a family overrides some with ``arg_defaults``.
    """

    ARG_DEFAULTS = ARG_DEFAULTS

    def __init__(self, family: Family) -> None:
        self.family = family
        self._reference = reference_of(family)
        check_declarations(type(family), type(family).__module__)
        self._pool: Pool | None = None
        self._stop = False
        self._load = LoadWatch()

    @staticmethod
    def measurement_kwargs(args: argparse.Namespace | TuneArguments, use_cuda_event: bool = False) -> dict[str, Any]:
        """What a task's kwargs must hold for ``--warmup`` and ``--iters`` to reach the timer."""
        return {"num_warmup": args.warmup, "num_iters": args.iters, "use_cuda_event": use_cuda_event}

    def request_stop(self) -> None:
        """Ends the run soon, resumable. From a signal handler or another thread."""
        self._stop = True
        if self._pool is not None:
            self._pool.request_stop()

    def overview(self, args: argparse.Namespace | Mapping[str, Any]) -> RunOverview:
        """What a run would do, from its files and the family alone; writes nothing, starts no process.

        Raises:
            UsageError, CsvError, FamilyError: it could not be done as asked.
            NoDeviceError: there is nothing to measure on.
        """
        arguments = TuneArguments.of(args, self.family)
        work = read_request(self.family, arguments)
        notes = [*work.notes, *resume_notes(arguments)]
        planned: list[PlannedShape] = []
        bare: list[str] = []
        for shape, row, is_open in zip(work.shapes, work.published, work.open, strict=True):
            if is_open or arguments.retune:  # the plans of a hundred thousand shapes are not kept at a time
                with refusals_placed(self.family, work.file):
                    plan = plan_shape(self.family, shape, work.device, row, arguments.candidate_sample)
                planned.append(PlannedShape.of(plan, plan.measuring_order()))
                bare += [] if plan.lists_any else [plan.label]
        if (without := bare_text(self.family, bare)) is not None:
            notes.append(without)
        overview = self._overview(work, sorted(planned, key=lambda shape: shape.row))
        return replace(overview, notes=tuple(notes))

    def run(
        self,
        args: argparse.Namespace | Mapping[str, Any],
        reporter: Reporter | None = None,
        pool: Pool | None = None,
    ) -> RunSummary:
        """Tunes what is not tuned yet.

        Args:
            args: flags by their long names, see ``ARG_DEFAULTS``.
            reporter: is told what happens.
            pool: an open pool to use instead of one for this run.

        Raises:
            UsageError, CsvError, FamilyError: it cannot be done as asked; nothing was written.
            NoDeviceError: there is nothing to measure on.
        """
        began, self._load = time.monotonic(), LoadWatch()
        reporter = reporter or Silent()
        arguments = TuneArguments.of(args, self.family)
        work = read_request(self.family, arguments, pool)
        check_writable(arguments.tune_file, "--tune_file")
        check_writable(evidence_path(arguments.tune_file), "the evidence")
        if arguments.compare and not arguments.update_improved:
            check_writable(arguments.candidate_file, "the candidate table")
        if arguments.checkpoint is not None:
            check_writable(arguments.checkpoint, "--checkpoint")
        profile = None
        if arguments.profile_file is not None:
            check_writable(arguments.profile_file, "--profile_file")
            profile = ProfileFile(arguments.profile_file, self.family.key, work.device)
        for note in work.notes:
            reporter.note(note)
        try:
            return self._tune(work, profile, reporter, pool, began)
        finally:
            self._pool = None

    def _tune(
        self, work: Request, profile: ProfileFile | None, reporter: Reporter, pool: Pool | None, began: float
    ) -> RunSummary:
        arguments, device = work.arguments, work.device
        summary = RunSummary(self.family.name, device_name(device), ExitCode.done, tune_file=str(arguments.tune_file))
        if not (work.untuned or (work.shapes and (arguments.retune or has_record(arguments)))):
            return replace(
                summary,
                already_tuned=len(work.shapes),
                already_stale=len(work.stale),
                elapsed_s=time.monotonic() - began,
            )
        with ExitStack() as stack:
            plans = self._plans(work)  # before the record: a family that fails here leaves no file behind
            fingerprint = self._fingerprint(work)
            checkpoint = self._open_record(arguments, fingerprint, reporter, stack)
            if pool is None:
                pool = self._open_pool(work, reporter, stack)
            self._pool = pool
            poison = PoisonList(self.family.name, device, fingerprint.fields, clocks_of(arguments, self.family))
            runs, decided = shape_runs(self.family, arguments, plans, checkpoint, poison)
            earlier = compared_earlier(
                decided if arguments.compare else (), arguments.tune_file, device, fingerprint.digest
            )
            for note in (*notes_on_shapes(self.family, [run.plan for run in runs]), *poison.notes()):
                reporter.note(note)
            tasks = FamilyTasks(
                self.family, self._reference, seed=SAMPLE_SEED, kwargs=self.measurement_kwargs(arguments)
            )
            settings, contests = _finals_settings(arguments), Contests(tasks, checkpoint, arguments.retry)
            proposal = begin_proposal(arguments) if arguments.compare else None
            recorder = Recorder(
                runs,
                planner=FinalsPlanner(contests, settings),
                checkpoint=checkpoint,
                publisher=self._publisher(work, fingerprint, proposal, stack),
                profile=profile,
                reporter=reporter,
                grounds=Grounds(self.family.name, device, fingerprint, pool.monitor.record),
                publish_incomplete=arguments.budget is not None and not arguments.compare,
                poison=poison,
                review=self._review(arguments, contests, settings, stack),
                update=proposal is None,
            )
            overview = self._overview(work, [PlannedShape.of(run.plan, run.todo, run.resumed) for run in runs])
            overview = replace(overview, already_tuned=overview.already_tuned - len(earlier))
            reporter.run_started(overview)
            end, message = self._measure(
                lambda: groups_of(tasks, runs, recorder, checkpoint), recorder, pool, arguments, began
            )
            shapes = in_order((*recorder.outcomes.values(), *earlier), work.shapes, work.calls)
            proposed = proposal is not None and any(shape.proposed for shape in recorder.outcomes.values())
            if proposal is not None and not proposed:
                proposal.unlink(missing_ok=True)
            is_open = proposed or any(shape.verdict is Verdict.incomplete for shape in shapes)
            record_file = put_away(checkpoint, is_over=bool(runs or earlier) and end is not None and not is_open)
            summary = replace(
                summary,
                exit_code=exit_code_of(
                    shapes,
                    stopped=end is RunEnd.interrupted,
                    no_lanes=end is RunEnd.no_lanes,
                    write_failed=end is None,
                ),
                shapes=shapes,
                shapes_to_tune=len(runs) + len(earlier),
                has_rows=arguments.tune_file.is_file(),
                already_tuned=overview.already_tuned,
                already_stale=overview.already_stale,
                causes=recorder.causes,
                lanes=tuple(LaneTime(view.name, view.busy) for lane in pool.lanes for view in (lane.view(),)),
                compared=arguments.compare,
                updates=proposal is None,
                gfx=device.gfx,
                family_file=self._reference if is_file_reference(self._reference) else "",
                candidate_file=str(proposal) if proposed else "",
                record_file=record_file if runs or earlier else "",
                message=message,
            )
        reporter.run_ended()
        return replace(summary, elapsed_s=time.monotonic() - began)

    def _open_record(
        self, arguments: TuneArguments, fingerprint: RunFingerprint, reporter: Reporter, stack: ExitStack
    ) -> Checkpoint:
        """The run's checkpoint, until the ``stack`` ends; one without a row is gone with a run that fails."""
        checkpoint = open_record(arguments, self.family.key, fingerprint, reporter)
        stack.callback(checkpoint.close)

        def discard_after_failure(kind: object, *_: object) -> None:
            if kind is not None:
                discard_if_empty(checkpoint)

        stack.push(discard_after_failure)
        return checkpoint

    def _open_pool(self, work: Request, reporter: Reporter, stack: ExitStack) -> Pool:
        """A pool for this run, until the ``stack`` ends."""
        load = self._load.read()
        pool = stack.enter_context(Pool(devices=work.devices, preload=preload_of(self.family, work.device)))
        for note in disturbance_notes(work.devices, load):
            reporter.note(note)
        return pool

    def _publisher(
        self, work: Request, fingerprint: RunFingerprint, proposal: Path | None, stack: ExitStack
    ) -> Publisher:
        """What writes rows: into the tuned table, or into a ``proposal``."""
        arguments = work.arguments
        table = proposal or arguments.tune_file
        generation = Generation(versions_in_evidence(arguments.tune_file), fingerprint.fields)
        generation.saw(row for row in (*work.published, *work.provisional) if row is not None)
        prover = None
        if arguments.probe:
            prover = stack.enter_context(
                Prover(
                    self._reference,
                    self.family.key,
                    table,
                    work.device,
                    seed=SAMPLE_SEED,
                    stop=lambda: self._stop,
                    err_ratio=arguments.err_ratio,
                )
            )
        return Publisher(
            table,
            self.family.key,
            batch=arguments.batch,
            sort=arguments.sort,
            generation=generation,
            evidence_of=arguments.tune_file,
            prover=prover,
        )

    def _review(
        self, arguments: TuneArguments, contests: Contests, settings: FinalsSettings, stack: ExitStack
    ) -> Review | None:
        """What looks again at decisions that change rows."""
        if arguments.compare:
            tables = stack.enter_context(StagedTables(arguments.tune_files, self.family))
            return Comparison(self.family, contests, settings, tables)
        return Confirmation(contests, settings) if arguments.confirm else None

    def _measure(
        self,
        make_groups: Callable[[], ShapeGroups],
        recorder: Recorder,
        pool: Pool,
        arguments: TuneArguments,
        began: float,
    ) -> tuple[RunEnd | None, str]:
        """Measures and publishes; how it ended (None: results could not be written) and what to do about it."""
        budget_s = None if arguments.budget is None else max(0.0, arguments.budget - (time.monotonic() - began))
        plan = measure_plan(arguments, pool.devices[0])
        try:
            groups = make_groups()
            outcome = RunOutcome(RunEnd.interrupted) if self._stop else RunOutcome(RunEnd.done)
            if len(groups) and not self._stop:
                outcome = pool.run(
                    groups,
                    plan,
                    clocks_of(arguments, self.family),
                    on_fault="continue",
                    watcher=recorder,
                    budget_s=budget_s,
                    quiet_start=True,
                    precompile=self.family.precompiles,
                )
            recorder.conclude_rest()
            recorder.publish_all()
        except (WriteFailedError, LogbookError) as error:
            recorder.repair()
            text = error.strerror if isinstance(error, LogbookError) else str(error)
            cause = error if isinstance(error, LogbookError) else error.__cause__
            no_room = isinstance(cause, OSError) and cause.errno in _NO_ROOM
            advice = "make room, then run" if no_room else "put that right, then run"
            kept = "what was measured is kept in the checkpoint"
            if not recorder.record_is_there:
                kept = "the checkpoint is gone, and what was measured with it"
            return None, f"{text}; {kept}: {advice} the same command again"
        return outcome.end, advice_at_the_end(outcome, recorder.outcomes.values())

    def _fingerprint(self, work: Request) -> RunFingerprint:
        arguments = work.arguments
        return RunFingerprint(
            run_fields(
                self.family,
                work.device,
                warmup=arguments.warmup,
                iters=arguments.iters,
                err_ratio=arguments.err_ratio,
                seed=SAMPLE_SEED,
                timer=timer_of(arguments, work.device),
            )
            | ({"early stop": "off"} if arguments.full_iters else {})
        )

    def _plans(self, work: Request) -> list[ShapePlan]:
        shapes = zip(work.shapes, work.published, strict=True)
        sample = work.arguments.candidate_sample
        with refusals_placed(self.family, work.file):
            return [plan_shape(self.family, shape, work.device, row, sample) for shape, row in shapes]

    def _overview(self, work: Request, planned: Sequence[PlannedShape]) -> RunOverview:
        device = device_name(work.device)
        overview = RunOverview(
            self.family.name, device, len(work.devices), tuple(planned), len(work.shapes) - len(planned)
        )
        return replace(overview, already_stale=len(work.stale) - overview.stale)


def _finals_settings(arguments: TuneArguments) -> FinalsSettings:
    return FinalsSettings(
        strategy=arguments.strategy,
        finalists=arguments.finalists,
        rounds=arguments.rounds,
        policy=PromotionPolicy(arguments.min_improvement_pct),
        delta_pct=arguments.delta,
        err_ratio=arguments.err_ratio,
    )
