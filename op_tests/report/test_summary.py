"""What a run came to, for a person and for a program."""

import io
import json
from dataclasses import replace

import pytest

from aiter_tuning.report.progress import started_text
from aiter_tuning.report.summary import SHOWN_SHAPES, lane_split, print_overview, print_summary, summary_json
from aiter_tuning.status import Status
from aiter_tuning.tuner.outcome import ExitCode, FailureCause, LaneTime, RunSummary, ShapeOutcome, Verdict
from aiter_tuning.tuner.reporter import PlannedShape, RunOverview

PROMOTED = ShapeOutcome(
    "N=8 dtype=fp32",
    {"N": 8},
    Verdict.promoted,
    "faster",
    "quick",
    50.0,
    "steady",
    100.0,
    {Status.ok: 2},
    published=True,
)
FAILED = ShapeOutcome(
    "N=16 dtype=fp32", {"N": 16}, Verdict.failed, "no correct candidate", None, None, "steady", None, {Status.crash: 50}
)
SUMMARY = RunSummary(
    "tiny",
    "H200",
    ExitCode.no_correct_candidate,
    (PROMOTED, FAILED),
    causes=(FailureCause(Status.crash, 50, "KeyError: 'x'", "N=16 dtype=fp32", "steady"),),
    lanes=(LaneTime("gpu0", {"starting": 3.0, "inputs": 0.5, "reference": 0.5, "measuring": 2.0, "idle": 0.01}),),
    elapsed_s=6.2,
    tune_file="tuned.csv",
    record_file="tuned.profile.1.csv",
)


def text_of(summary, **options):
    stream = io.StringIO()
    print_summary(summary, stream, **options)
    return stream.getvalue()


def test_each_shape_is_shown_with_its_gain_over_the_default():
    line = next(line for line in text_of(SUMMARY).splitlines() if line.startswith("N=8"))

    assert line.split() == ["N=8", "dtype=fp32", "promoted", "quick", "50", "100", "50.0", "2", "ok"]


def test_the_command_that_finds_a_row_is_told_for_families_that_lookups_know_by_name():
    known = replace(SUMMARY, family="gemm_cpu", tune_file="my tables/tuned.csv")
    command = "aiter-tune lookup gemm_cpu N=8 dtype=fp32 --tuned 'my tables/tuned.csv'"

    assert f"how serving finds a row: {command}" in text_of(known)
    assert "lookup" not in text_of(SUMMARY)
    assert "lookup" not in text_of(replace(known, shapes=(FAILED,)))


def test_a_family_in_a_file_of_ones_own_is_named_as_one_would_type_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here, elsewhere = (replace(SUMMARY, family_file=f"{path}/op.py:Op") for path in (tmp_path, "/opt"))

    assert "how serving finds a row: aiter-tune lookup op.py:Op N=8 dtype=fp32 --tuned tuned.csv" in text_of(here)
    assert "aiter-tune lookup /opt/op.py:Op N=8" in text_of(elsewhere)


@pytest.mark.parametrize(
    ("verdict", "published", "told"),
    [
        (Verdict.not_served, False, "30.0 % less time than the default on average, 30.0 % at best"),
        (Verdict.incomplete, False, "30.0 % less time than the default on average, 30.0 % at best"),
        (Verdict.incomplete, True, "40.8 % less time than the default on average, 50.0 % at best"),
        (Verdict.retained, False, "40.8 % less time than the default on average, 50.0 % at best"),
    ],
)
def test_what_is_saved_counts_shapes_whose_row_is_there_to_serve(verdict, published, told):
    saves = replace(PROMOTED, us=70.0)
    other = replace(PROMOTED, verdict=verdict, published=published)
    assert told in text_of(replace(SUMMARY, shapes=(saves, other)))


def test_a_run_that_left_no_row_saves_nothing():
    left = replace(PROMOTED, verdict=Verdict.not_served, published=False)
    assert "1 shape: 1 not served\n" in text_of(replace(SUMMARY, shapes=(left,)))


def test_a_failed_shape_is_listed():
    assert any(line.startswith("N=16 dtype=fp32  failed") for line in text_of(SUMMARY).splitlines())


def test_fifty_failures_of_one_cause_are_one_line_with_a_count():
    lines = [line for line in text_of(SUMMARY).splitlines() if "KeyError" in line]

    assert lines == ["  50 × crash: KeyError: 'x' (steady, N=16 dtype=fp32)"]


def test_the_time_of_each_lane_is_split():
    assert "gpu0: start 3.0 s, prepare 1.0 s, measure 2.0 s" in text_of(SUMMARY)
    assert sum(lane_split(SUMMARY.lanes[0].seconds).values()) == sum(SUMMARY.lanes[0].seconds.values())


def test_of_many_shapes_those_that_need_a_person_are_shown_first():
    many = (*[PROMOTED] * 500, FAILED)
    text = text_of(RunSummary("tiny", "H200", ExitCode.done, many))

    assert text.count("promoted  quick") == SHOWN_SHAPES - 1
    assert "N=16 dtype=fp32  failed" in text
    assert f"{501 - SHOWN_SHAPES} more shapes" in text


