"""Rows that were measured under other software: told in one line, and tuned before the others."""

import io
import json
from dataclasses import replace

import pytest

from aiter_tuning.devices.device import Device
from aiter_tuning.report.summary import overview_json, print_overview, print_summary, summary_json
from aiter_tuning.tables.evidence import Evidence, Timed, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner import TunerCommon
from aiter_tuning.tuner.fingerprint import versions_here
from aiter_tuning.tuner.reporter import Silent
from aiter_tuning.tuner.stale_rows import RowState, changed_versions, marked, stale_note, staleness_of

FAST = {"steady": 100.0, "quick": 50.0}
HERE = {"driver": "580", "torch": "2.11.0", "triton": "3.6.0"}
NOON = "2026-01-31T12:00:00Z"


class Notes(Silent):
    def __init__(self):
        self.texts = []
        self.overview = None

    def note(self, text):
        self.texts.append(text)

    def run_started(self, overview):
        self.overview = overview

    @property
    def stale(self):
        return [text for text in self.texts if "stale" in text]


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.csv"


@pytest.fixture
def tune(tiny, table, scripted, shapes):
    """Runs the family over some sizes; returns the summary, the sizes in the order of the pool, and the notes."""

    def run(*sizes, **flags):
        pool, notes = scripted(FAST), Notes()
        args = {"untune_file": str(shapes(*sizes)), "tune_file": str(table), **flags}
        summary = TunerCommon(tiny()).run(args, notes, pool=pool)
        return summary, list(dict.fromkeys(size for size, _ in pool.calls)), notes

    return run


@pytest.fixture
def overview(tiny, table, scripted, shapes, monkeypatch):
    """What a run would do, on the scripted pool's device."""
    monkeypatch.setattr("aiter_tuning.tuner.request.devices_for", lambda *_: scripted(FAST).devices)

    def ask(*sizes, **flags):
        return TunerCommon(tiny()).overview({"untune_file": str(shapes(*sizes)), "tune_file": str(table), **flags})

    return ask


def age(table, *sizes, **versions):
    """The evidence of these sizes as if it had been measured under other versions."""
    path = evidence_path(table)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record["key"]["N"] in sizes:
            record["versions"] |= versions
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def record_of(versions):
    return Evidence("tiny", {"gfx": "sm90", "cu_num": 132, "gpu_model": "H200", "N": 8}, "promoted", "", True, True,
                    1.0, 1.0, 0.1, None, Timed("quick", {}, 9.0), None, "GPU-0", "kernel", versions=versions,
                    began=NOON, ended=NOON)  # fmt: skip


def test_a_rerun_of_everything_begins_with_what_has_no_row_and_then_with_stale_rows(tune, table):
    tune(8, 16, 32, 64)
    age(table, 8, 32, triton="3.4.0")

    _, order, _ = tune(8, 16, 32, 64, 4, all=True)

    assert order == [4, 32, 8, 64, 16], "the costliest first among equals"


def test_how_many_rows_are_stale_and_why_is_one_line(tune, table):
    tune(8, 16, 32)
    age(table, 8, 32, triton="3.4.0")
    here = versions_here(Device("", "", "", "", 0, ""))["triton"]

    _, _, notes = tune(8, 16, 32, all=True)

    assert notes.stale == [f"2 of 3 rows are stale (measured under triton 3.4.0, now {here}): tuned first"]
    assert [shape.row.name for shape in notes.overview.shapes] == ["stale", "fresh", "stale"]


def test_a_row_that_was_tuned_again_is_fresh(tune, table):
    tune(8, 16)
    age(table, 8, triton="3.4.0")
    assert tune(8, 16, all=True)[2].stale

    summary, _, notes = tune(8, 16, all=True)

    assert not notes.stale and summary.already_stale == 0
    assert len(read_evidence(evidence_path(table))) == 6, "the old records are kept"


def test_a_run_that_leaves_rows_alone_says_how_many_are_stale_and_what_tunes_them(tune, table):
    tune(8, 16, 32)
    age(table, 8, torch="2.0.0")

    summary, order, notes = tune(8, 16, 32)

    assert order == [] and (summary.already_tuned, summary.already_stale) == (3, 1)
    (told,) = notes.stale
    assert told.startswith("1 of 3 rows is stale (measured under torch 2.0.0, now ")
    assert told.endswith(") and stays as it is: --all tunes shapes again that have a row, stale ones first")
    text = io.StringIO()
    print_summary(summary, text)
    assert text.getvalue() == "0 shapes to tune, 3 shapes have a row already, 1 of them stale\n"
    assert json.loads(summary_json(summary))["already_stale"] == 1


def test_stale_rows_beside_shapes_without_one_stay_and_are_counted(tune, table):
    tune(8, 16)
    age(table, 8, 16, triton="3.4.0")

    summary, order, notes = tune(8, 16, 32)

    assert order == [32] and (summary.already_tuned, summary.already_stale) == (2, 2)
    assert notes.overview.already_stale == 2 and len(notes.stale) == 1


