"""What a decision about a shape is called, from single latencies and from blocks."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.choice import Today, choose
from aiter_tuning.tuner.final_choice import choose_finalist
from aiter_tuning.tuner.finals_rule import FinalsRule
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.race_rule import RaceRule
from aiter_tuning.tuning_policy import PromotionPolicy
from op_tests.examples import examples
from op_tests.tuner.simulated_contests import Bench, run_contest

NAMES = ("torch", "old", "new", "newer")
UNTUNED = Today("torch", "torch")
TUNED = Today("old", "torch", "old")
GONE = Today("torch", "torch", "of another release")
WRONG = Measurement(Status.mismatch, 1.0, 0.6)
CRASH = Measurement.failed(Status.crash, "boom")


def ok(us):
    return Measurement(Status.ok, us, 0.0, samples=10)


def final(latencies, today, *, rule=None, failed=None, bar=3.0, seed=0, **bench):
    """A contest of candidates with these latencies, carried out to its end and decided."""
    names = [name for name in NAMES if name in latencies]
    kept = frozenset(names.index(name) for name in (today.incumbent, today.default) if name in names)
    incumbent = names.index(today.incumbent) if today.incumbent in names else None
    rule = rule or FinalsRule(incumbent, kept, bar_pct=bar)
    blocks = run_contest(rule, Bench([latencies[name] for name in names], **{"noise": 0.003, **bench}, seed=seed))
    measurements = {name: ok(latencies[name]) for name in names} | (failed or {})
    return choose_finalist(
        names, measurements, blocks, today, rule, err_ratio=0.05, policy=PromotionPolicy(min_improvement_pct=bar)
    )


def single(latencies, today):
    measurements = {name: us if isinstance(us, Measurement) else ok(us) for name, us in latencies.items()}
    return choose(NAMES, measurements, today, err_ratio=0.05)


CASES = [
    pytest.param({"torch": 100, "new": 80}, UNTUNED, "new", Verdict.promoted, id="better than the default"),
    pytest.param({"torch": 100, "new": 98.5}, UNTUNED, "torch", Verdict.first_row, id="the default is not beaten"),
    pytest.param({"torch": 100}, UNTUNED, "torch", Verdict.first_row, id="nothing but the default"),
    pytest.param({"torch": 150, "old": 100, "new": 80}, TUNED, "new", Verdict.promoted, id="better than the row"),
    pytest.param({"torch": 150, "old": 100, "new": 98.5}, TUNED, "old", Verdict.retained, id="the row is not beaten"),
    pytest.param({"torch": 150, "old": 100, "new": 120}, TUNED, "old", Verdict.retained, id="slower than the row"),
    pytest.param({"torch": 80, "old": 100, "new": 95}, TUNED, "torch", Verdict.default_reclaimed, id="default is best"),
    pytest.param({"torch": 100, "new": 98.5}, GONE, "torch", Verdict.default_reclaimed, id="its kernel is gone"),
    pytest.param({"torch": 100, "new": 80}, GONE, "new", Verdict.promoted, id="its kernel is gone and another is best"),
]


@pytest.mark.parametrize(("latencies", "today", "winner", "verdict"), CASES)
def test_the_same_verdict_from_single_latencies_and_from_blocks(latencies, today, winner, verdict):
    alone, together = single(latencies, today), final(latencies, today)

    assert (alone.winner, alone.verdict) == (winner, verdict)
    assert (together.winner, together.verdict) == (winner, verdict)


@pytest.mark.parametrize(("latencies", "today", "winner", "verdict"), CASES)
def test_the_same_verdict_from_a_race(latencies, today, winner, verdict):
    names = [name for name in NAMES if name in latencies]
    protected = frozenset(names.index(name) for name in (today.incumbent, today.default) if name in names)
    choice = final(latencies, today, rule=RaceRule(protected), noise=0.001)

    assert (choice.winner, choice.verdict) == (winner, verdict)


@pytest.mark.parametrize(
    ("failure", "verdict", "says"),
    [
        pytest.param(WRONG, Verdict.correctness_fix, "correctness fix: old, which runs today, is wrong", id="wrong"),
        pytest.param(
            Measurement(Status.ok, 5.0, 0.5), Verdict.correctness_fix, "correctness fix", id="too many wrong elements"
        ),
        pytest.param(CRASH, Verdict.incumbent_absent, "improvement unverified: old", id="crashed"),
    ],
)
def test_an_incumbent_that_fails_protects_nothing_and_the_verdict_says_how(failure, verdict, says):
    alone = single({"torch": 150, "old": failure, "new": 120}, TUNED)
    together = final({"torch": 150, "old": 90, "new": 120}, TUNED, failed={"old": failure})

    assert (alone.winner, alone.verdict) == (together.winner, together.verdict) == ("new", verdict)
    assert alone.reason.startswith(says) and together.reason.startswith(says)
    assert together.incumbent_us is None


def test_an_incumbent_that_nobody_measured_is_absent():
    assert single({"new": 120}, TUNED).verdict is Verdict.incumbent_absent
    assert final({"new": 120, "newer": 130}, TUNED).verdict is Verdict.incumbent_absent


def test_a_wrong_default_is_fixed_too():
    assert single({"torch": WRONG, "new": 500}, UNTUNED).verdict is Verdict.correctness_fix


def test_nobody_right_is_a_failure():
    alone = single({"torch": WRONG, "new": CRASH}, UNTUNED)
    together = final({"torch": 9, "new": 8}, UNTUNED, failed={"torch": WRONG, "new": CRASH})

    assert (alone.winner, alone.verdict) == (together.winner, together.verdict) == (None, Verdict.failed)


def test_a_wrong_finalist_never_wins_however_fast():
    assert final({"torch": 100, "new": 50, "newer": 70}, UNTUNED, failed={"new": WRONG}).winner == "newer"


def test_a_margin_within_the_noise_is_ambiguous_and_what_runs_today_stays():
    verdicts = {final({"torch": 105, "new": 100}, UNTUNED, noise=0.2, seed=seed).verdict for seed in range(20)}
    choice = next(
        choice
        for seed in range(200)
        if (choice := final({"torch": 105, "new": 100}, UNTUNED, noise=0.2, seed=seed)).verdict is Verdict.ambiguous
    )

    assert Verdict.promoted not in verdicts
    assert choice.winner == "torch"
    assert choice.reason.startswith("ambiguous")
    assert choice.gate.noise_pct > choice.gate.margin_pct >= 3


def test_the_gate_tells_margin_bar_and_noise_also_of_a_tie():
    choice = final({"torch": 100, "new": 99.8}, UNTUNED)

    assert choice.verdict is Verdict.first_row
    assert choice.gate is not None
    assert choice.gate.margin_pct == pytest.approx(0.2, abs=0.5)
    assert 0 < choice.gate.noise_pct < 3


def test_the_margin_is_that_of_the_pairs_whatever_the_clock_did():
    choice = final({"torch": 100, "new": 90}, UNTUNED, jump=(3, 1.4), noise=0.002)

    assert choice.gate.margin_pct == pytest.approx(10, abs=0.6)


def test_a_higher_bar_keeps_what_runs_today():
    assert final({"torch": 100, "new": 94}, UNTUNED, bar=10.0).verdict is Verdict.first_row


def test_a_race_that_certifies_nobody_keeps_what_runs_today():
    rule = RaceRule(frozenset({0, 1}), delta_pct=0.1)
    choice = final({"torch": 150, "old": 100, "new": 99}, TUNED, rule=rule, noise=0.05)

    assert (choice.winner, choice.verdict) == ("old", Verdict.ambiguous)
    assert "undecided after 30 blocks" in choice.reason


def test_a_race_that_certifies_nobody_and_has_nothing_to_keep_takes_its_leader():
    rule = RaceRule(frozenset({0}), delta_pct=0.1)
    choice = final({"torch": 150, "new": 100, "newer": 99}, UNTUNED, rule=rule, noise=0.05, failed={"torch": WRONG})

    assert choice.verdict is Verdict.correctness_fix
    assert choice.winner in ("new", "newer")


def test_a_race_takes_the_steadiest_of_equals():
    noise = [0.001, 0.004, 0.0005]
    choice = final(
        {"torch": 150, "new": 100, "newer": 100.4}, UNTUNED, rule=RaceRule(frozenset({0})), noise=noise, drift=0,
        outliers=0,
    )  # fmt: skip

    assert choice.winner == "newer"
    assert "lowest spread" in choice.reason


latencies = st.dictionaries(st.sampled_from(NAMES), st.floats(50, 150), min_size=1)
ends = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([WRONG, CRASH]))
todays = st.sampled_from([UNTUNED, TUNED, GONE])


@settings(max_examples=examples(400), deadline=None)
@given(latencies, ends, todays, st.integers(0, 1000), st.sampled_from([0.002, 0.02]), st.booleans())
def test_whoever_wins_is_right_and_nobody_wins_without_the_margin(latencies, failed, today, seed, noise, races):
    failed = {name: failure for name, failure in failed.items() if name in latencies}
    names = [name for name in NAMES if name in latencies]
    rule = RaceRule(frozenset(i for i, n in enumerate(names) if n in (today.incumbent, today.default)))
    choice = final(latencies, today, failed=failed, rule=rule if races else None, seed=seed, noise=noise)
    right = set(latencies) - set(failed)

    assert (choice.winner in right) if right else choice.winner is None
    assert (choice.verdict is Verdict.failed) == (not right)
    if today.incumbent in right and choice.winner not in (None, today.incumbent):
        assert choice.gate.margin_pct >= choice.gate.bar_pct >= 3.0
        assert choice.verdict in (Verdict.promoted, Verdict.default_reclaimed)
    if choice.winner == today.incumbent:
        assert choice.verdict in (Verdict.retained, Verdict.first_row, Verdict.ambiguous, Verdict.default_reclaimed)
    if choice.keeps_row and today.row is not None:
        assert choice.winner in (None, today.row)


@settings(max_examples=examples(300), deadline=None)
@given(latencies, todays, st.integers(0, 1000))
def test_a_winner_is_retained_when_it_has_become_the_row(latencies, today, seed):
    """Other blocks, and the same noise. (Who missed the bar by chance may pass it the next time.)"""
    first = final(latencies, today, seed=seed, noise=0.002)
    again = final(latencies, Today(first.winner, "torch", first.winner), seed=seed + 1, noise=0.002)

    if first.winner != today.incumbent or len(latencies) == 1:
        assert (again.winner, again.verdict) == (first.winner, Verdict.retained)


@given(st.dictionaries(st.sampled_from(NAMES), st.one_of(st.floats(0.5, 500), st.sampled_from([WRONG, CRASH]))), todays)
@settings(max_examples=examples(2000))
def test_single_latencies_obey_the_same_rules(latencies, today):
    choice = single(latencies, today)
    right = {name for name, us in latencies.items() if not isinstance(us, Measurement)}

    assert (choice.winner in right) if right else choice.winner is None
    if today.incumbent in right and choice.winner != today.incumbent:
        before, after = latencies[today.incumbent], latencies[choice.winner]
        assert (before - after) * 100 / before >= 3.0
    assert choice.incumbent_us is None or math.isfinite(choice.incumbent_us)
