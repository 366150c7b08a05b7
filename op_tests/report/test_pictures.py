"""What is drawn: the figures' own data, as plotly is given it."""

import dataclasses
import math

import pytest

from aiter_tuning.report.page.canvas import MOST_SHAPES
from aiter_tuning.report.page.decision_pictures import gains, margins, turns
from aiter_tuning.report.page.measurement_pictures import candidates, roofline, timeline
from aiter_tuning.report.page.run_files import Row, Screened, read_run_files

ALL = (gains, margins, turns, candidates, roofline, timeline)


@pytest.fixture
def files(tuned):
    return read_run_files(tuned(8, 16))


def traces(picture):
    return {trace.name: trace for trace in picture.figure.data}


def test_gains_are_bars_of_those_that_gained_and_the_caption_counts_all(files):
    picture = gains(files)
    (bar,) = picture.figure.data
    assert (list(bar.y), bar.name) == (["N=8"], "promoted") and bar.x[0] == pytest.approx(10.0)
    assert "all 2 shapes 5.1 % less time" in picture.caption and "1 whose row names the default" in picture.caption


def test_margins_stand_beside_their_bar_and_what_the_second_process_saw(files):
    found = traces(margins(files))
    assert list(found["bar"].x) == [3.0]
    assert list(found["promoted"].y) == ["N=8"] and found["promoted"].x[0] == pytest.approx(10.0, abs=0.1)
    assert found["in the second process"].x[0] == pytest.approx(10.0, abs=0.1)


def test_who_is_far_behind_stands_at_the_edge(files):
    far = [
        one._replace(record=dataclasses.replace(one.record, margin_pct=-31_000.0)) if one.label == "N=8" else one
        for one in files.decisions
    ]
    picture = margins(dataclasses.replace(files, decisions=tuple(far)))
    assert list(traces(picture)["promoted"].x) == [-30.0] and "At the edge: 1 further behind" in picture.caption


def test_the_turns_of_one_shape_are_seen_and_those_of_another_can_be_chosen(files):
    figure = turns(files).figure
    labels = [button.label for button in figure.layout.updatemenus[0].buttons]
    assert labels[0] == "N=8 · promoted"
    seen = {trace.name for trace in figure.data if trace.visible}
    assert seen == {"winner: quick", "incumbent: steady"}
    record = next(one.record for one in files.decisions if one.label == "N=8")
    assert [list(trace.y) for trace in figure.data[:2]] == [
        list(record.winner.samples_us),
        list(record.incumbent.samples_us),
    ]
    for button in figure.layout.updatemenus[0].buttons:
        assert len(button.args[0]["visible"]) == len(figure.data) and any(button.args[0]["visible"])


def test_candidates_are_drawn_against_the_best_of_their_shape_and_failures_are_counted(files):
    picture = candidates(files)
    found = traces(picture)
    points = sorted(zip(found["timed"].y, found["timed"].x, strict=True))
    assert points == [("N=16", 1.0), ("N=16", 1.8), ("N=8", 1.0), ("N=8", pytest.approx(100 / 90)), ("N=8", 2.0)]
    assert sorted(zip(found["what the row names"].y, found["what the row names"].x, strict=True)) == [
        ("N=16", 1.0),
        ("N=8", 1.0),
    ]
    assert "5 candidates were timed" in picture.caption and "1 crash" in picture.caption


def test_a_latency_that_was_given_up_is_no_best(files):
    early = Screened("N=8", "given up", "ok", 50.0, True, "")
    found = traces(candidates(dataclasses.replace(files, candidates=(*files.candidates, early))))
    assert list(found["given up: slower than this"].x) == [pytest.approx(50 / 90)]


def test_rows_stand_under_the_roof_of_a_device_that_is_known(files):
    rows = (Row("N=8", "quick", 90.0, 400.0, 2000.0), Row("N=16", "steady", 100.0, 0.0, 0.0))
    known = dataclasses.replace(files, rows=rows, device=("sm90", "132", "NVIDIA H200"), dtypes=("bf16", "fp32"))
    found = traces(roofline(known))
    assert list(found["row"].x) == [200.0] and list(found["row"].y) == [400.0]
    roof = found["NVIDIA H200, bf16"]
    assert roof.y[1] == roof.y[2] == 989.5 and roof.x[1] == pytest.approx(989.5 / 4.8, rel=0.01)
    unknown = dataclasses.replace(known, device=("sm01", "x", "Abacus"))
    assert list(traces(roofline(unknown))) == ["row"]


def test_the_timeline_has_a_bar_for_each_stage(files):
    found = traces(timeline(files))
    assert set(found) == {"screening", "finals", "second process"}
    assert all(math.isfinite(ms) and ms >= 0 for trace in found.values() for ms in trace.x)


def test_of_nothing_nothing_is_drawn(files):
    empty = dataclasses.replace(files, rows=(), decisions=(), candidates=(), spans=())
    assert [draw(empty) for draw in ALL] == [None] * len(ALL)


def test_a_picture_that_would_be_too_full_says_what_it_leaves_out(files):
    (gained,) = (one for one in files.decisions if one.label == "N=8")
    many = [gained._replace(label=f"N={number}") for number in range(200)]
    full = dataclasses.replace(
        files,
        decisions=tuple(many),
        candidates=tuple(Screened(one.label, "steady", "ok", 100.0, False, "") for one in many),
    )
    for draw in (gains, margins, candidates):
        picture = draw(full)
        assert f"{200 - MOST_SHAPES} shapes more are not drawn" in picture.caption
        assert all(len(set(trace.y)) <= MOST_SHAPES for trace in picture.figure.data)


def test_what_looks_like_markup_is_shown_as_it_is(files):
    odd = dataclasses.replace(files, candidates=(Screened("N=8", "<b>a</b>", "ok", 1.0, False, ""),))
    (said,) = traces(candidates(odd))["timed"].customdata
    assert said.startswith("&lt;b&gt;a&lt;/b&gt;<br>")
