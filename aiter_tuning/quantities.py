"""Numbers as a person reads them: latencies, durations, how many of something."""

from __future__ import annotations

import math
from collections.abc import Iterable


def counted(count: int, noun: str) -> str:
    """``1 shape``, ``3 shapes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_us(us: float) -> str:
    """A latency with the digits that matter: ``7.31 us``, ``1234 us``."""
    return f"{us_digits(us)} us"


def us_digits(us: float) -> str:
    """The same without its unit, for a column that names it."""
    return f"{us:.4g}" if us < 1000 else f"{us:.0f}"


def format_s(seconds: float) -> str:
    """A duration: ``42 s``, ``3 min 20 s``, ``2 h 05 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def mean_gain_pct(gains_pct: Iterable[float]) -> float:
    """How much less time is taken on average, in percent; from at least one gain.

    The mean of ratios, not of percentages: a gain of 50 % and a loss of 50 % do not cancel.
    """
    logs = [math.log(max(1e-9, 1 - gain / 100)) for gain in gains_pct]
    return 100 * (1 - math.exp(sum(logs) / len(logs)))
