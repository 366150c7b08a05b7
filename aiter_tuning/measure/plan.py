"""How the candidates of one run are measured; travels with each group from the parent to the workers.

A plan is plain data so that it can be pickled, fingerprinted and printed. Standard library only: the parent, which
never imports torch, makes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiter_tuning.measure.statistics import StopRule
from aiter_tuning.measure.timer import TIMERS


@dataclass(frozen=True)
class MeasurePlan:
    """What to do with every candidate; the tasks' own ``num_warmup`` and ``num_iters`` win over the plan's."""

    err_ratio: float = 0.05
    """Largest accepted fraction of output elements outside the tolerance; equality is accepted."""
    fast_mode: bool = False
    """A candidate without a reference is timed and accepted unchecked."""
    seed: int = 0
    """Seed of every random generator before inputs are made."""
    early_stop: StopRule | None = None
    """None: exactly ``warmup + iters`` calls, as a direct ``mp_tuner`` promises. Tuners give a rule."""
    equal_nan: bool = False
    """Whether a NaN is right where the reference has one too."""
    row_wise: bool = False
    """Judge by the row (last dimension) with the largest fraction of wrong elements instead of by all elements."""
    warmup: int = 2
    """Untimed calls, where the task's kwargs hold no ``num_warmup``."""
    iters: int = 101
    """Timed calls, where the task's kwargs hold no ``num_iters``."""
    timer: str = "auto"
    """Which clock, one of :data:`aiter_tuning.measure.timer.TIMERS`."""
    cold_cache: bool = True
    """On a GPU, whether every timed call finds its inputs outside the cache, as serving mostly does."""

    def __post_init__(self) -> None:
        if not 0 <= self.err_ratio <= 1:
            raise ValueError(f"err_ratio is a fraction between 0 and 1, not {self.err_ratio!r}")
        if self.warmup < 0:
            raise ValueError(f"warmup must be 0 or more calls, not {self.warmup!r}")
        if self.iters < 1:
            raise ValueError(f"iters must be 1 or more calls, not {self.iters!r}")
        if self.timer not in TIMERS:
            raise ValueError(f"there is no timer {self.timer!r}; choose from: {', '.join(sorted(TIMERS))}")
