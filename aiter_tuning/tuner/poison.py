"""Which candidates are poison: they killed or hung a worker, and later runs leave them alone.

::

    verdict of a run ─ offence_of ─▶ Poisoned ─▶ poison list (poison_list.py), of this user, beyond any one table
                                                      │
    plan of a later run ◀─ withhold ─ sentence_of ◀───┘   "poisoned: …" on record instead of another dead worker

Only what a candidate did to its process counts: a fault's signal, an exit, a device fault, a clock that was its own.
What may have come from outside never does: SIGKILL and other signals that people and systems send, memory that ran
out, inputs or a reference that failed, a run that was stopped, a clock for a whole shape, an error of the hardware.

A record holds for one device model, one candidate (its config and source) and the versions it was seen under: with
another driver, torch or Triton the candidate gets a new chance. It holds for the shape that it was seen with, and for
every shape once it was seen with three. A hang holds only for clocks that are no longer than the one it outlived.
Decisions on values, no I/O.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from aiter_tuning.keys import KeyValue
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import Clocks
from aiter_tuning.status import Status, classify, is_device_fault, one_line
from aiter_tuning.tuner.resume import Remaining
from aiter_tuning.tuner.stale_rows import VERSIONS

SHAPES_THAT_CONVICT = 3
"""A candidate that offended with so many shapes is left alone with all of them."""
PREFIX = "poisoned: "
"""How the detail of a withheld candidate begins."""

_OWN_SIGNALS = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP", "SIGSYS"})
"""What a process earns itself; the others are sent by people, job managers and kernels short of memory."""
_KILLED = re.compile(r"worker was killed by signal \d+ \((SIG\w+)\)(?=;|$)")
_EXITED = re.compile(r"worker (?:exited with code \d+|closed its result pipe and was killed)(?=;|$)")
_OUTLIVED = re.compile(r"no result after (\S+) s \((candidate|compile) clock\), killed")
_NOT_ITS_DOING = re.compile(r"(?:inputs|reference): |.*uncorrectable ECC", re.IGNORECASE | re.DOTALL)


class Offence(NamedTuple):
    """What a candidate did to its worker."""

    what: str
    """``worker was killed by signal 11 (SIGSEGV)``."""
    clock: str = ""
    """``candidate`` or ``compile``: the clock that it outlived."""
    clock_s: float | None = None


@dataclass(frozen=True)
class Poisoned:
    """One candidate that did so with one shape on one model of device."""

    device: Mapping[str, Any]
    """``gfx``, ``cu_num``, ``gpu_model``."""
    fingerprint: str
    """Of the candidate: its config and source."""
    versions: Mapping[str, str]
    family: str
    candidate: str
    shape: Mapping[str, KeyValue]
    status: Status
    """``crash`` or ``timeout``."""
    detail: str
    """What the run's record says, last output included."""
    when: str
    """ISO 8601, UTC."""
    host: str = ""
    clock: str = ""
    clock_s: float | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """Two records of one identity tell of the same thing; the newer one counts."""
        return (*_sorted(self.device), self.fingerprint, *_sorted(self.versions), *_sorted(self.shape), self.status)


def offence_of(measurement: Measurement) -> Offence | None:
    """What a verdict says that the candidate did to its worker; None: nothing that is its own doing."""
    detail = measurement.detail
    if _NOT_ITS_DOING.match(detail) or not math.isinf(measurement.us):
        return None
    if measurement.status is Status.timeout:
        outlived = _OUTLIVED.match(detail)
        return Offence(outlived[0], outlived[2], float(outlived[1])) if outlived else None
    if measurement.status is not Status.crash or detail.startswith(PREFIX):
        return None
    if classify(RuntimeError(detail)) is Status.oom_runtime:  # std::bad_alloc ends in an abort
        return None
    if killed := _KILLED.match(detail):
        return Offence(killed[0]) if killed[1] in _OWN_SIGNALS else None
    if exited := _EXITED.match(detail):
        return Offence(exited[0])
    return Offence(one_line(detail, 120)) if is_device_fault(RuntimeError(detail)) else None


def sentence_of(
    records: Iterable[Poisoned], shape: Mapping[str, KeyValue], versions: Mapping[str, str], clocks: Clocks
) -> Measurement | None:
    """The verdict that stands in for measuring a candidate; None: it is to be measured.

    Args:
        records: what is known of the candidate on this model of device.
        shape: what it would be measured with.
        versions: those of today.
        clocks: those of this run.
    """
    counting = [record for record in records if _counts(record, versions, clocks)]
    here = [record for record in counting if record.shape == shape]
    shapes = {_sorted(record.shape) for record in counting}
    if not here and len(shapes) < SHAPES_THAT_CONVICT:
        return None
    newest = max(here or counting, key=lambda record: record.when)
    place = "" if here else f" with {len(shapes)} other shapes"
    text = f"{PREFIX}{newest.when[:10]}{place}: {newest.detail}"
    advice = f"; --retry {newest.status} runs it"
    return Measurement.failed(newest.status, one_line(text, 500 - len(advice)) + advice, us=math.inf)


def is_sentence(measurement: Measurement) -> bool:
    """Whether a result on record only says that the candidate was withheld."""
    return measurement.detail.startswith(PREFIX)


def withhold(
    left: Remaining, sentences: Mapping[str, Measurement], attempts: Mapping[str, int], retry: Set[Status]
) -> Remaining:
    """Takes poisoned candidates out of what is left to measure, and puts their verdicts in its place.

    Args:
        left: what the record leaves to do.
        sentences: of candidates, by name.
        attempts: the highest attempt on record of each candidate.
        retry: statuses that the run is asked to try again.
    """
    withheld = {
        candidate.name: replace(sentences[candidate.name], attempt=attempts.get(candidate.name, 0) + 1)
        for candidate in left.todo
        if candidate.name in sentences and sentences[candidate.name].status not in retry
    }
    if not withheld:
        return left
    todo = tuple(candidate for candidate in left.todo if candidate.name not in withheld)
    return replace(left, convicted={**left.convicted, **withheld}, todo=todo)


def _counts(record: Poisoned, versions: Mapping[str, str], clocks: Clocks) -> bool:
    if any(record.versions.get(name, "") != versions.get(name, "") for name in VERSIONS):
        return False
    if record.clock_s is None:
        return True
    # Without a clock for the first call, the candidate's covers it.
    longer = clocks.compile_s if record.clock == "compile" and clocks.compile_s is not None else clocks.candidate_s
    return longer is not None and longer <= record.clock_s


def _sorted(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(name), str(value)) for name, value in values.items()))