def test_a_dry_run_lists_stale_rows_first_marks_and_counts_them(tune, overview, table):
    tune(8, 16, 32)
    age(table, 32, triton="3.4.0")
    before = sorted(table.parent.iterdir())

    would = overview(8, 16, 32, 64, all=True)

    assert [(shape.label.split()[0], shape.row) for shape in would.shapes] == [
        ("N=64", RowState.none),
        ("N=32", RowState.stale),
        ("N=8", RowState.fresh),
        ("N=16", RowState.fresh),
    ]
    (note,) = [note for note in would.notes if "stale" in note]
    assert note.startswith("1 of 3 rows is stale") and note.endswith("tuned first, after the shapes without a row")
    text = io.StringIO()
    print_overview(would, text)
    lines = text.getvalue().splitlines()
    assert lines[0] == "4 shapes (1 with a stale row), 8 candidates"
    assert [line.split()[3:] for line in lines[2:]] == [
        ["none", "steady"],
        ["stale", "quick"],
        ["fresh", "quick"],
        ["fresh", "quick"],
    ]
    told = json.loads(overview_json(would))
    assert told["stale"] == 1 and [shape["row"] for shape in told["shapes"]] == ["none", "stale", "fresh", "fresh"]
    assert told["shapes"][1]["shape"] == {"N": 32, "dtype": "fp32"}
    assert told["shapes"][1]["stale"].startswith("measured under triton 3.4.0, now ")
    assert sorted(table.parent.iterdir()) == before


def test_a_dry_run_without_rows_has_no_word_about_them(overview):
    text = io.StringIO()
    print_overview(overview(8, 16), text)
    assert "row" not in text.getvalue() and "stale" not in text.getvalue()


def test_a_dry_run_of_what_is_tuned_counts_stale_rows(tune, overview, table):
    tune(8, 16)
    age(table, 8, triton="3.4.0")
    text = io.StringIO()
    print_overview(overview(8, 16), text)
    assert text.getvalue() == "0 shapes, 0 candidates, 2 shapes have a row already, 1 of them stale\n"


def test_evidence_is_looked_for_beside_the_table_that_the_row_is_in(tune, overview, table, tmp_path):
    tune(8, 16)
    age(table, 8, 16, triton="3.4.0")
    model = tmp_path / "model.csv"
    table.rename(model)
    evidence_path(table).rename(evidence_path(model))
    tune(16)

    would = overview(8, 16, all=True, tune_file=f"{table}:{model}")

    assert {shape.label.split()[0]: shape.row.name for shape in would.shapes} == {"N=8": "stale", "N=16": "fresh"}


def test_a_row_whose_kernel_is_gone_is_none_and_not_stale(tune, tiny, table, overview):
    tune(8, 16)
    file = TunedCsv(table, tiny().key)
    file.update(replace(row, kernelName="gone") for row in file.rows() if row.shape["N"] == 8)
    path = evidence_path(table)
    path.write_text(path.read_text().replace('"name":"quick"', '"name":"gone"'))
    age(table, 8, triton="3.4.0")

    would = overview(8, 16)

    assert [shape.row for shape in would.shapes] == [RowState.none]
    assert (would.stale, would.already_stale) == (0, 0) and not any("stale" in note for note in would.notes)


def test_evidence_that_cannot_be_read_makes_no_row_stale_and_is_told_once(tune, overview, table):
    tune(8, 16)
    evidence_path(table).write_text("{}\n{}\n{}\n")

    summary, _, notes = tune(8, 16)

    assert summary.already_stale == 0
    (told,) = [text for text in notes.texts if "evidence" in text]
    assert "tuned.evidence.jsonl:1: no record of evidence" in told and told.endswith("skipped (and 2 more)")
    evidence_path(table).unlink()
    evidence_path(table).mkdir()
    (told,) = [text for text in overview(8, 16).notes if "evidence" in text]
    assert told.endswith("tuned.evidence.jsonl: cannot be read: Is a directory")


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({"triton": "3.4.0"}, "measured under triton 3.4.0, now 3.6.0"),
        (HERE | {"driver": "570", "torch": "2.9"}, "measured under driver 570 and torch 2.9, now 580 and 2.11.0"),
        (HERE, ""),
        ({}, ""),
        ({"triton": "", "numpy": "1.0"}, ""),
    ],
)
def test_only_versions_that_both_sides_know_make_a_row_stale(measured, says):
    row = TunedRow("sm90", 132, "H200", {"N": 8}, 0, 0, 9.0, "quick")

    assert staleness_of(record_of(measured), HERE) == says
    assert marked(row, record_of(measured), HERE).stale == says
    assert changed_versions(measured, {}) == {}


def test_a_row_without_evidence_is_taken_for_one_of_ours():
    assert staleness_of(None, HERE) == ""


def test_rows_that_are_stale_for_several_reasons_are_still_told_in_one_line():
    a, b = "measured under triton 3.4.0, now 3.6.0", "measured under torch 2.9, now 2.11.0"

    assert stale_note([b, a, a], 40, retunes=True) == f"3 of 40 rows are stale (2 {a}; 1 {b}): tuned first"
    assert stale_note([a, a], 2, retunes=True) == f"2 of 2 rows are stale ({a})"
    assert stale_note([a], 1, retunes=False) == (
        f"1 of 1 row is stale ({a}) and stays as it is: --all tunes shapes again that have a row"
    )
    assert stale_note([], 40, retunes=True) is None
