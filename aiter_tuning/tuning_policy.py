"""The numbers that decide: how long to measure, when to stop, what deserves to be published.

The defaults of the command line are read from here, so that a figure has one home. Frozen dataclasses and pure
functions, standard library only: a serving process or a test can import them where torch is not installed. A family
that needs other values names them in its ``arg_defaults``; other code uses :func:`dataclasses.replace`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

PROMOTE: Literal["promote"] = "promote"
RETAIN: Literal["retain"] = "retain"

SAMPLE_SEED = 20240917
"""Seed of every random choice (candidate samples, block orders), so that a rerun chooses alike."""
CANDIDATE_TIMEOUT_S = 60.0
"""For one candidate."""
COMPILE_TIMEOUT_S = 300.0
"""For a candidate's first call, of families that compile."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _measured(us: float | None) -> bool:
    """Whether a latency can have come from a clock: finite and above zero."""
    return us is not None and math.isfinite(us) and us > 0


@dataclass(frozen=True)
class MeasurementPolicy:
    """How one candidate is timed."""

    warmup: int = 5
    """Untimed calls before the timed ones."""
    iters: int = 101
    """Timed calls; a tuner's early stop may end sooner."""
    err_ratio: float = 0.05
    """Largest accepted fraction of output elements outside the tolerance."""
    timeout: float = 1800
    """Seconds for all candidates of one shape together."""

    def __post_init__(self) -> None:
        _require(self.warmup >= 0, f"warmup must be 0 or more, not {self.warmup}")
        _require(self.iters >= 1, f"iters must be 1 or more, not {self.iters}")
        _require(0 <= self.err_ratio <= 1, f"err_ratio is a fraction between 0 and 1, not {self.err_ratio}")
        _require(self.timeout > 0, f"timeout must be above 0 seconds, not {self.timeout}")


@dataclass(frozen=True)
class RunPolicy:
    """How one run is written down."""

    batch: int = 100
    """The tuned CSV is rewritten at least every so many shapes; the checkpoint covers what lies between."""

    def __post_init__(self) -> None:
        _require(self.batch >= 1, f"batch must be 1 or more, not {self.batch}")


@dataclass(frozen=True)
class PromotionPolicy:
    """What a challenger has to show before it replaces the incumbent."""

    min_improvement_pct: float = 3.0
    """Smallest improvement that promotes, in percent of the incumbent's latency; equality promotes."""

    def __post_init__(self) -> None:
        _require(
            0 <= self.min_improvement_pct < 100,
            f"min_improvement_pct must be at least 0 and under 100, not {self.min_improvement_pct}",
        )


@dataclass(frozen=True)
class FinalistPolicy:
    """How many of the screened candidates are timed again, beside the incumbent."""

    finalists: int = 8
    rounds: int = 3
    """Timed turns of each, at least."""
    significance_sigma: float = 2.0
    """Standard errors that make the noise floor of two independent means (:func:`standard_error_bar`)."""

    def __post_init__(self) -> None:
        _require(self.finalists >= 1, f"finalists must be 1 or more, not {self.finalists}")
        _require(self.rounds >= 1, f"rounds must be 1 or more, not {self.rounds}")
        _require(self.significance_sigma > 0, f"significance_sigma must be above 0, not {self.significance_sigma}")


@dataclass(frozen=True)
class RacePolicy:
    """Elimination in randomised complete blocks."""

    alpha: float = 0.05
    """Chance of one wrong elimination in the whole race."""
    block_calls: int = 10
    """Timed calls of each entrant in a block."""
    min_blocks: int = 3
    """Nobody is eliminated before; on the command line ``--rounds``."""
    max_blocks: int = 30
    """A race that they do not decide keeps what runs today."""

    def __post_init__(self) -> None:
        _require(0 < self.alpha < 1, f"alpha must lie between 0 and 1, not {self.alpha}")
        _require(self.block_calls >= 1, f"block_calls must be 1 or more, not {self.block_calls}")
        _require(
            1 <= self.min_blocks <= self.max_blocks,
            f"blocks must satisfy 1 <= min_blocks <= max_blocks, not {self.min_blocks} and {self.max_blocks}",
        )


