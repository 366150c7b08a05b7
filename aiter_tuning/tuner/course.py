"""What a shape goes on with: its screening, then its finals, then the review of a decision that changes its row.

::

    screening ─▶ finals planned ─▶ finals ─▶ decision ─▶ review planned ─▶ review ─▶ judged again
                 from its results  (a contest)            from the decision (a contest, in a fresh worker)
                       ▲              │                                                   │
                       └── one fails ─┴────────────── whoever won fails ──────────────────┘ others may be the best now

Each stage is planned once, when the one before it is over, from what is known and on record by then; so that a resumed
run plans what the interrupted one had planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint_row import FINALS
from aiter_tuning.task import Group
from aiter_tuning.tuner.deciding import Decision, decide
from aiter_tuning.tuner.finals import FinalsPlanner
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.publishing import WriteFailedError
from aiter_tuning.tuner.review import NewRow, Review
from aiter_tuning.tuner.shape_contest import ShapeContest
from aiter_tuning.tuner.shape_run import ShapeRun

PutOnRecord = Callable[[ShapeRun, str, Measurement, ShapeContest], None]
"""Writes a candidate's verdict in a contest to the checkpoint, and into the contest's results."""


class Course:
    """The stages of a run's shapes.

    Args:
        planner: of finals.
        review: of decisions; None: they are final at once.
        put_on_record: takes verdicts that follow from the record.
    """

    def __init__(self, planner: FinalsPlanner, review: Review | None, put_on_record: PutOnRecord) -> None:
        self._planner = planner
        self._review = review
        self._put_on_record = put_on_record

    def next(self, run: ShapeRun) -> ShapeContest | None:
        """The contest that a shape goes on with; None: its screening is not over, or all of it is."""
        if not self._plan_finals(run):
            return None
        if run.finals is not None and not run.finals.is_over:
            return run.finals
        review = self._plan_review(run)
        if review is not None and self._drop_refuted(run, review):
            return self.next(run)
        return review if review is not None and not review.is_over else None

    def is_fresh(self, contest: ShapeContest) -> bool:
        """Whether a contest needs a worker that has done nothing else."""
        return contest.phase != FINALS and self._review is not None and self._review.is_fresh(contest)

    def group(self, run: ShapeRun, contest: ShapeContest, new_row: Callable[[Decision], NewRow]) -> Group:
        """What a lane carries out.

        Args:
            run: the shape.
            contest: its next.
            new_row: makes what a decision is to write.

        Raises:
            WriteFailedError: a table that it needs could not be written.
        """
        if contest.phase == FINALS:
            return self._planner.group(run.plan, contest)
        assert self._review is not None and run.decision is not None
        try:
            return self._review.group(run.plan, run.decision, contest, new_row(run.decision))
        except OSError as error:
            raise WriteFailedError(f"a table could not be staged: {error.strerror or error}") from error

    def decide(self, run: ShapeRun) -> Decision:
        """The decision on a shape, from all that is known of it."""
        self.next(run)
        decision = _told(decide(run, self._planner.settings), run.refuted)
        if self._review is None or not decision.is_complete:
            return decision
        review = self._plan_review(run)
        if review is None:
            return decision
        if not review.is_over:
            reason = f"{self._review.unfinished}, after {len(review.blocks)} blocks"
            return replace(decision, verdict=Verdict.incomplete, reason=reason, is_complete=False)
        return self._review.judge(run.plan, decision, review)

    def _plan_finals(self, run: ShapeRun) -> bool:
        """Whether the screening is over, so that it is known who the finalists are."""
        if not run.finals_planned and not run.missing:
            run.refuted = self._planner.refuted(run.plan, run.fingerprints) | run.refuted
            run.results.update(run.refuted)
            run.finals = self._planner.plan(run.plan, run.results, run.fingerprints)
            run.finals_planned = True
            self._convict(run, run.finals)
        self._let_others_in(run)
        return run.finals_planned

    def _let_others_in(self, run: ShapeRun) -> None:
        """Plans the finals anew where a finalist failed beside whom others were given up, who may be the best left."""
        while run.finals is not None and (failed := _failed(run.finals)):
            again = self._planner.plan(run.plan, run.results | failed, run.fingerprints)
            if again is None or set(again.names) <= set(run.finals.names):
                return
            run.results.update(failed)
            run.finals = again
            self._convict(run, again)

    def _plan_review(self, run: ShapeRun) -> ShapeContest | None:
        """The review of the decision on a shape whose finals are over."""
        if self._review is not None and run.decision is None:
            run.decision = _told(decide(run, self._planner.settings), run.refuted)
            run.review = self._review.plan(run.plan, run.decision, run.fingerprints)
            self._convict(run, run.review)
        return run.review

    def _drop_refuted(self, run: ShapeRun, review: ShapeContest) -> bool:
        """Whether who won failed in its review: the others have finals without it, then."""
        winner = run.decision.choice.winner if run.decision is not None else None
        failure = _failed(review).get(winner or "")
        if winner is None or failure is None:
            return False
        run.refuted[winner] = failure
        run.decision = run.review = None
        run.finals_planned = False
        return True

    def _convict(self, run: ShapeRun, contest: ShapeContest | None) -> None:
        for name, measurement in contest.convicted.items() if contest is not None else ():
            assert contest is not None
            self._put_on_record(run, name, measurement, contest)


def _told(decision: Decision, refuted: Mapping[str, Measurement]) -> Decision:
    """The decision with a word on those who would have won."""
    why = "".join(f"; {name} failed in another process, {one.status}: {one.detail}" for name, one in refuted.items())
    if not why:
        return decision
    choice = replace(decision.choice, reason=decision.choice.reason + why)
    return replace(decision, choice=choice, reason=decision.reason + why)


def _failed(contest: ShapeContest) -> dict[str, Measurement]:
    return {
        name: one for name, one in contest.results.items() if one.status.is_terminal and one.status is not Status.ok
    }
