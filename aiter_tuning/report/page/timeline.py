"""From the record's marks to what each device was at, and when.

::

    started 1×16×16 screen 12:00:01   ┐
    finished 1×16×16 screen 12:00:02  ├─▶ Span(GPU-7, 1×16×16, screening, 12:00:01, 12:00:04)
    finished 1×16×16 screen 12:00:04  ┘    a longer silence than a few seconds with nothing begun ends a span

A start does not say where: the next result of the same shape and phase does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from aiter_tuning.tables.checkpoint_row import STARTED

_PAUSE_S = 3.0

_STAGES = {
    "screen": "screening",
    "finals": "finals",
    "finalist": "finals",
    "confirmation": "second process",
    "confirmed": "second process",
    "comparison": "comparison",
    "compared": "comparison",
}


class Moment(NamedTuple):
    """A row of the record."""

    label: str
    phase: str
    event: str
    device: str
    """UUID; empty in marks of a start."""
    time: str
    """ISO 8601."""


class Span(NamedTuple):
    """A device was at a stage of a shape."""

    device: str
    label: str
    stage: str
    began: datetime
    ended: datetime


def spans_of(moments: Iterable[Moment]) -> list[Span]:
    """What the devices were at, in the order in which it began."""
    by_stage: defaultdict[tuple[str, str], list[Moment]] = defaultdict(list)
    for moment in moments:
        stage = _STAGES.get(moment.phase.partition(":")[0])
        if stage is not None:
            by_stage[moment.label, stage].append(moment)
    spans = [span for (label, stage), found in by_stage.items() for span in _spans(label, stage, found)]
    return sorted(spans, key=lambda span: (span.began, span.ended))


def _spans(label: str, stage: str, moments: list[Moment]) -> Iterable[Span]:
    """Of one shape and stage, whose rows stand in the order in which they were written."""
    device, began, last, is_open = "", None, None, False
    devices = _devices(moments)
    for moment, where in zip(moments, devices, strict=True):
        now = _time(moment.time)
        if now is None or not where:
            continue
        paused = last is not None and not is_open and (now - last).total_seconds() > _PAUSE_S
        if began is None or last is None or where != device or paused:
            if began is not None and last is not None:
                yield Span(device, label, stage, began, last)
            device, began = where, now
        last, is_open = now, moment.event == STARTED
    if began is not None and last is not None:
        yield Span(device, label, stage, began, last)


def _devices(moments: list[Moment]) -> list[str]:
    """Where each was: what a result says, a start what the next result says."""
    devices, following = [], ""
    for moment in reversed(moments):
        following = moment.device or following
        devices.append(following)
    return devices[::-1]


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
