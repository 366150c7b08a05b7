"""From a decision to its record of evidence: who was compared with whom, by which clock, under what conditions."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiter_tuning.contest import Block
from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import RunFingerprint
from aiter_tuning.tables.checkpoint_row import DIGITS
from aiter_tuning.tables.evidence import Evidence, Timed
from aiter_tuning.tuner.before_after import BeforeAfter, Side
from aiter_tuning.tuner.choice import Choice
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.paired import timed_in
from aiter_tuning.tuner.plan import ShapePlan

Conditions = Callable[[str, float], Mapping[str, Any]]
"""What was read of a device, by its UUID, since a moment of the monotonic clock."""

_VERSIONS = ("torch", "triton", "driver")


def now() -> str:
    """This moment, as evidence has it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def command_line() -> str:
    """What was typed, the program by its name only."""
    program, *words = sys.argv or [""]
    name = os.path.basename(program)
    if name == "__main__.py":  # python -m aiter_tuning
        name = "aiter-tune"
    return " ".join([name, *words]).strip()


@dataclass(frozen=True)
class Grounds:
    """What all decisions of a run have in common.

    Args:
        family: the operator's name.
        device: one of the run's; its model and arch are those of all.
        run: fingerprint of the run.
        conditions: reads the monitor.
    """

    family: str
    device: Device
    run: RunFingerprint
    conditions: Conditions = lambda uuid, since: {}

    def evidence(
        self,
        plan: ShapePlan,
        choice: Choice,
        *,
        verdict: Verdict,
        published: bool,
        measurements: Mapping[str, Measurement],
        finalists: Sequence[str],
        blocks: Sequence[Block],
        fingerprints: Mapping[str, str],
        began: str,
        since: float,
        served: BeforeAfter | None = None,
        confirmed: BeforeAfter | None = None,
    ) -> Evidence:
        """The record of one decision.

        Args:
            plan: the shape.
            choice: the decision.
            verdict: what it is called; ``incomplete`` where candidates are left to measure.
            published: whether it writes a row.
            measurements: what it was made from, by candidate.
            finalists: names by their index in the blocks.
            blocks: of the finals; none: it was made from single timings.
            fingerprints: of the candidates.
            began: when the shape's first candidate started.
            since: the same on the monotonic clock.
            served: what serving ran before and after.
            confirmed: the incumbent and the challenger in another process.
        """

        def timed(name: str | None) -> Timed | None:
            if name is None:
                return None
            found = measurements.get(name)
            counts = found is not None and found.status is Status.ok and math.isfinite(found.us) and found.us > 0
            us = round(found.us, DIGITS) if found is not None and counts else None
            return Timed(name, dict(plan.candidate(name).config), us, _samples(name, finalists, blocks))

        decisive = measurements.get(choice.winner or plan.incumbent)
        gate = choice.gate
        flags = (flag for name in (choice.winner, plan.incumbent) for flag in _flags(name, measurements))
        fields = self.run.fields
        return Evidence(
            family=self.family,
            key={
                "gfx": self.device.gfx,
                "cu_num": self.device.cu_num,
                "gpu_model": " ".join(self.device.gpu_model.split()),
                **plan.shape,
            },
            verdict=str(choice.verdict if verdict is Verdict.incomplete else verdict),
            reason=choice.reason,
            published=published,
            complete=verdict is not Verdict.incomplete,
            margin_pct=None if gate is None else gate.margin_pct,
            bar_pct=None if gate is None else gate.bar_pct,
            noise_pct=None if gate is None else gate.noise_pct,
            incumbent=timed(plan.incumbent),
            winner=timed(choice.winner),
            default=timed(plan.default),
            device_uuid=decisive.device if decisive is not None else self.device.uuid,
            timer=decisive.timer if decisive is not None else "",
            flags=tuple(dict.fromkeys(flags)),
            conditions=dict(self.conditions(decisive.device if decisive is not None else self.device.uuid, since)),
            versions={name: fields[name] for name in _VERSIONS if fields.get(name)},
            fingerprints={
                "run": self.run.digest,
                "winner": fingerprints.get(choice.winner or "", ""),
                "candidates": _digest(fingerprints),
            },
            served=_sides(served),
            confirmed=_sides(confirmed),
            command=command_line(),
            began=began,
            ended=now(),
        )


def _samples(name: str, finalists: Sequence[str], blocks: Sequence[Block]) -> tuple[float | None, ...]:
    if name not in finalists:
        return ()
    index = finalists.index(name)
    samples = [timed_in(block).get(index) for block in blocks]
    return tuple(None if us is None else round(us, 4) for us in samples)


def _sides(sides: BeforeAfter | None) -> dict[str, Any]:
    def side(one: Side | None) -> dict[str, Any] | None:
        if one is None:
            return None
        return {"name": one.kernel, "us": one.us, "samples_us": list(one.samples_us), "failure": one.failure}

    return {} if sides is None else {"before": side(sides.before), "after": side(sides.after)}


def _flags(name: str | None, measurements: Mapping[str, Measurement]) -> Iterable[str]:
    found = measurements.get(name) if name is not None else None
    return () if found is None else found.flags


def _digest(fingerprints: Mapping[str, str]) -> str:
    """Of the whole list of candidates, whatever their order."""
    return hashlib.sha256(json.dumps(dict(fingerprints), sort_keys=True).encode()).hexdigest()[:12]