DEFAULT_MEASUREMENT = MeasurementPolicy()
DEFAULT_RUN = RunPolicy()
DEFAULT_PROMOTION = PromotionPolicy()
DEFAULT_FINALISTS = FinalistPolicy()
DEFAULT_RACE = RacePolicy()


class GateDecision(NamedTuple):
    """The verdict on one challenger and everything needed to explain it."""

    outcome: Literal["promote", "retain"]
    margin_pct: float | None
    """How much faster the challenger is, in percent of the incumbent; None without a measured incumbent."""
    bar_pct: float
    """What the margin had to reach."""
    noise_pct: float
    """The noise floor that went into the bar."""
    reason: str
    """``faster``, ``no measured incumbent``, ``below the bar``, ``ambiguous`` or ``slower``, with the figures."""


def gate_against_incumbent(
    incumbent_us: float | None,
    challenger_us: float | None,
    policy: PromotionPolicy = DEFAULT_PROMOTION,
    noise_pct: float | None = None,
) -> GateDecision:
    """Decides whether a challenger replaces the incumbent.

    The margin is ``100 * (incumbent - challenger) / incumbent``; it promotes when it reaches
    ``max(policy.min_improvement_pct, noise_pct)``, equality included. A margin above the policy's bar but under the
    noise floor is *ambiguous* and retained. An incumbent that was never measured (None, 0, negative, not finite) loses
    to any measured challenger.

    Args:
        incumbent_us: latency of what runs today, microseconds.
        challenger_us: latency of what might replace it, microseconds.
        policy: the bar.
        noise_pct: the noise floor of this comparison in percent, for instance from :func:`standard_error_bar`.

    Raises:
        ValueError: the challenger has no measured latency, or the noise is negative or NaN.
    """
    if challenger_us is None or not _measured(challenger_us):
        raise ValueError(f"a challenger needs a measured latency in microseconds, not {challenger_us!r}")
    noise = 0.0 if noise_pct is None else float(noise_pct)
    _require(noise >= 0, f"noise_pct must be 0 or more, not {noise_pct!r}")
    bar = max(policy.min_improvement_pct, noise)
    if incumbent_us is None or not _measured(incumbent_us):
        return GateDecision(PROMOTE, None, bar, noise, "no measured incumbent")
    # One expression, so that 100 -> 97 is exactly 3.0 and equality promotes as documented.
    margin = (incumbent_us - challenger_us) * 100.0 / incumbent_us
    if margin >= bar:
        return GateDecision(PROMOTE, margin, bar, noise, f"faster: {margin:.2f} % reaches the bar of {bar:.2f} %")
    if margin >= policy.min_improvement_pct:
        reason = (
            f"ambiguous: {margin:.2f} % is above {policy.min_improvement_pct:g} % but within the noise of {noise:.2f} %"
        )
    elif margin < 0:
        reason = f"slower: {-margin:.2f} % behind the incumbent"
    else:
        reason = f"below the bar: {margin:.2f} % of {bar:.2f} %"
    return GateDecision(RETAIN, margin, bar, noise, reason)


def standard_error_bar(
    incumbent_us: float | None, combined_se: float, policy: FinalistPolicy = DEFAULT_FINALISTS
) -> float:
    """The noise floor, in percent of the incumbent, of a difference with a standard error of ``combined_se`` us.

    ``100 * significance_sigma * combined_se / incumbent_us``; 0.0 where the incumbent was not measured. For two
    independent means ``combined_se`` is the hypotenuse of both standard errors.
    """
    if incumbent_us is None or not _measured(incumbent_us):
        return 0.0
    return 100.0 * policy.significance_sigma * combined_se / incumbent_us
