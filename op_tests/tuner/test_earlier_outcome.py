"""What a resumed comparison tells of shapes that were decided before it was interrupted."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement
from aiter_tuning.report.comparison import comparison_text
from aiter_tuning.report.summary import summary_json
from aiter_tuning.status import Status
from aiter_tuning.tables.evidence import Evidence, Timed, append_evidence, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner import TunerCommon
from aiter_tuning.tuner.before_after import BeforeAfter, Side
from aiter_tuning.tuner.earlier_outcome import Decided, earlier_outcomes, served_of_record
from aiter_tuning.tuner.outcome import ExitCode
from op_tests.families_for_tests.compared import Compared

US = {"steady": 100.0, "quick": 50.0, "fair": 80.0, "wrong": Measurement(Status.mismatch, 10.0, 0.5, "half is wrong")}
SEEDS = {8: "quick", 16: "fair", 32: "wrong", 64: "gone", 128: "steady", 256: None}
VERDICTS = {8: "retained", 16: "promoted", 32: "correctness_fix", 64: "promoted", 128: "promoted", 256: "promoted"}
SERVED_TODAY = {**SEEDS, 64: "steady", 256: "steady"}


def served(shape, name, block):
    """A candidate's latency, also as serving runs it."""
    if name == "serving today":
        return US[SERVED_TODAY[shape["N"]]]
    return US[name.removeprefix("serving ")]


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.csv"


def record_of_a_first_row(device, n, name):
    key = {"gfx": device.gfx, "cu_num": device.cu_num, "gpu_model": device.gpu_model, "N": n, "dtype": "fp32"}
    winner = Timed(name, {"do": name}, 1.0)
    return Evidence("compared", key, "first_row", "", True, True, None, None, None, winner, winner, winner, "GPU-0",
                    "wall", began="2026-01-31T12:00:00Z", ended="2026-01-31T12:00:00Z")  # fmt: skip


@pytest.fixture
def seed(table, scripted):
    """Puts a row of each kind into the table; those that name the default and what is gone have records."""
    device = scripted(US).devices[0]
    TunedCsv(table, Compared.key).update(
        TunedRow(device.gfx, device.cu_num, device.gpu_model, {"N": n, "dtype": "fp32"}, 0, 0, 1.0, name,
                 config={"do": name})
        for n, name in SEEDS.items()
        if name is not None
    )  # fmt: skip
    append_evidence(table, [record_of_a_first_row(device, n, SEEDS[n]) for n in (64, 128)])


@pytest.fixture
def compare(table, scripted, shapes, seed):
    """Compares all sizes, as far as the script goes; returns the summary and the pool."""

    def run(script=None, serve=served, sizes=tuple(SEEDS), **flags):
        pool = scripted(script or (lambda shape, name: US[name]), serve)
        args = {"untune_file": str(shapes(*sizes)), "tune_file": str(table), "compare": True, "probe": False, **flags}
        return TunerCommon(Compared()).run(args, pool=pool), pool

    return run


def stops_at(size):
    """A person ends the run at this size."""
    return lambda shape, name: "stop" if shape["N"] == size and name == "quick" else US[name]


def sizes_of(summary):
    return [shape.shape["N"] for shape in summary.shapes]


def test_evidence_holds_all_that_a_report_tells_of_a_shape(compare, table):
    whole, pool = compare(update_improved=True, batch=1)
    assert {shape.shape["N"]: shape.verdict for shape in whole.shapes} == VERDICTS
    decided = [Decided(shape.label, shape.shape, shape.counts) for shape in whole.shapes]
    records = read_evidence(evidence_path(table))

    told = earlier_outcomes(decided, records, pool.devices[0], records[-1].fingerprints["run"])

    expected = [
        replace(shape, decided_earlier=True, resumed=4, served=replace(shape.served, gate=None))
        for shape in whole.shapes
    ]
    assert summary_json(replace(whole, shapes=tuple(told))) == summary_json(replace(whole, shapes=tuple(expected)))
    assert comparison_text(replace(whole, shapes=tuple(told))) == comparison_text(
        replace(whole, shapes=tuple(expected))
    )


@pytest.mark.parametrize("served_too", [False, True])
@pytest.mark.parametrize("size", [256, 128, 64, 16])
def test_a_resumed_comparison_reports_every_shape_once_in_the_order_of_the_file(compare, table, size, served_too):
    def stops(shape, name, block):
        return "stop" if shape["N"] == size and name == "serving quick" else served(shape, name, block)

    interrupted = {"serve": stops} if served_too else {"script": stops_at(size)}
    first, _ = compare(**interrupted, update_improved=True, batch=1)
    assert first.exit_code is ExitCode.interrupted
    before = read_evidence(evidence_path(table))[2:]

    summary, pool = compare(update_improved=True, batch=1)

    assert sizes_of(summary) == list(SEEDS)
    assert {shape.shape["N"]: shape.verdict for shape in summary.shapes} == VERDICTS
    assert {shape.shape["N"] for shape in summary.shapes if shape.decided_earlier} == {r.key["N"] for r in before}
    assert (summary.already_tuned, summary.exit_code) == (0, ExitCode.done)
    assert all(shape.served is not None and shape.served.before.kernel for shape in summary.shapes)
    assert not {r.key["N"] for r in before} & {n for n, _ in pool.calls}, "nothing of them was measured again"
    text = comparison_text(summary)
    assert [text.count(f"\nN={n} ") for n in SEEDS] == [1] * len(SEEDS)
    assert "5 rows were written, 1 shape as before" in text
    count = len(before)
    assert (f"{count} of these decided in an earlier part of this run" in text) == (count > 0)
    assert table.with_name("tuned.compare.checkpoint.csv").exists() is False


