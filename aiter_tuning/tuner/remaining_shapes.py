"""From plans and the record of earlier runs to what is left of each shape, and to the groups that a pool works off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiter_tuning.tables.checkpoint import Checkpoint
from aiter_tuning.tables.checkpoint_row import DECISION
from aiter_tuning.task import Logbook
from aiter_tuning.tuner.arguments import TuneArguments
from aiter_tuning.tuner.earlier_outcome import Decided
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.fingerprint import candidate_fingerprints
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.poison_list import PoisonList
from aiter_tuning.tuner.recording import Recorder
from aiter_tuning.tuner.resume import remaining_work
from aiter_tuning.tuner.shape_run import ShapeRun
from aiter_tuning.tuner.tasks import FamilyTasks, ShapeGroups


class RemainingShapes(NamedTuple):
    """The shapes of a run, but for those that have a row and are left alone."""

    runs: list[ShapeRun]
    """Those of which something is left to do."""
    decided: list[Decided]
    """Those that an earlier part of the run decided on."""


def shape_runs(
    family: Family,
    arguments: TuneArguments,
    plans: Sequence[ShapePlan],
    checkpoint: Checkpoint,
    poison: PoisonList,
) -> RemainingShapes:
    """What is left of each shape."""
    runs, decided = [], []
    for plan in plans:
        shape = plan.shape
        fingerprints = candidate_fingerprints(family, plan.candidates)
        finished = checkpoint.finished_results(shape, fingerprints)
        finished = poison.still_counting(shape, fingerprints, finished)
        suspicions = checkpoint.suspects(shape, fingerprints)
        if plan.has_row and not arguments.retune and not finished and not suspicions:
            continue
        attempts = checkpoint.attempts(shape)
        left = remaining_work(plan.measuring_order(), finished, suspicions, attempts, arguments.retry)
        left = poison.withhold(left, shape, fingerprints, attempts, arguments.retry)
        if not left.todo and not left.convicted and _is_decided(plan, checkpoint, fingerprints):
            decided.append(Decided(plan.label, shape, Counter(one.status for one in left.done.values())))
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
    return RemainingShapes(runs, decided)


def _is_decided(plan: ShapePlan, checkpoint: Checkpoint, fingerprints: Mapping[str, str]) -> bool:
    """Whether an earlier part of this run has decided on the shape, and its row says what was decided."""
    if plan.published is None:
        return False
    made = next(reversed(checkpoint.finished_results(plan.shape, fingerprints, DECISION)), None)
    # Not the row's kernelName: a row that launches another config than the candidate of its name is not that candidate.
    return made == plan.today.row


def groups_of(tasks: FamilyTasks, runs: Sequence[ShapeRun], recorder: Recorder, checkpoint: Checkpoint) -> ShapeGroups:
    """What the pool is to do: screenings, and what follows them where shapes have nothing else left.

    Raises:
        WriteFailedError: a verdict that follows from the record could not be put there.
    """
    begun = {number for number, run in enumerate(runs) if run.results or run.attempts}
    contests = recorder.take_up()

    def logbook(number: int) -> Logbook:
        run = runs[number]
        names = [candidate.name for candidate in run.todo]
        return checkpoint.logbook(run.plan.shape, names, run.fingerprints, run.attempts)

    plans, todo = [run.plan for run in runs], [run.todo for run in runs]
    groups = ShapeGroups(tasks, plans, todo, logbook, begun, contests, first=recorder.fresh)
    recorder.watch(groups.numbers)
    return groups
