"""Which candidate a shape's row names."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.choice import Today, choose, is_correct
from aiter_tuning.tuning_policy import PromotionPolicy


def ok(us, err_ratio=0.0, **rest):
    return Measurement(Status.ok, us, err_ratio, **rest)


WRONG = Measurement(Status.mismatch, 1.0, 0.6)
CRASH = Measurement.failed(Status.crash, "boom")


def decide(measurements, incumbent="a", order=("a", "b", "c"), err_ratio=0.05, **rest):
    return choose(order, measurements, Today(incumbent, "a"), err_ratio=err_ratio, **rest)


@pytest.mark.parametrize(
    ("measurements", "winner", "promoted"),
    [
        pytest.param({"a": ok(100), "b": ok(90), "c": ok(80)}, "c", True, id="the fastest beats the incumbent"),
        pytest.param({"a": ok(100), "b": ok(97)}, "b", True, id="exactly the bar promotes"),
        pytest.param({"a": ok(100), "b": ok(97.5)}, "a", False, id="below the bar the incumbent stays"),
        pytest.param({"a": ok(100), "b": ok(99.5)}, "a", False, id="a tie goes to the incumbent"),
        pytest.param({"a": ok(100), "b": ok(80.5), "c": ok(80)}, "b", True, id="a tie of challengers: order decides"),
        pytest.param({"a": ok(100), "b": ok(120)}, "a", False, id="slower challengers change nothing"),
        pytest.param({"a": ok(100)}, "a", False, id="nothing else was measured"),
        pytest.param({"a": CRASH, "b": ok(500)}, "b", True, id="an incumbent that fails protects nothing"),
        pytest.param({"b": ok(500)}, "b", True, id="an incumbent that was not measured protects nothing"),
        pytest.param({"a": WRONG, "b": ok(500)}, "b", True, id="a wrong incumbent protects nothing, however fast"),
        pytest.param({"a": ok(100), "b": WRONG}, "a", False, id="a wrong candidate never wins, however fast"),
        pytest.param({"a": ok(100), "b": ok(10, err_ratio=0.06)}, "a", False, id="err_ratio above the limit is wrong"),
        pytest.param({"a": ok(100), "b": ok(10, err_ratio=0.05)}, "b", True, id="err_ratio at the limit is right"),
        pytest.param({"a": ok(100), "b": ok(10, censored=True)}, "a", False, id="a lower bound never wins"),
        pytest.param({"a": ok(300, censored=True), "b": ok(100)}, "b", True, id="a censored incumbent lost by far"),
        pytest.param({"a": ok(100), "b": ok(0.0)}, "a", False, id="zero is no latency"),
        pytest.param({"a": ok(100), "b": ok(math.nan)}, "a", False, id="NaN is no latency"),
        pytest.param({"a": WRONG, "b": CRASH}, None, False, id="nothing is right"),
        pytest.param({}, None, False, id="nothing was measured"),
    ],
)
def test_the_winner_is_decided_by_correctness_then_the_gate(measurements, winner, promoted):
    choice = decide(measurements)

    assert choice.winner == winner
    assert (winner is not None and winner != "a") == promoted


def test_replacing_a_wrong_incumbent_is_its_own_reason():
    assert "correctness fix" in decide({"a": WRONG, "b": ok(5)}).reason


def test_the_bar_is_the_policys():
    assert decide({"a": ok(100), "b": ok(94)}, policy=PromotionPolicy(min_improvement_pct=10)).winner == "a"


measured = st.builds(
    Measurement,
    status=st.sampled_from([Status.ok, Status.mismatch, Status.crash, Status.timeout]),
    us=st.one_of(st.floats(0.5, 1000), st.sampled_from([-1.0, 0.0, math.inf, math.nan])),
    err_ratio=st.sampled_from([0.0, 0.04, 0.06, 1.0]),
    censored=st.booleans(),
)
tables = st.dictionaries(st.sampled_from("abcdefgh"), measured)


@given(tables, st.sampled_from("abcdefgh"))
def test_a_winner_is_always_correct_and_exists_whenever_something_is(measurements, incumbent):
    choice = decide(measurements, incumbent, order=tuple("abcdefgh"))

    correct = {name for name, measurement in measurements.items() if is_correct(measurement, 0.05)}
    assert (choice.winner in correct) if correct else choice.winner is None


@given(tables, st.sampled_from("abcdefgh"))
def test_a_correct_incumbent_is_never_replaced_by_something_that_misses_the_bar(measurements, incumbent):
    choice = decide(measurements, incumbent, order=tuple("abcdefgh"))

    if choice.winner != incumbent and is_correct(measurements.get(incumbent), 0.05):
        before, after = measurements[incumbent].us, measurements[choice.winner].us
        assert (before - after) * 100 / before >= 3.0


@given(tables, st.sampled_from("abcdefgh"))
def test_the_order_in_which_results_came_changes_nothing(measurements, incumbent):
    backwards = dict(reversed(measurements.items()))

    assert decide(measurements, incumbent, tuple("abcdefgh")) == decide(backwards, incumbent, tuple("abcdefgh"))


@given(tables, st.sampled_from("abcdefgh"))
def test_the_winner_stays_when_it_has_become_the_incumbent(measurements, incumbent):
    order = tuple("abcdefgh")
    winner = decide(measurements, incumbent, order).winner

    if winner is not None:
        assert decide(measurements, winner, order).winner == winner