def test_what_was_retained_before_is_told_when_the_same_command_applies_what_was_measured(compare):
    compare()

    summary, pool = compare(update_improved=True)

    assert not pool.calls and sizes_of(summary) == list(SEEDS)
    assert [shape.shape["N"] for shape in summary.shapes if shape.decided_earlier] == [8]
    assert json.loads(summary_json(summary))["shapes"][0]["decided_earlier"] is True


def test_a_run_that_was_killed_when_all_was_decided_reports_and_ends_it(compare, table):
    compare(update_improved=True)
    (profile,) = table.parent.glob("tuned.profile.*.csv")
    profile.rename(table.with_name("tuned.compare.checkpoint.csv"))
    rows = table.read_bytes()

    summary, pool = compare(update_improved=True)

    assert sizes_of(summary) == list(SEEDS) and all(shape.decided_earlier for shape in summary.shapes)
    assert pool.calls == [] and table.read_bytes() == rows
    assert "6 of these decided in an earlier part" in comparison_text(summary)
    assert not list(table.parent.glob("*.checkpoint.csv")), "so that the next one compares anew"
    again, pool = compare(update_improved=True)
    assert pool.calls and not any(shape.decided_earlier for shape in again.shapes)


def test_shapes_whose_evidence_is_gone_are_counted(compare, table):
    compare()
    evidence_path(table).unlink()

    summary, _ = compare()

    assert 8 not in sizes_of(summary) and summary.already_tuned == 1
    assert "1 shape decided in an earlier part of this run, without evidence of how" in comparison_text(summary)


def test_a_proposal_does_not_count_what_an_earlier_part_has_written(compare, table):
    def stops(shape, name, block):
        return "stop" if shape["N"] == 16 and name == "serving quick" else served(shape, name, block)

    compare(serve=stops, update_improved=True, batch=1)

    summary, _ = compare()

    assert sizes_of(summary) == list(SEEDS)
    written = [shape.shape["N"] for shape in summary.shapes if shape.decided_earlier and shape.published]
    assert written and sum(shape.proposed for shape in summary.shapes if not shape.decided_earlier) == 5 - len(written)
    assert f"{5 - len(written)} row" in comparison_text(summary)


def test_whether_a_shape_had_a_row_is_told_as_far_as_evidence_goes(compare, table):
    compare(update_improved=True)
    records = read_evidence(evidence_path(table))
    (had_none,) = [record for record in records if record.key["N"] == 256]
    run, device = had_none.fingerprints["run"], Device("", "", "", "sm90", 132, "H200")
    one = Decided("N=256", {"N": 256, "dtype": "fp32"}, {})

    def was_untuned(*history):
        (outcome,) = earlier_outcomes([one], history, device, run)
        return outcome.was_untuned

    first_row = replace(had_none, verdict="first_row", winner=had_none.default)
    assert was_untuned(had_none)
    assert was_untuned(had_none, had_none), "its run was killed between record and row"
    assert was_untuned(first_row, first_row)
    assert not was_untuned(first_row, had_none)
    assert not was_untuned(replace(had_none, winner=replace(had_none.winner, name="gone")), had_none)
    assert not was_untuned(replace(had_none, incumbent=replace(had_none.winner, name="fair")))


def test_only_records_of_this_run_about_what_was_compared_count(compare, table):
    compare(update_improved=True)
    records = [record for record in read_evidence(evidence_path(table)) if record.key["N"] == 16]
    record, run = records[-1], records[-1].fingerprints["run"]
    one, device = Decided("N=16", {"N": 16, "dtype": "fp32"}, {}), Device("", "", "", "sm90", 132, "H200")
    foreign = [
        replace(record, fingerprints={"run": "other"}),
        replace(record, served={}),
        replace(record, complete=False),
        replace(record, verdict="of another release"),
        replace(record, key=record.key | {"N": 17}),
    ]

    assert earlier_outcomes([one], foreign, device, run) == []
    (told,) = earlier_outcomes([one], [record, *foreign], device, run)
    assert (told.verdict, told.winner, told.published) == ("promoted", "quick", True)
    assert earlier_outcomes([one], [record], replace(device, cu_num=78), run) == []


US_OR_NONE = st.none() | st.floats(0.001, 1e6)
SIDE = st.builds(
    lambda name, status, us, detail, samples: Side(
        name, Measurement(status, us if status is Status.ok else -1.0, 0.0, detail if status is not Status.ok else ""),
        tuple(samples),
    ),
    st.text(min_size=1), st.sampled_from(Status), st.floats(0.001, 1e6), st.text(), st.lists(US_OR_NONE),
)  # fmt: skip


@given(SIDE, st.none() | SIDE)
def test_sides_are_read_as_they_were_written(before, after):
    def written(side):
        return side and {
            "name": side.kernel,
            "us": side.us,
            "samples_us": list(side.samples_us),
            "failure": side.failure,
        }

    read = served_of_record(json.loads(json.dumps({"before": written(before), "after": written(after)})))

    assert isinstance(read, BeforeAfter)
    for one, other in ((read.before, before), (read.after, after)):
        assert written(one) == written(other)
    assert read.failures == BeforeAfter(before, after).failures


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"before": None, "after": None},
        {"before": "steady"},
        {"before": {"name": "steady"}},
        {"before": {"name": "steady", "us": 1.0, "failure": "no such status", "samples_us": []}},
        {"before": {"name": "steady", "us": 1.0, "failure": "", "samples_us": None}},
    ],
)
def test_sides_in_another_form_are_none(damaged):
    assert served_of_record(damaged) is None
