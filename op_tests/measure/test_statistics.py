"""Decisions on samples, as tables and properties."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.measure.statistics import StopRule, Verdict, decide, lower_bound, median, standard_error

latencies = st.lists(st.floats(0.01, 1e6), min_size=1, max_size=60)
RULE = StopRule()


@given(latencies)
def test_the_median_is_the_one_of_the_standard_library(samples: list[float]) -> None:
    assert median(samples) == pytest.approx(statistics.median(samples))


def test_no_samples_claim_nothing() -> None:
    assert math.isnan(median([])) and standard_error([]) == math.inf


def test_one_preempted_call_changes_neither_latency_nor_its_error() -> None:
    steady = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1, 99.9]
    disturbed = [*steady, 5000.0]
    assert median(disturbed) == pytest.approx(100.0, rel=0.002)
    assert standard_error(disturbed) < 2 * standard_error(steady)


def test_the_standard_error_is_that_of_a_median_where_noise_is_normal() -> None:
    rng = random.Random(1)
    medians, errors = [], []
    for _ in range(2000):
        samples = [rng.gauss(100, 2) for _ in range(31)]
        medians.append(median(samples))
        errors.append(standard_error(samples))
    assert statistics.mean(errors) == pytest.approx(statistics.stdev(medians), rel=0.1)


@pytest.mark.parametrize("count", [5, 8, 20, 101])
def test_a_lower_bound_holds_as_often_as_it_says_whatever_the_distribution(count: int) -> None:
    rng = random.Random(count)
    races, true_median = 3000, math.log(2)
    held = sum(lower_bound([rng.expovariate(1) for _ in range(count)], 0.95) <= true_median for _ in range(races))
    assert held / races > 0.94


def test_the_lower_bound_of_many_samples_joins_the_exact_one() -> None:
    around = [lower_bound([float(i) for i in range(count)], 0.95) / count for count in (199, 200, 201, 202)]
    assert max(around) - min(around) < 0.01


@pytest.mark.parametrize("count", range(5))
def test_fewer_than_five_readings_condemn_nobody(count: int) -> None:
    assert lower_bound([1e9] * count, 0.95) == -math.inf
    assert decide([1e9] * count, 1e9, 1.0, RULE) is not Verdict.censor


@given(latencies)
def test_without_a_leader_nobody_is_censored(samples: list[float]) -> None:
    assert decide(samples, 1e9, math.inf, RULE) is not Verdict.censor


@given(latencies, st.floats(0.01, 1e6))
def test_a_candidate_with_half_of_its_readings_in_reach_is_not_censored(samples: list[float], leader_us: float) -> None:
    if median(samples) <= RULE.censor_factor * leader_us:
        assert decide(samples, 1e9, leader_us, RULE) is not Verdict.censor


@given(st.lists(st.floats(1.0, 1e4), min_size=5, max_size=60), st.integers(-10, 10))
def test_the_unit_of_time_does_not_change_a_verdict(samples: list[float], exponent: int) -> None:
    factor = 2.0**exponent
    scaled = [sample * factor for sample in samples]
    assert decide(samples, 5.0, 10.0, RULE) is decide(scaled, 5.0, 10.0 * factor, RULE)


def test_steady_readings_are_enough_at_the_floors_and_not_before() -> None:
    steady = [100.0] * RULE.min_samples
    assert decide(steady, RULE.min_ms, math.inf, RULE) is Verdict.enough
    assert decide(steady[1:], RULE.min_ms, math.inf, RULE) is Verdict.go_on
    assert decide(steady, RULE.min_ms * 0.99, math.inf, RULE) is Verdict.go_on


def test_noisy_readings_are_not_enough() -> None:
    noisy = [100.0, 150.0] * 10
    assert decide(noisy, 100.0, math.inf, RULE) is Verdict.go_on


def test_warming_up_condemns_only_the_hopeless_and_is_never_enough() -> None:
    slow_start = [2.0] * 30
    assert decide(slow_start, 1e9, 1.0, RULE) is Verdict.censor
    assert decide(slow_start, 1e9, 1.0, RULE, warming_up=True) is Verdict.go_on
    assert decide([4.1] * 5, 1e9, 1.0, RULE, warming_up=True) is Verdict.censor


@pytest.mark.parametrize(
    "wrong",
    [{"censor_factor": 1.0}, {"warmup_factor": 1.2}, {"min_samples": 1}, {"censor_confidence": 1.0}, {"min_ms": -1}],
)
def test_a_rule_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StopRule(**wrong)
