"""What measuring one candidate gave: the record that travels from the worker to the checkpoint.

:class:`TuneResult` is the short public form of it; the tuner, the checkpoint and the progress display use the whole.
Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from aiter_tuning.status import Status

UNMEASURED_US = -1.0
"""Latency written for a candidate that ran and failed."""
IMPLAUSIBLE = "implausible"
"""The flag of a latency that no such device can reach."""
WRITES_INPUTS = "writes_inputs"
"""The flag of a candidate that changes what it is given."""
STARVED = "starved"
"""The flag of a latency by a wall clock while the candidate's threads waited for cores."""


_STATUSES = {str(status): status for status in Status}


class TuneResult(NamedTuple):
    """One candidate's result as :func:`aiter_tuning.mp_tuner` returns it with ``return_status=True``.

    ``us`` is the latency in microseconds, rounded to four decimals; -1 or inf where there is none (see
    :class:`~aiter_tuning.status.Status`). ``err_ratio`` is the fraction of wrong elements, 1.0 for every failure.
    """

    info: Any
    us: float
    err_ratio: float
    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """The outcome of one try of one candidate, with what is needed to judge and to explain it."""

    status: Status
    us: float
    err_ratio: float = 1.0
    detail: str = ""
    """One line for a person: exception, signal or exit code, last output. Empty for ``ok``."""
    attempt: int = 1
    """1 for the first try; above 1 after a retry in a fresh worker."""
    censored: bool = False
    """``us`` is only a lower bound: sampling stopped because the candidate was hopeless. Never a winner."""
    samples: int = 0
    """How many timed calls ``us`` rests on."""
    timer: str = ""
    """Which clock: ``wall`` on a CPU."""
    flags: tuple[str, ...] = ()
    """Circumstances that make ``us`` less trustworthy, e.g. ``standby`` (another process was starting)."""
    setup_s: float = 0.0
    """Seconds for inputs and reference, 0 where they were shared."""
    first_call_s: float = 0.0
    """Seconds of the first call, which may compile."""
    timing_s: float = 0.0
    """Seconds of warm-up and timed calls."""
    device: str = ""
    """Stable id of the device: a GPU's UUID, ``cpu:<cores>`` for a CPU lane."""

    def packed(self) -> tuple[Any, ...]:
        """As plain values in the order of the fields: one travels for every candidate, and a pickle of these is made
        and read five times as fast."""
        return (
            str(self.status),
            self.us,
            self.err_ratio,
            self.detail,
            self.attempt,
            self.censored,
            self.samples,
            self.timer,
            self.flags,
            self.setup_s,
            self.first_call_s,
            self.timing_s,
            self.device,
        )

    @classmethod
    def unpacked(cls, values: tuple[Any, ...]) -> Measurement:
        """The inverse of :meth:`packed`."""
        return cls(_STATUSES[values[0]], *values[1:])

    @property
    def may_be_the_process(self) -> bool:
        """Whether the process may be to blame, so that a clean one should try before this is a verdict."""
        return self.status is Status.oom_runtime or IMPLAUSIBLE in self.flags

    @classmethod
    def failed(cls, status: Status, detail: str, *, us: float | None = None, attempt: int = 1) -> Measurement:
        """A failure without a latency: -1 if the candidate itself said no, inf if it was lost (see ``Status``)."""
        if us is None:
            said_no = status in (Status.unsupported, Status.oom_runtime)
            us = UNMEASURED_US if said_no else math.inf
        return cls(status=status, us=us, detail=detail, attempt=attempt)

    def result(self, info: Any) -> TuneResult:
        """The public five-tuple; ``us`` and ``err_ratio`` rounded to four decimals."""
        return TuneResult(info, round(self.us, 4), round(self.err_ratio, 4), self.status, self.detail)
