"""What an earlier part of a run decided, from its evidence, so that a resumed run can report on every shape.

::

    checkpoint: decided, nothing left ─▶ which shapes      ┐
    <tuned>.evidence.jsonl: the newest record of each key ─┴▶ ShapeOutcome, as the part that decided would have told it

What evidence does not hold is left out: how many blocks were timed is told by the samples, a gate by its percentages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import Shape
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.evidence import Evidence, Timed, evidence_path, read_evidence
from aiter_tuning.tuner.before_after import BeforeAfter, Side
from aiter_tuning.tuner.outcome import ShapeOutcome, Verdict


class Decided(NamedTuple):
    """A shape of which nothing is left to do."""

    label: str
    shape: Shape
    counts: Mapping[Status, int]
    """Its candidates on record, by status."""


def compared_earlier(decided: Sequence[Decided], table: Path, device: Device, run: str) -> list[ShapeOutcome]:
    """:func:`earlier_outcomes` by the evidence of a table, as far as it can be read."""
    try:
        records = read_evidence(evidence_path(table), warnings=[]) if decided else []
    except OSError:
        records = []
    return earlier_outcomes(decided, records, device, run)


def earlier_outcomes(
    decided: Iterable[Decided], records: Iterable[Evidence], device: Device, run: str
) -> list[ShapeOutcome]:
    """The outcomes of shapes that were compared and decided on before; those without a record are left out.

    Args:
        decided: the shapes.
        records: the table's evidence, oldest first.
        device: the run's.
        run: the fingerprint that both parts of the run share.
    """
    histories: dict[tuple[str, ...], list[Evidence]] = {}
    for record in records:
        histories.setdefault(_name(record.key), []).append(record)
    outcomes = []
    for one in decided:
        key = {"gfx": device.gfx, "cu_num": device.cu_num, "gpu_model": device.gpu_model, **one.shape}
        history = histories.get(_name(key), [])
        own = [place for place, record in enumerate(history) if _compared_by(record, run)]
        if own:
            record, before = history[own[-1]], history[: own[-1]]
            outcomes.append(outcome_of_record(record, one, was_untuned=_was_untuned(record, before)))
    return outcomes


def outcome_of_record(record: Evidence, decided: Decided, *, was_untuned: bool = False) -> ShapeOutcome:
    """One decision as a run reports it.

    Raises:
        ValueError: the verdict is none of ours.
    """
    timed = [one for one in (record.winner, record.incumbent, record.default) if one is not None]
    return ShapeOutcome(
        label=decided.label,
        shape=decided.shape,
        verdict=Verdict(record.verdict),
        reason=record.reason,
        winner=_kernel(record.winner),
        us=_us(record.winner),
        default=_kernel(record.default) or "",
        default_us=_us(record.default),
        counts=dict(decided.counts),
        resumed=sum(decided.counts.values()),
        published=record.published,
        proposed=record.published,
        was_untuned=was_untuned,
        served=served_of_record(record.served),
        incumbent=_kernel(record.incumbent) or "",
        incumbent_us=_us(record.incumbent),
        margin_pct=record.margin_pct,
        bar_pct=record.bar_pct,
        noise_pct=record.noise_pct,
        blocks=max((len(one.samples_us) for one in timed), default=0),
        decided_earlier=True,
    )


def served_of_record(served: Mapping[str, Any]) -> BeforeAfter | None:
    """What was compared as served, without the gate; None if nothing was, or it is not in the form we write."""
    before, after = _side(served.get("before")), _side(served.get("after"))
    return None if before is None else BeforeAfter(before, after, blocks=len(before.samples_us))


def _side(found: object) -> Side | None:
    if not isinstance(found, Mapping):
        return None
    name, us, failure, samples = (found.get(field) for field in ("name", "us", "failure", "samples_us"))
    if not isinstance(name, str) or not isinstance(failure, str) or not isinstance(samples, list):
        return None
    word, _, detail = failure.partition(": ")
    if failure and word not in tuple(Status):
        return None
    status = Status(word) if failure else Status.ok
    latency = float(us) if isinstance(us, int | float) else math.inf
    return Side(name, Measurement(status, latency, 0.0 if status is Status.ok else 1.0, detail), tuple(samples))


def _was_untuned(record: Evidence, before: Iterable[Evidence]) -> bool:
    """Whether there was no row: serving ran the default, and nobody is known to have written one.

    A decision has two records where its run was killed before the table was replaced; the first of them wrote no row
    that the second one could have found.
    """
    if _kernel(record.incumbent) != _kernel(record.default):
        return False
    return record.verdict == Verdict.first_row or not any(
        earlier.published and _decision(earlier) != _decision(record) for earlier in before
    )


def _decision(record: Evidence) -> tuple[str | None, str | None]:
    return _kernel(record.winner), record.fingerprints.get("run")


def _compared_by(record: Evidence, run: str) -> bool:
    known = record.verdict in tuple(Verdict)
    return known and record.complete and bool(record.served) and record.fingerprints.get("run") == run


def _name(key: Mapping[str, Any]) -> tuple[str, ...]:
    """A key as text, in which ``64`` of a shape and ``64`` of JSON are the same."""
    return tuple(f"{name}={' '.join(str(value).split())}" for name, value in sorted(key.items()))


def _kernel(timed: Timed | None) -> str | None:
    return None if timed is None else timed.name


def _us(timed: Timed | None) -> float | None:
    return None if timed is None else timed.us
