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
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from aiter_tuning.devices.device import Device, NoDeviceError
from aiter_tuning.devices.discovery import device_notes, discover, kind_of
from aiter_tuning.devices.disturbances import disturbance_notes
from aiter_tuning.devices.host_load import LoadWatch
from aiter_tuning.devices.torch_facts import torch_build
from aiter_tuning.keys import Shape
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.statistics import StopRule
from aiter_tuning.measure.timer import check_timer
from aiter_tuning.pool.pool import Pool
from aiter_tuning.pool.watcher import Clocks, RunEnd, RunOutcome
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.tables.checkpoint_row import DECISION
from aiter_tuning.tables.merging import TunedTables
from aiter_tuning.tables.shapes import read_shapes
from aiter_tuning.tables.tuned_row import TunedRow
from aiter_tuning.task import Logbook, LogbookError
from aiter_tuning.tuner.arguments import (
    ARG_DEFAULTS,
    COMPILE_TIMEOUT_S,
    TuneArguments,
    UsageError,
    check_readable,
    check_writable,
)
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.family_reference import check_declarations, reference_of
from aiter_tuning.tuner.finals import FinalsPlanner, FinalsSettings
from aiter_tuning.tuner.fingerprint import candidate_fingerprints, run_fields
from aiter_tuning.tuner.generation import Generation, versions_in_evidence
from aiter_tuning.tuner.grounds import Grounds
from aiter_tuning.tuner.outcome import ExitCode, LaneTime, RunSummary, ShapeOutcome, Verdict, exit_code_of
from aiter_tuning.tuner.plan import ShapePlan, plan_shape, serving_shapes
from aiter_tuning.tuner.poison_list import PoisonList
from aiter_tuning.tuner.profile_file import ProfileFile
from aiter_tuning.tuner.publishing import Publisher, WriteFailedError
from aiter_tuning.tuner.record import discard_if_empty, has_record, open_record
from aiter_tuning.tuner.recording import Recorder
from aiter_tuning.tuner.reporter import PlannedShape, Reporter, RunOverview, Silent
from aiter_tuning.tuner.resume import remaining_work
from aiter_tuning.tuner.shape_run import ShapeRun
from aiter_tuning.tuner.tasks import FamilyTasks, ShapeGroups
from aiter_tuning.tuning_policy import SAMPLE_SEED, PromotionPolicy

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class _Work:
    """What a run has been asked to do, on which devices, and what serving finds there today."""

    arguments: TuneArguments
    devices: tuple[Device, ...]
    shapes: tuple[Shape, ...]
    published: tuple[TunedRow | None, ...]
    notes: tuple[str, ...]

    @property
    def device(self) -> Device:
        return self.devices[0]

    @property
    def untuned(self) -> int:
        return self.published.count(None)


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
        work = self._read(TuneArguments.of(args, self.family))
        planned = tuple(
            self._planned(shape, work.device, row, work.arguments.candidate_sample)
            for shape, row in zip(work.shapes, work.published, strict=True)
            if row is None or work.arguments.retune
        )
        already = len(work.shapes) - len(planned)
        return RunOverview(self.family.name, _name(work.device), len(work.devices), planned, already, work.notes)

    def _planned(self, shape: Shape, device: Device, row: TunedRow | None, sample: int | None) -> PlannedShape:
        """What is shown of a plan; the plans of a hundred thousand shapes are not kept at a time."""
        plan = plan_shape(self.family, shape, device, row, sample)
        return PlannedShape(plan.label, tuple(c.name for c in plan.measuring_order()), 0, plan.incumbent)

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
        work = self._read(arguments, pool)
        check_writable(arguments.tune_file, "--tune_file")
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

    def _read(self, arguments: TuneArguments, pool: Pool | None = None) -> _Work:
        """Everything that can be wrong with a request, found before anything is started or written."""
        check_readable(arguments.untune_file, "--untune_file", "a CSV file of shapes")
        try:
            file = read_shapes(arguments.untune_file, self.family.key)
        except OSError as error:
            raise UsageError(f"--untune_file {arguments.untune_file}: {error.strerror or error}") from error
        devices = pool.devices if pool is not None else self._devices(arguments)
        device = devices[0]
        try:
            check_timer(arguments.timer, "cpu" if device.torch_device == "cpu" else "cuda")
        except ValueError as error:
            raise UsageError(f"--timer {arguments.timer}: {error}") from None
        shapes, notes = serving_shapes(self.family, file.shapes)
        tables = TunedTables(arguments.tune_files, self.family.key)
        tables.rows()  # what is wrong with a table is told even where no shape is looked up in it
        published = [tables.find(device.gfx, device.cu_num, device.gpu_model, shape) for shape in shapes]
        warnings = [*file.warnings, *tables.warnings]
        if file.duplicates:
            repeat = "1 row repeats a shape" if file.duplicates == 1 else f"{file.duplicates} rows repeat a shape"
            distinct = "1 distinct shape" if len(file.shapes) == 1 else f"{len(file.shapes)} distinct shapes"
            warnings.append(f"{file.path}: {repeat}; {distinct} in {file.rows} rows")
        notes = [*device_notes(devices), *notes]
        return _Work(arguments, devices, tuple(shapes), tuple(published), (*warnings, *notes))

    def _devices(self, arguments: TuneArguments) -> tuple[Device, ...]:
        wanted, runs_on = arguments.device, tuple(self.family.devices)
        if wanted is not None:
            asked = {wanted} if wanted in ("cpu", "cuda", "hip") else {"cuda", "hip"}  # else it names GPUs
            interpreted = wanted == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
            try:
                if asked & set(runs_on) or interpreted:
                    devices = discover(wanted, arguments.mp)
                    if kind_of(devices[0]) in runs_on or interpreted:
                        return devices
            except ValueError as error:
                raise UsageError(f"--device {wanted}: {error}") from None
            interpret = "; TRITON_INTERPRET=1 runs its Triton kernels on the CPU, to see that they are right"
            hint = interpret if wanted == "cpu" and self.family.precompiles else ""
            raise UsageError(f"--device {wanted}: {self.family.name} runs on {', '.join(runs_on)} only{hint}")
        reasons = {}
        for kind in runs_on:
            try:
                return discover(kind, arguments.mp)
            except NoDeviceError as error:
                reasons[kind] = str(error)
        # Of the kinds that the installed torch does not drive there is nothing to say.
        reason = reasons.get(torch_build().kind) or next(iter(reasons.values()), "it names no kind of device")
        raise NoDeviceError(f"{self.family.name} runs on {', '.join(runs_on)}: {reason}")

    def _tune(
        self, work: _Work, profile: ProfileFile | None, reporter: Reporter, pool: Pool | None, began: float
    ) -> RunSummary:
        arguments, device = work.arguments, work.device
        summary = RunSummary(self.family.name, _name(device), ExitCode.done, tune_file=str(arguments.tune_file))
        with ExitStack() as stack:
            if not (work.untuned or (work.shapes and (arguments.retune or has_record(arguments)))):
                return replace(summary, already_tuned=len(work.shapes), elapsed_s=time.monotonic() - began)
            plans = self._plans(work)  # before the record: a family that fails here leaves no file behind
            checkpoint = open_record(arguments, self.family.key, self._fingerprint(work), reporter)
            stack.callback(checkpoint.close)

            def discard_after_failure(kind: object, *_: object) -> None:
                if kind is not None:
                    discard_if_empty(checkpoint)

            stack.push(discard_after_failure)
            if pool is None:
                load = self._load.read()
                pool = stack.enter_context(Pool(devices=work.devices, preload=_preload(self.family, work.device)))
                for note in disturbance_notes(work.devices, load):
                    reporter.note(note)
            self._pool = pool
            poison = PoisonList(self.family.name, device, self._fingerprint(work).fields, self._clocks(arguments))
            runs, already = self._remaining(work, plans, checkpoint, poison)
            for note in poison.notes():
                reporter.note(note)
            tasks = FamilyTasks(
                self.family, self._reference, seed=SAMPLE_SEED, kwargs=self.measurement_kwargs(arguments)
            )

            generation = Generation(versions_in_evidence(arguments.tune_file), self._fingerprint(work).fields)
            generation.saw(row for row in work.published if row is not None)
            publisher = Publisher(
                arguments.tune_file,
                self.family.key,
                batch=arguments.batch,
                sort=arguments.sort,
                generation=generation,
            )
            fingerprint = self._fingerprint(work)
            recorder = Recorder(
                runs,
                planner=FinalsPlanner(tasks, checkpoint, _finals_settings(arguments), arguments.retry),
                checkpoint=checkpoint,
                publisher=publisher,
                profile=profile,
                reporter=reporter,
                grounds=Grounds(self.family.name, device, fingerprint, pool.monitor.record),
                publish_incomplete=arguments.budget is not None,
                poison=poison,
            )

            def groups() -> ShapeGroups:
                return _groups(tasks, runs, recorder, checkpoint)

            reporter.run_started(self._started(work, runs, already))
            end, message = self._measure(groups, recorder, pool, arguments, began)
            shapes = tuple(recorder.outcomes[index] for index in sorted(recorder.outcomes))
            write_failed = end is None
            record_file = str(checkpoint.path)
            if discard_if_empty(checkpoint):
                record_file = ""
            elif runs and not write_failed and all(shape.verdict is not Verdict.incomplete for shape in shapes):
                record_file = str(checkpoint.complete())
            summary = replace(
                summary,
                exit_code=exit_code_of(
                    shapes,
                    stopped=end is RunEnd.interrupted,
                    no_lanes=end is RunEnd.no_lanes,
                    write_failed=write_failed,
                ),
                shapes=shapes,
                shapes_to_tune=len(runs),
                has_rows=arguments.tune_file.is_file(),
                already_tuned=already,
                causes=recorder.causes,
                lanes=tuple(LaneTime(view.name, view.busy) for lane in pool.lanes for view in (lane.view(),)),
                record_file=record_file if runs else "",
                message=message,
            )
        reporter.run_ended()
        return replace(summary, elapsed_s=time.monotonic() - began)

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
        plan = MeasurePlan(
            err_ratio=arguments.err_ratio,
            seed=SAMPLE_SEED,
            early_stop=None if arguments.full_iters else StopRule(),
            warmup=arguments.warmup,
            iters=arguments.iters,
            timer=_timer(arguments, pool.devices[0]),
        )
        try:
            groups = make_groups()
            outcome = RunOutcome(RunEnd.interrupted) if self._stop else RunOutcome(RunEnd.done)
            if len(groups) and not self._stop:
                outcome = pool.run(
                    groups,
                    plan,
                    self._clocks(arguments),
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
        return outcome.end, _advice(outcome, recorder.outcomes.values())

    def _clocks(self, arguments: TuneArguments) -> Clocks:
        compile_s = arguments.compile_timeout or (COMPILE_TIMEOUT_S if self.family.precompiles else None)
        return Clocks(arguments.timeout, arguments.candidate_timeout, compile_s)

    def _fingerprint(self, work: _Work) -> RunFingerprint:
        arguments = work.arguments
        return RunFingerprint(
            run_fields(
                self.family,
                work.device,
                warmup=arguments.warmup,
                iters=arguments.iters,
                err_ratio=arguments.err_ratio,
                seed=SAMPLE_SEED,
                timer=_timer(arguments, work.device),
            )
            | ({"early stop": "off"} if arguments.full_iters else {})
        )

    def _plans(self, work: _Work) -> list[ShapePlan]:
        shapes = zip(work.shapes, work.published, strict=True)
        sample = work.arguments.candidate_sample
        return [plan_shape(self.family, shape, work.device, row, sample) for shape, row in shapes]

    def _remaining(
        self, work: _Work, plans: Sequence[ShapePlan], checkpoint: Checkpoint, poison: PoisonList
    ) -> tuple[list[ShapeRun], int]:
        """What is left of each shape, and how many have a row and nothing left."""
        runs = []
        for plan in plans:
            shape, row = plan.shape, plan.published
            fingerprints = candidate_fingerprints(self.family, plan.candidates)
            finished = checkpoint.finished_results(shape, fingerprints)
            finished = poison.still_counting(shape, fingerprints, finished)
            suspicions = checkpoint.suspects(shape, fingerprints)
            if row is not None and not work.arguments.retune and not finished and not suspicions:
                continue
            attempts = checkpoint.attempts(shape)
            left = remaining_work(plan.measuring_order(), finished, suspicions, attempts, work.arguments.retry)
            left = poison.withhold(left, shape, fingerprints, attempts, work.arguments.retry)
            if (
                row is not None
                and not left.todo
                and not left.convicted
                and self._is_decided(plan, checkpoint, fingerprints)
            ):
                continue
            runs.append(
                ShapeRun(
                    plan=plan,
                    fingerprints=fingerprints,
                    todo=left.todo,
                    attempts=attempts,
                    results=dict(left.done),
                    convicted=left.convicted,
                    resumed=len(left.done),
                )
            )
        return runs, len(work.shapes) - len(runs)

    def _is_decided(self, plan: ShapePlan, checkpoint: Checkpoint, fingerprints: Mapping[str, str]) -> bool:
        """Whether an earlier part of this run has decided on the shape, and its row says what was decided."""
        made = list(checkpoint.finished_results(plan.shape, fingerprints, DECISION))
        return bool(made) and plan.published is not None and made[-1] == plan.published.kernelName

    def _started(self, work: _Work, runs: Sequence[ShapeRun], already: int) -> RunOverview:
        planned = (
            PlannedShape(run.plan.label, tuple(c.name for c in run.todo), run.resumed, run.plan.incumbent)
            for run in runs
        )
        return RunOverview(self.family.name, _name(work.device), len(work.devices), tuple(planned), already)


def _groups(tasks: FamilyTasks, runs: Sequence[ShapeRun], recorder: Recorder, checkpoint: Checkpoint) -> ShapeGroups:
    """What the pool is to do: screenings, and finals of shapes that have nothing else left.

    Raises:
        WriteFailedError: a verdict that follows from the record could not be put there.
    """
    begun = {number for number, run in enumerate(runs) if run.results or run.attempts}
    contests = recorder.take_up()

    def logbook(number: int) -> Logbook:
        run = runs[number]
        names = [candidate.name for candidate in run.todo]
        return checkpoint.logbook(run.plan.shape, names, run.fingerprints, run.attempts)

    groups = ShapeGroups(
        tasks,
        [run.plan for run in runs],
        [run.todo for run in runs],
        logbook,
        begun=begun,
        contests=contests,
    )
    recorder.watch(groups.numbers)
    return groups


def _finals_settings(arguments: TuneArguments) -> FinalsSettings:
    return FinalsSettings(
        strategy=arguments.strategy,
        finalists=arguments.finalists,
        rounds=arguments.rounds,
        policy=PromotionPolicy(arguments.min_improvement_pct),
        delta_pct=arguments.delta,
        err_ratio=arguments.err_ratio,
    )


def _name(device: Device) -> str:
    """The device for a person."""
    unit = "core" if device.torch_device == "cpu" else "CU"
    return f"{device.gpu_model} ({device.gfx}, {device.cu_num} {unit}{'s' if device.cu_num != 1 else ''})"


def _advice(outcome: RunOutcome, shapes: Iterable[ShapeOutcome]) -> str:
    """What a person should know about the end of a run, and do next."""
    incomplete = sum(shape.verdict is Verdict.incomplete for shape in shapes)
    left = f"{incomplete} shape{'s' if incomplete != 1 else ''} incomplete; run the same command again to go on"
    if outcome.end is RunEnd.no_lanes:
        return f"{outcome.reason}; {left}"
    if outcome.end is RunEnd.interrupted:
        return f"interrupted: {left}"
    if outcome.end is RunEnd.budget:
        return f"the budget is used up: {left}" if incomplete else ""
    return left if incomplete else ""


def _timer(arguments: TuneArguments, device: Device) -> str:
    """The clock that was asked for; of itself the host's on a CPU, elsewhere the best that works there."""
    return "wall" if device.torch_device == "cpu" else arguments.timer


def _preload(family: Family, device: Device) -> tuple[str, ...]:
    """What workers import before they are needed."""
    on_gpu = device.torch_device != "cpu"
    return ("aiter_tuning.measure.triton_ahead", "torch", "triton") if on_gpu and family.precompiles else ("torch",)
