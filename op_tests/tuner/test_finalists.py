"""Who is timed again after the screening."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.finalists import HOPELESS, pick_finalists

ORDER = tuple("abcdefgh")


def ok(us, **rest):
    return Measurement(Status.ok, us, **{"err_ratio": 0.0, **rest})


def pick(measurements, incumbent="a", default="a", finalists=3):
    return "".join(
        pick_finalists(ORDER, measurements, incumbent=incumbent, default=default, finalists=finalists, err_ratio=0.05)
    )


def test_the_fastest_few_come_in_the_familys_order():
    assert pick({"a": ok(10), "b": ok(12), "c": ok(9), "d": ok(11), "e": ok(8)}) == "ace"


def test_incumbent_and_default_take_part_however_slow():
    slow = {"a": ok(1000), "b": ok(500, censored=True), "c": ok(9), "d": ok(10)}

    assert pick(slow, incumbent="b", default="a", finalists=2) == "abcd"


@pytest.mark.parametrize(
    "measurement",
    [
        pytest.param(Measurement(Status.mismatch, 1.0, 0.5), id="wrong"),
        pytest.param(Measurement.failed(Status.crash, "boom"), id="crashed"),
        pytest.param(Measurement.failed(Status.timeout, "slow"), id="timeout"),
        pytest.param(ok(1.0, err_ratio=0.06), id="too many wrong elements"),
        pytest.param(None, id="not measured"),
    ],
)
def test_who_failed_does_not_take_part_not_even_the_incumbent(measurement):
    measurements = {"b": ok(10), "c": ok(11)} | ({"a": measurement} if measurement is not None else {})

    assert pick(measurements) == "bc"


def test_whoever_is_behind_by_a_lower_bound_already_is_not_timed_again():
    assert pick({"a": ok(10), "b": ok(10), "c": ok(10, censored=True)}) == "ab"


def test_whoever_was_given_up_for_a_leader_that_is_gone_is_timed_again():
    # The fastest was 1 and has left the family, or was measured anew and is wrong: nobody left is as fast.
    given_up = {name: ok(us, censored=True) for name, us in (("b", 8), ("c", 2), ("d", 3), ("e", 200))}
    assert pick({"a": ok(10), **given_up}) == "abcd"
    assert pick({"a": ok(10), **given_up, "f": Measurement(Status.mismatch, 1.0, 1.0)}, finalists=8) == "abcd"
    assert pick({"a": ok(10), **given_up}, finalists=2) == "acd"
    wrong = ok(2, censored=True, err_ratio=0.2)
    assert pick({"a": ok(10), "b": wrong, "c": ok(math.nan, censored=True), "d": ok(0.0, censored=True)}) == ""


def test_where_all_were_given_up_the_most_promising_are_timed_and_be_it_one():
    # Whoever led is gone, and with it everybody who was timed to the end.
    assert pick({name: ok(us, censored=True) for name, us in (("b", 9), ("c", 7), ("d", 8), ("e", 6))}) == "cde"
    assert pick({"a": ok(50, censored=True), "b": ok(7, censored=True)}) == "ab", "what runs today takes part"
    assert pick({"b": ok(7, censored=True), "c": Measurement(Status.mismatch, 1.0, 1.0)}) == "b"


def test_lower_bounds_compete_with_latencies_for_the_places():
    timed = {"b": ok(10), "c": ok(11), "d": ok(12)}
    assert pick({"a": ok(9), **timed, "e": ok(5, censored=True)}, finalists=3) == "abe"


def test_a_doubtful_latency_is():
    assert pick({"a": ok(10), "b": ok(11), "c": ok(12, flags=("standby", "throttled"))}) == "abc"


def test_who_was_starved_of_cores_is_timed_again_although_it_looks_hopeless():
    starved = {"flags": ("starved",)}
    behind = {"c": ok(27_000, censored=True, **starved), "d": ok(9000, censored=True), "e": ok(500, **starved)}
    assert pick({"a": ok(10), "b": ok(11), **behind}) == "abce"
    wrong = Measurement(Status.mismatch, 27_000.0, 0.5, **starved)
    assert pick({"a": ok(10), "b": ok(11), "c": wrong}) == "ab"


def test_of_the_starved_the_first_few_are():
    names = "bcdefgh"
    assert pick({"a": ok(10), **{name: ok(900 - n, flags=("starved",)) for n, name in enumerate(names)}}) == "afgh"


def test_those_far_behind_the_best_are_left_out():
    assert pick({"a": ok(10), "b": ok(10 * HOPELESS), "c": ok(10 * HOPELESS + 0.1)}) == "ab"


@pytest.mark.parametrize("finalists", [0, 1])
def test_fewer_than_two_finalists_mean_single_timings(finalists):
    assert pick({"a": ok(10), "b": ok(9)}, finalists=finalists) == ""


@pytest.mark.parametrize("measurements", [{}, {"a": ok(10)}, {"b": ok(5)}, {"a": ok(10), "b": ok(math.inf)}])
def test_one_candidate_needs_no_comparison(measurements):
    assert pick(measurements) == ""


measured = st.builds(
    Measurement,
    status=st.sampled_from([Status.ok, Status.ok, Status.mismatch, Status.crash]),
    us=st.one_of(st.floats(1, 20), st.sampled_from([-1.0, 0.0, math.inf, math.nan])),
    err_ratio=st.sampled_from([0.0, 0.05, 0.06]),
    censored=st.booleans(),
)


@given(st.dictionaries(st.sampled_from(ORDER), measured), st.sampled_from(ORDER), st.integers(2, 8))
def test_the_best_of_the_screening_is_always_among_them(measurements, incumbent, finalists):
    picked = pick(measurements, incumbent=incumbent, finalists=finalists)

    right = {
        name: m.us
        for name, m in measurements.items()
        if m.status is Status.ok and m.err_ratio <= 0.05 and not m.censored and 0 < m.us < math.inf
    }
    assert len(picked) <= finalists + 2
    assert list(picked) == sorted(picked)
    if not right:
        given_up = {n for n, m in measurements.items() if m.status is Status.ok and m.err_ratio <= 0.05 and m.censored}
        assert picked or not any(0 < measurements[name].us < math.inf for name in given_up)
    elif picked:
        assert min(right, key=lambda name: (right[name], name)) in picked
    else:
        assert len(right) < 2 or all(us > HOPELESS * min(right.values()) for us in sorted(right.values())[1:])
