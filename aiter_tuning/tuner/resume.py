"""What is left to measure for a shape, given what an earlier run put on record: a decision on values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.family import Candidate

SUSPICIONS_THAT_CONVICT = 2
"""A candidate that was running this often when the run itself died is a crash, and not run again."""


@dataclass(frozen=True)
class Remaining:
    """The state of a shape at the start of a run."""

    done: Mapping[str, Measurement]
    """Results on record that stand, by candidate."""
    convicted: Mapping[str, Measurement]
    """Verdicts that follow from the record and are not on it yet."""
    todo: tuple[Candidate, ...]
    """In the order in which to measure, suspects last."""


def remaining_work(
    order: Iterable[Candidate],
    finished: Mapping[str, Measurement],
    suspicions: Mapping[str, int],
    attempts: Mapping[str, int],
    retry: Set[Status] = frozenset(),
) -> Remaining:
    """Splits a shape's candidates into those that are done and those left.

    Args:
        order: all candidates, in the order in which to measure them.
        finished: results on record whose fingerprint is the candidate's of today.
        suspicions: how often a candidate was started without an end.
        attempts: the highest attempt on record of each candidate.
        retry: statuses that do not count as done.
    """
    done: dict[str, Measurement] = {}
    convicted: dict[str, Measurement] = {}
    first: list[Candidate] = []
    last: list[Candidate] = []
    for candidate in order:
        name = candidate.name
        measurement = finished.get(name)
        suspected = suspicions.get(name, 0)
        if measurement is not None and measurement.status not in retry:
            done[name] = measurement
        elif suspected >= SUSPICIONS_THAT_CONVICT and Status.crash not in retry:
            detail = f"the run died {suspected} times while it ran; --retry crash tries it again"
            convicted[name] = Measurement.failed(
                Status.crash, detail, us=math.inf, attempt=attempts.get(name, suspected)
            )
        elif suspected:
            last.append(candidate)
        else:
            first.append(candidate)
    return Remaining(done, convicted, tuple(first + last))
