"""What timing a kernel against itself says: how large a gap has to be before it can be told from noise here.

::

    pairs  (a₁, b₁), (a₂, b₂), …     the same kernel both times, one right after the other
      ├─ spread of single times      what one measurement is worth
      ├─ spread of bᵢ − aᵢ           what is left when both stand side by side, as finalists do
      └─ middle of bᵢ − aᵢ           should be 0: anything else is a clock that favours one of two equals
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from aiter_tuning.measure.statistics import deviation, median, standard_error
from aiter_tuning.report.doctor.facts import Finding, Noise, Pair, Trial, Verdict
from aiter_tuning.tuning_policy import DEFAULT_FINALISTS, DEFAULT_PROMOTION

FEWEST_PAIRS = 5
FINE_GAP_PCT = 1.0
_WIDE_SPREAD_PCT = 10.0
_SLOW_IMPORT_S = 20.0
_SLOW_BIND_S = 5.0


class Resolution(NamedTuple):
    """What the pairs of one kernel say, in percent of its time."""

    us: float
    """Its median time, microseconds."""
    spread_pct: float
    """Robust deviation of single times."""
    gap_pct: float
    """The smallest difference between two kernels that so many pairs can tell from none."""
    bias_pct: float
    """How much slower the second of two equals seemed."""
    pairs: int


def resolution(pairs: Sequence[Pair]) -> Resolution | None:
    """What the pairs say; None: there are too few, or they are no times."""
    whole = [pair for pair in pairs if all(math.isfinite(us) and us > 0 for us in pair)]
    if len(whole) < FEWEST_PAIRS:
        return None
    times = [us for pair in whole for us in pair]
    middle = median(times)
    differences = [(pair.second_us - pair.first_us) * 100.0 / pair.first_us for pair in whole]
    bias = median(differences)
    gap = DEFAULT_FINALISTS.significance_sigma * standard_error(differences, bias)
    return Resolution(middle, deviation(times, middle) * 100.0 / middle, gap, bias, len(whole))


def noise_finding(noise: Noise) -> Finding:
    """Whether this kernel's time can be told from itself."""
    topic = f"timer noise, {noise.name}"
    seen = resolution(noise.pairs)
    if seen is None:
        return Finding(
            topic,
            Verdict.bad,
            f"only {len(noise.pairs)} pairs of times could be taken in the seconds there are",
            "calls wait for something other than their own work: see who else uses this machine",
        )
    bar = DEFAULT_PROMOTION.min_improvement_pct
    found = (
        f"{seen.us:.4g} us by the {noise.timer} timer; one time varies by {seen.spread_pct:.2g} %, "
        f"{seen.pairs} pairs can tell a gap of {seen.gap_pct:.2g} %"
    )
    if noise.flags:
        found += f" ({', '.join(noise.flags)})"
    biased = abs(seen.bias_pct) > max(FINE_GAP_PCT, 2 * seen.gap_pct)
    if seen.gap_pct > bar or (biased and abs(seen.bias_pct) > bar):
        if biased:
            found += f"; the second of two equal kernels seems {seen.bias_pct:+.2g} % slower"
        return Finding(topic, Verdict.bad, found, f"gains of {bar:g} % cannot be seen here: find out what else runs")
    if disturbed := sorted({"throttled", "foreign"} & set(noise.flags)):
        return Finding(topic, Verdict.warning, found, f"it was {' and '.join(disturbed)} meanwhile: see above, or wait")
    if seen.gap_pct > FINE_GAP_PCT or biased or seen.spread_pct > _WIDE_SPREAD_PCT:
        return Finding(
            topic, Verdict.warning, found, "a quieter machine, or locked clocks, would need fewer repetitions"
        )
    return Finding(topic, Verdict.ok, found)


def trial_findings(trial: Trial) -> list[Finding]:
    """Start-up and noise."""
    findings = []
    if trial.problem:
        findings.append(
            Finding("worker", Verdict.bad, trial.problem, "no candidate could be measured; put that right first")
        )
    findings += _start_finding(
        "worker start",
        trial.import_s,
        f"{trial.import_s:.1f} s until torch was imported",
        _SLOW_IMPORT_S,
        "every dead worker costs so much: put the Python environment on a local disk",
    )
    findings += _start_finding(
        "device context",
        trial.bind_s,
        f"{trial.bind_s:.2f} s until the worker had its device",
        _SLOW_BIND_S,
        "turn persistence mode on, and see who else uses the GPU",
    )
    return findings + [noise_finding(noise) for noise in trial.noise]


def _start_finding(topic: str, seconds: float, found: str, slow_s: float, advice: str) -> list[Finding]:
    """How long a part of a worker's start took; nothing if it did not come so far."""
    if not math.isfinite(seconds):
        return []
    slow = seconds > slow_s
    return [Finding(topic, Verdict.warning if slow else Verdict.ok, found, advice if slow else "")]
