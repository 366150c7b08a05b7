"""Shapes ranked by what serving saves: microseconds of a call times how often it is asked for."""

import io

import pytest

from aiter_tuning.report.summary import print_summary, rank
from aiter_tuning.tuner.outcome import ExitCode, RunSummary, ShapeOutcome, Verdict


def outcome(n, before, after, calls, **fields):
    return ShapeOutcome(
        f"N={n}", {"N": n}, Verdict.promoted, "faster", "quick", after, "steady", before, incumbent="steady",
        incumbent_us=before, calls=calls, proposed=True, **fields,
    )  # fmt: skip


SHAPES = (outcome(1, 100.0, 50.0, 10), outcome(2, 100.0, 99.0, 100_000), outcome(3, 1000.0, 500.0, 20))


def test_a_small_gain_of_a_shape_that_is_called_all_the_time_comes_first():
    assert [shape.shape["N"] for shape in rank(SHAPES)] == [2, 3, 1]


def test_without_counts_the_order_is_that_of_the_file():
    shapes = (outcome(1, 100.0, 50.0, None), outcome(2, 100.0, 1.0, None))
    assert rank(shapes) == shapes


def test_what_is_not_written_saves_nothing():
    kept = ShapeOutcome("N=1", {"N": 1}, Verdict.retained, "", "quick", 50.0, incumbent="quick", incumbent_us=50.0)
    assert kept.saved_us == 0.0
    assert SHAPES[0].saved_us == 50.0


def test_the_summary_tells_the_time_that_all_calls_save():
    out = io.StringIO()
    print_summary(RunSummary("f", "d", ExitCode.done, SHAPES), out)
    text = out.getvalue()
    # 10 x 100 + 100000 x 100 + 20 x 1000 us before; 10 x 50 + 100000 x 1 + 20 x 500 us saved
    assert "over 100030 calls as counted: 110.5 of 1.002e+04 ms saved, 1.1 %" in text
    assert "saved ms" in text and pytest.approx(110.5) == sum(s.saved_us * s.calls for s in SHAPES) / 1e3
