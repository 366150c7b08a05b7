"""The numbers that decide."""

import dataclasses
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.tuning_policy import (
    DEFAULT_FINALISTS,
    DEFAULT_MEASUREMENT,
    DEFAULT_PROMOTION,
    DEFAULT_RACE,
    DEFAULT_RUN,
    PROMOTE,
    RETAIN,
    SAMPLE_SEED,
    FinalistPolicy,
    MeasurementPolicy,
    PromotionPolicy,
    RacePolicy,
    RunPolicy,
    gate_against_incumbent,
    standard_error_bar,
)

latencies = st.floats(min_value=1e-3, max_value=1e9)


def test_it_imports_where_torch_is_not_installed():
    code = "import sys; sys.modules['torch'] = None; import aiter_tuning.tuning_policy as p; print(p.DEFAULT_RUN.batch)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "100\n"


def test_the_defaults_are_the_documented_ones():
    assert dataclasses.astuple(DEFAULT_MEASUREMENT) == (5, 101, 0.05, 1800)
    assert DEFAULT_RUN.batch == 100
    assert DEFAULT_PROMOTION.min_improvement_pct == 3.0
    assert dataclasses.astuple(DEFAULT_FINALISTS) == (8, 3, 2.0)
    assert dataclasses.astuple(DEFAULT_RACE) == (0.05, 10, 3, 30)
    assert SAMPLE_SEED == 20240917


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        (MeasurementPolicy, {"iters": 0}),
        (MeasurementPolicy, {"warmup": -1}),
        (MeasurementPolicy, {"err_ratio": 1.5}),
        (MeasurementPolicy, {"timeout": 0}),
        (RunPolicy, {"batch": 0}),
        (PromotionPolicy, {"min_improvement_pct": 100}),
        (PromotionPolicy, {"min_improvement_pct": -1}),
        (PromotionPolicy, {"min_improvement_pct": math.nan}),
        (FinalistPolicy, {"finalists": 0}),
        (FinalistPolicy, {"rounds": 0}),
        (FinalistPolicy, {"significance_sigma": 0}),
        (RacePolicy, {"alpha": 0}),
        (RacePolicy, {"alpha": 1}),
        (RacePolicy, {"block_calls": 0}),
        (RacePolicy, {"min_blocks": 31}),
        (RacePolicy, {"min_blocks": 0}),
    ],
)
def test_values_without_meaning_are_refused_and_named(policy, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[-1]):
        policy(**wrong)


def test_policies_are_frozen_and_can_be_replaced():
    assert dataclasses.replace(DEFAULT_MEASUREMENT, iters=7).iters == 7
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT_RUN.batch = 1


@pytest.mark.parametrize(
    ("incumbent", "challenger", "outcome", "margin"),
    [
        (100, 90, PROMOTE, 10.0),
        (100, 99, RETAIN, 1.0),
        (100, 97, PROMOTE, 3.0),
        (100, 110, RETAIN, -10.0),
    ],
)
def test_a_challenger_needs_three_percent(incumbent, challenger, outcome, margin):
    decision = gate_against_incumbent(incumbent, challenger)
    assert decision.outcome == outcome
    assert decision.margin_pct == pytest.approx(margin)
    assert decision.bar_pct == 3.0


@pytest.mark.parametrize("incumbent", [None, 0, -1, math.inf, math.nan])
def test_an_incumbent_that_was_never_measured_loses(incumbent):
    decision = gate_against_incumbent(incumbent, 5.0)
    assert decision.outcome == PROMOTE
    assert decision.margin_pct is None


@pytest.mark.parametrize("challenger", [None, 0, -1, math.inf, math.nan])
def test_a_challenger_without_a_latency_is_an_error(challenger):
    with pytest.raises(ValueError, match="measured latency"):
        gate_against_incumbent(100, challenger)


def test_a_margin_within_the_noise_is_ambiguous_and_retained():
    decision = gate_against_incumbent(100, 95, noise_pct=6.0)
    assert decision.outcome == RETAIN
    assert decision.reason.startswith("ambiguous")
    assert (decision.bar_pct, decision.noise_pct) == (6.0, 6.0)


def test_a_noise_floor_under_the_bar_changes_nothing():
    assert gate_against_incumbent(100, 97, noise_pct=1.0).outcome == PROMOTE


@pytest.mark.parametrize("noise", [-0.1, math.nan])
def test_noise_must_be_a_percentage(noise):
    with pytest.raises(ValueError, match="noise_pct"):
        gate_against_incumbent(100, 97, noise_pct=noise)


@given(incumbent=latencies, challenger=latencies, noise=st.floats(0, 50), bar=st.floats(0, 99))
def test_the_verdict_is_the_comparison_of_margin_and_bar(incumbent, challenger, noise, bar):
    decision = gate_against_incumbent(incumbent, challenger, PromotionPolicy(bar), noise)
    assert decision.bar_pct == max(bar, noise)
    assert (decision.outcome == PROMOTE) == (decision.margin_pct >= decision.bar_pct)
    if challenger > incumbent:
        assert decision.outcome == RETAIN


def test_the_standard_error_bar_is_in_percent_of_the_incumbent():
    assert standard_error_bar(200.0, 1.0) == pytest.approx(1.0)
    assert standard_error_bar(200.0, 1.0, FinalistPolicy(significance_sigma=3.0)) == pytest.approx(1.5)
    assert standard_error_bar(None, 1.0) == 0.0
    assert standard_error_bar(math.inf, 1.0) == 0.0