def test_nothing_to_tune_is_said_in_one_line():
    text = text_of(RunSummary("tiny", "H200", ExitCode.done, already_tuned=2))

    assert text == "0 shapes to tune, 2 shapes have a row already\n"


def test_shapes_that_a_run_did_not_conclude_are_no_shapes_that_there_were_not():
    text = text_of(RunSummary("tiny", "H200", ExitCode.write_failed, shapes_to_tune=3, message="the disk is full"))

    assert text == "0 of 3 shapes concluded\nthe disk is full\n"


def test_tuned_rows_are_only_announced_where_there_are_any():
    assert "tuned rows: tuned.csv" in text_of(SUMMARY)

    text = text_of(replace(SUMMARY, has_rows=False))

    assert "tuned rows: tuned.csv" not in text
    assert "no tuned rows" in text


def test_one_of_a_thing_is_told_in_the_singular():
    one = RunOverview("tiny", "H200", 1, (PlannedShape("N=8", ("a",), 1, "a"),), 1)

    assert started_text(one).endswith(
        "1 lane: 1 shape, 1 candidate, 1 shape has a row already; resuming, 1 candidate is on record"
    )


def test_the_json_form_holds_the_same_and_is_strict_json():
    read = json.loads(summary_json(SUMMARY), parse_constant=lambda name: 1 / 0)

    assert read["exit_code"] == 1
    assert read["candidates"] == {"ok": 2, "crash": 50}
    assert [shape["kernel"] for shape in read["shapes"]] == ["quick", None]
    assert read["causes"][0]["count"] == 50
    assert read["lanes"]["gpu0"]["measure"] == 2.0


def test_a_dry_run_is_told_with_its_counts_and_a_table():
    overview = RunOverview("tiny", "H200", 1, (PlannedShape("N=8", ("a", "b", "c"), 0, "a"),), 4)
    stream = io.StringIO()
    print_overview(overview, stream)

    assert stream.getvalue().splitlines()[0] == "1 shape, 3 candidates, 4 shapes have a row already"
    assert stream.getvalue().splitlines()[2].split() == ["N=8", "3", "a"]


def test_a_dry_run_of_many_shapes_shows_the_first_and_counts_the_rest():
    overview = RunOverview("tiny", "H200", 1, (PlannedShape("N=8", ("a",), 0, "a"),) * 1000, 0)
    short, whole = io.StringIO(), io.StringIO()
    print_overview(overview, short)
    print_overview(overview, whole, verbose=True)

    assert short.getvalue().count("N=8") == SHOWN_SHAPES
    assert short.getvalue().splitlines()[-1] == f"… and {1000 - SHOWN_SHAPES} more shapes (-v shows all)"
    assert whole.getvalue().count("N=8") == 1000


@pytest.mark.parametrize("width", [120, 80, 60])
def test_a_narrow_terminal_folds_the_shape_and_keeps_every_digit(width):
    label = "M=16384 N=16384 K=53248 dtype=bf16 bias=True"
    shape = replace(PROMOTED, label=label, winner="onednn_packed", us=12345.0, default_us=123456.0)
    text = text_of(replace(SUMMARY, shapes=(shape, FAILED)), width=width)
    lines = text.splitlines()
    table = lines[: next(i for i, line in enumerate(lines) if line.startswith("2 shapes"))]

    for number in ("12345", "123456", "90.0", "default us", "gain %"):
        assert any(number in line for line in table), text
    assert "…" not in "".join(table)
    first = next(line for line in table if "verdict" in line).index("verdict")
    assert label.replace(" ", "") in "".join(line[:first] for line in table).replace(" ", "")
    assert max(map(len, table)) <= width


def test_a_compared_shape_tells_its_margin_and_the_bar():
    compared = replace(PROMOTED, verdict=Verdict.first_row, margin_pct=2.04, bar_pct=3.0, noise_pct=0.4, blocks=7)
    text = text_of(replace(SUMMARY, shapes=(compared,)))
    shape = json.loads(summary_json(replace(SUMMARY, shapes=(compared,))))["shapes"][0]

    assert "2.0 of 3.0" in text
    assert "first row" in text and "1 first row" in text
    assert (shape["verdict"], shape["margin_pct"], shape["noise_pct"], shape["blocks"]) == ("first_row", 2.04, 0.4, 7)


def test_why_a_row_cannot_be_served_is_told_and_left_to_the_report_of_a_comparison():
    unserved = replace(PROMOTED, verdict=Verdict.not_served, reason="quick fails as serving runs it", published=False)
    summary = replace(SUMMARY, shapes=(unserved, FAILED))

    assert "  N=8 dtype=fp32: quick fails as serving runs it" in text_of(summary).splitlines()
    assert "as serving runs it" not in text_of(replace(summary, compared=True))
    many = text_of(replace(summary, shapes=(unserved,) * 30))
    assert many.count("as serving runs it") < 30 and "(-v shows all)" in many
    assert text_of(replace(summary, shapes=(unserved,) * 30), verbose=True).count("as serving runs it") == 30
