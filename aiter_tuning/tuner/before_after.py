"""What runs for a shape today and what is to run instead, timed in turns: values that reports are made of.

Either as candidates, in a second process, or as serving runs them, under the table of today and with the new row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuning_policy import GateDecision


@dataclass(frozen=True)
class Side:
    """One of the two."""

    kernel: str
    """``kernelName`` of the row that a lookup finds there; without one the family's default."""
    measurement: Measurement
    samples_us: tuple[float | None, ...] = ()
    """One latency for each block; None where it was not timed."""

    @property
    def is_right(self) -> bool:
        return self.measurement.status is Status.ok

    @property
    def us(self) -> float | None:
        """Microseconds; None where it was not timed, or is wrong."""
        us = self.measurement.us
        return us if self.is_right and math.isfinite(us) and us > 0 else None

    @property
    def failure(self) -> str:
        """``mismatch: 12 of 64 elements …``; empty if it is right."""
        if self.is_right:
            return ""
        detail = self.measurement.detail
        return f"{self.measurement.status}: {detail}" if detail else str(self.measurement.status)


@dataclass(frozen=True)
class BeforeAfter:
    """Both, as far as there was something to compare."""

    before: Side
    after: Side | None = None
    """None: no row was to change."""
    gate: GateDecision | None = None
    """None where one of them failed, or there was nothing to compare."""
    blocks: int = 0

    @property
    def failures(self) -> tuple[str, ...]:
        """What went wrong on either side."""
        sides = [("before", self.before), *([("after", self.after)] if self.after is not None else [])]
        return tuple(f"{name}: {side.failure}" for name, side in sides if side.failure)
