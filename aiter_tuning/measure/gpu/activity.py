"""Activity records: when each piece of device work began and ended, as the device itself saw it.

::

    launch, launch, launch … ── the source collects ──▶ records ── spans ──▶ microseconds of each call

A call's time is the span from the start of its first piece of work to the end of its last, so that a call of several
kernels counts the gaps between them and a host that launches slowly counts for nothing. Records carry no mark of the
call that they belong to; since every call of a candidate does the same, they are told apart by counting, and a count
that does not come out even means that some were lost. What a graph did is marked where the source can mark it: torch
may put kernels of its own before a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from aiter_tuning.measure.timer import NothingTimedError


class Record(NamedTuple):
    """One kernel, copy or fill on the device."""

    start_ns: float
    end_ns: float
    graph: int = 0
    """Which graph launched it; 0: none, or the source does not know."""


class ActivityUnavailableError(RuntimeError):
    """There is no such source here; the message says why and what to do."""


class ActivityLostError(RuntimeError):
    """Records were lost, so that nothing can be said about single calls."""


class ActivitySource(Protocol):
    """Collects records between ``start`` and ``collect``."""

    def start(self) -> None: ...

    def collect(self) -> Sequence[Record]:
        """All work since ``start``, which has been waited for. Raises ActivityLostError."""
        ...

    def stop(self) -> None:
        """Nothing more is to be collected for now; costs nothing where collecting has stopped already."""
        ...


def spans(records: Sequence[Record], launches: int, calls: int, prelude: int = 0) -> list[float]:
    """Microseconds of each call.

    Args:
        records: of ``launches`` equal launches, each of ``prelude`` records that do not count and ``calls`` calls.
        launches: how many.
        calls: calls in each launch.
        prelude: records of what is done before each launch: restoring inputs, flushing the cache.

    Returns:
        One number for each call. Where a launch's work can't be divided (its calls differ, or each begins before the
        one before has ended), one for each launch: its span by its calls.

    Raises:
        NothingTimedError: there are no records of calls, or what one launch began was still running in the next.
        ActivityLostError: the numbers don't come out even.
    """
    ordered = sorted(records)
    each, odd = divmod(len(ordered), launches)
    if odd or each < prelude:
        raise ActivityLostError(f"{len(ordered)} records of {launches} launches that do the same")
    work = each - prelude
    if work == 0:
        raise NothingTimedError
    result: list[float] = []
    latest = float("-inf")
    for first in range(0, len(ordered), each):
        if prelude and ordered[first].start_ns < latest:
            raise NothingTimedError
        body = ordered[first + prelude : first + each]
        divided = _divide(body, calls)
        latest = max(record.end_ns for record in body)
        result.extend(divided or [(latest - body[0].start_ns) / (1000.0 * calls)])
    return result


def _divide(body: Sequence[Record], calls: int) -> list[float] | None:
    """The span of each call; None where they can't be told apart."""
    each, odd = divmod(len(body), calls)
    if odd:
        return None
    result = []
    ended = float("-inf")
    for first in range(0, len(body), each):
        mine = body[first : first + each]
        if mine[0].start_ns < ended:
            return None
        ended = max(record.end_ns for record in mine)
        result.append((ended - mine[0].start_ns) / 1000.0)
    return result
