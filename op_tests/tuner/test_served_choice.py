"""What a comparison of the public operator makes of a decision: a table of cases, on synthetic latencies."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiter_tuning.contest import Block, Contest
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.choice import Choice, Today
from aiter_tuning.tuner.deciding import Decision
from aiter_tuning.tuner.finals_rule import FinalsRule
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.served_choice import BEFORE, after_name, judge_served, served_of
from aiter_tuning.tuner.shape_contest import ShapeContest
from op_tests.examples import examples
from op_tests.tuner.simulated_contests import Bench, run_contest

UNTUNED, TUNED, GONE = Today("torch", "torch"), Today("old", "torch", "old"), Today("torch", "torch", "of yore")
CRASH = Measurement.failed(Status.crash, "boom")
WRONG = Measurement(Status.mismatch, 1.0, 0.6, "3 of 4 elements")


class Plan:
    """What a verdict asks of a plan."""

    def __init__(self, today):
        self.today = today


def ok(us):
    return Measurement(Status.ok, us, 0.0, samples=10)


def judged(today, verdict, winner, before, after, *, seed=0, noise=0.003):
    """The verdict on a decision of the finals, once both sides were served: microseconds, or how they failed."""
    names = (BEFORE,) if after is None else (BEFORE, after_name(winner))
    sides = [side for side in (before, after) if side is not None]
    running = [one for one in range(len(sides)) if not isinstance(sides[one], Measurement)]
    rule = FinalsRule(0, frozenset(range(len(names))))
    blocks = []
    if len(running) == len(sides) == 2:
        blocks = run_contest(rule, Bench(sides, noise=noise, seed=seed))
    results = {
        name: side if isinstance(side, Measurement) else ok(side) for name, side in zip(names, sides, strict=True)
    }
    comparison = ShapeContest(names, len(names), rule, Contest(rule, 0), list(blocks), results, {}, "comparison", {})
    measurements = {"torch": ok(100.0), "old": ok(100.0), "new": ok(80.0)}
    choice = Choice(winner, verdict, "by the finals", 100.0)
    decision = Decision(choice, verdict, "by the finals", measurements, (), (), True)
    return judge_served(decision, Plan(today), served_of(comparison, today, winner), err_ratio=0.05)


RECLAIMED = Verdict.default_reclaimed
CASES = [
    ("a gain that serving has too", TUNED, Verdict.promoted, "new", 100.0, 80.0, Verdict.promoted, "new"),
    ("a gain that serving has not", TUNED, Verdict.promoted, "new", 100.0, 99.0, Verdict.retained, "old"),
    ("slower as served", TUNED, Verdict.promoted, "new", 100.0, 120.0, Verdict.retained, "old"),
    ("a first row that gains", UNTUNED, Verdict.promoted, "new", 100.0, 80.0, Verdict.promoted, "new"),
    ("a first row that does not gain", UNTUNED, Verdict.promoted, "new", 100.0, 99.0, Verdict.first_row, "torch"),
    ("the default gets its row", UNTUNED, Verdict.first_row, "torch", 100.0, 100.0, Verdict.first_row, "torch"),
    ("the default's row makes it slower", UNTUNED, Verdict.first_row, "torch", 100.0, 130.0, Verdict.not_served, None),
    ("a dead row makes place", GONE, RECLAIMED, "torch", 100.0, 100.0, RECLAIMED, "torch"),
    ("a dead row, a small gain", GONE, Verdict.promoted, "new", 100.0, 99.0, Verdict.promoted, "new"),
    ("the default is better", TUNED, RECLAIMED, "torch", 100.0, 90.0, RECLAIMED, "torch"),
    ("the default is not, as served", TUNED, RECLAIMED, "torch", 100.0, 99.5, Verdict.retained, "old"),
    ("today's is wrong", TUNED, Verdict.correctness_fix, "new", WRONG, 300.0, Verdict.correctness_fix, "new"),
    ("today's is wrong as served only", TUNED, Verdict.promoted, "new", WRONG, 300.0, Verdict.correctness_fix, "new"),
    ("today's fails", TUNED, Verdict.promoted, "new", CRASH, 80.0, Verdict.incumbent_absent, "new"),
    ("the new one fails", TUNED, Verdict.promoted, "new", 100.0, CRASH, Verdict.not_served, "old"),
    ("the new one is wrong", UNTUNED, Verdict.promoted, "new", 100.0, WRONG, Verdict.not_served, None),
    ("both fail", TUNED, Verdict.correctness_fix, "new", WRONG, CRASH, Verdict.not_served, "old"),
    ("nothing changes", TUNED, Verdict.retained, "old", 100.0, None, Verdict.retained, "old"),
    ("nothing changes, and it is wrong", TUNED, Verdict.retained, "old", WRONG, None, Verdict.not_served, "old"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("today", "verdict", "winner", "before", "after", "expected", "row"),
    [case[1:] for case in CASES],
    ids=[case[0] for case in CASES],
)
def test_verdicts_on_what_serving_did(today, verdict, winner, before, after, expected, row):
    decision = judged(today, verdict, winner, before, after)
    assert (decision.verdict, decision.choice.winner) == (expected, row)
    assert decision.served is not None
    if expected is Verdict.not_served:
        assert decision.choice.keeps_row


def test_the_margin_is_that_of_what_serving_did():
    decision = judged(TUNED, Verdict.promoted, "new", 100.0, 90.0)
    assert decision.choice.gate.margin_pct == pytest.approx(10, abs=1)
    assert decision.choice.gate.bar_pct == 3.0


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.001, 0.03))
def test_a_row_that_serves_no_faster_is_hardly_ever_promoted(seed, noise):
    decision = judged(TUNED, Verdict.promoted, "new", 100.0, 100.0, seed=seed, noise=noise)
    assert decision.verdict in (Verdict.retained, Verdict.ambiguous)


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 10**6), before=st.floats(1, 1e5), gain=st.floats(0.2, 0.9))
def test_a_large_gain_is_always_promoted(seed, before, gain):
    decision = judged(TUNED, Verdict.promoted, "new", before, before * (1 - gain), seed=seed)
    assert decision.verdict is Verdict.promoted


def test_a_block_in_which_one_side_was_not_timed_counts_for_neither():
    names = (BEFORE, after_name("new"))
    rule = FinalsRule(0, frozenset((0, 1)))
    generator = random.Random(7)
    blocks = [Block(n, (0, 1), (100.0 + generator.random(), 80.0 + generator.random())) for n in range(1, 8)]
    blocks.append(Block(8, (0,), (1.0,)))
    comparison = ShapeContest(
        names, 2, rule, Contest(rule, 0), blocks, {name: ok(90.0) for name in names}, {}, "comparison", {}
    )
    served = served_of(comparison, TUNED, "new")
    assert served.gate.margin_pct == pytest.approx(20, abs=1)
    assert served.after.samples_us[-1] is None and len(served.before.samples_us) == 8
