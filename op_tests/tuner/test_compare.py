"""What serving makes of each decision, compared with real workers: what is written, what is not, what a rerun does."""

from dataclasses import replace

import pytest

from aiter_tuning.tables.evidence import EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner import TunerCommon
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.outcome import ExitCode
from aiter_tuning.tuner.reporter import Silent
from op_tests.families_for_tests.compared import Compared, Fragile
from op_tests.families_for_tests.tiny import Tiny

FAST = {"warmup": 1, "iters": 3, "probe": False}


class Notes(Silent):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.csv"


@pytest.fixture
def run(one_lane, table, shapes):
    """Compares on a lane of this machine; returns the summary."""

    def compare(family, *sizes, reporter=None, **flags):
        args = {"untune_file": str(shapes(*sizes)), "tune_file": str(table), "compare": True, **FAST, **flags}
        return TunerCommon(family).run(args, reporter, pool=one_lane)

    return compare


@pytest.fixture
def seed(one_lane, table):
    """Puts rows into the table: kernels by size."""

    def put(kernels, us=1.0):
        device = one_lane.devices[0]
        TunedCsv(table, Compared.key).update(
            TunedRow(
                device.gfx,
                device.cu_num,
                device.gpu_model,
                {"N": size, "dtype": "fp32"},
                0,
                0,
                us,
                name,
                config={"do": name},
            )
            for size, name in kernels.items()
        )

    return put


def kernels(path):
    return {row.shape["N"]: row.kernelName for row in TunedCsv(path, Compared.key).rows()}


def verdicts(summary):
    return {shape.shape["N"]: str(shape.verdict) for shape in summary.shapes}


def agree(table):
    """Whether the newest record of each row says so, row by row."""
    index = EvidenceIndex(read_evidence(evidence_path(table)))
    rows = TunedCsv(table, Compared.key).rows()
    return all((record := index.newest_for(row)) is not None and record.winner.config == row.config for row in rows)


def test_good_rows_stay_slow_wrong_and_dead_ones_are_replaced_and_reruns_change_nothing(run, seed, table):
    seed({8: "quick", 16: "fair", 32: "wrong", 64: "gone"})
    notes = Notes()

    summary = run(Compared(), 8, 16, 32, 64, update_improved=True, reporter=notes)

    assert verdicts(summary) == {8: "retained", 16: "promoted", 32: "correctness_fix", 64: "promoted"}
    assert kernels(table) == dict.fromkeys((8, 16, 32, 64), "quick")
    assert {row.shape["N"]: row.us for row in TunedCsv(table, Compared.key).rows()}[8] == 1.0, "left as it was"
    assert any("gone for N=64" in text for text in notes.texts)
    by_size = {shape.shape["N"]: shape for shape in summary.shapes}
    assert by_size[16].served.before.kernel == "fair" and by_size[16].served.after.kernel == "quick"
    assert by_size[16].margin_pct == pytest.approx(20, abs=8)
    assert by_size[32].served.before.measurement.status == "mismatch"
    assert by_size[64].served.before.kernel == "steady", "what serving runs where a kernel is gone"
    assert by_size[8].served.after is None and by_size[8].served.before.is_right
    for _ in range(2):
        before = table.read_bytes()
        again = run(Compared(), 8, 16, 32, 64, update_improved=True)
        assert set(verdicts(again).values()) == {"retained"}
        assert table.read_bytes() == before
        assert again.exit_code is ExitCode.done


def test_without_leave_to_update_the_table_is_untouched_and_the_same_command_with_it_applies_what_was_measured(
    run, seed, table
):
    seed({8: "fair", 16: "quick"})
    before = table.read_bytes()

    summary = run(Compared(), 8, 16)

    assert table.read_bytes() == before
    candidate = table.with_name("tuned.candidate.csv")
    assert summary.candidate_file == str(candidate)
    assert kernels(candidate) == {8: "quick", 16: "quick"}
    assert [(shape.proposed, shape.published) for shape in summary.shapes] == [(True, False), (False, False)]
    records = read_evidence(evidence_path(table))
    assert [(r.key["N"], r.verdict, r.published) for r in sorted(records, key=lambda r: r.key["N"])] == [
        (8, "promoted", False),
        (16, "retained", False),
    ]
    assert not evidence_path(candidate).exists()

    applied = run(Compared(), 8, 16, update_improved=True)

    assert applied.counts.get("ok", 0) and not candidate.exists()
    assert kernels(table) == {8: "quick", 16: "quick"}
    assert applied.shapes[0].us == pytest.approx(summary.shapes[0].us, abs=1e-5), "nothing was measured again"
    assert agree(table)
    assert not list(table.parent.glob("*.checkpoint.csv"))


def test_a_winner_is_applied_although_todays_row_has_its_name_with_another_config(run, seed, table):
    seed({8: "quick", 16: "quick"})
    file = TunedCsv(table, Compared.key)
    file.update(replace(row, config={"do": "fair"}) for row in file.rows() if row.shape["N"] == 8)

    summary = run(Compared(), 8, 16)
    assert verdicts(summary) == {8: "promoted", 16: "retained"}
    run(Compared(), 8, 16, update_improved=True)

    assert {row.shape["N"]: row.config["do"] for row in file.rows()} == {8: "quick", 16: "quick"}


def test_where_nothing_is_proposed_no_candidate_table_is_left(run, seed, table):
    seed({8: "quick"})
    summary = run(Compared(), 8)
    assert (summary.candidate_file, summary.exit_code) == ("", ExitCode.done)
    assert not table.with_name("tuned.candidate.csv").exists()


def test_a_winner_that_serving_cannot_run_is_not_written_and_the_verdict_says_why(run, seed, table):
    seed({8: "quick"})

    summary = run(Fragile(), 8, update_improved=True)

    (shape,) = summary.shapes
    assert shape.verdict == "not_served" and "fell back to the default: RuntimeError" in shape.reason
    assert summary.exit_code is ExitCode.no_correct_candidate
    assert kernels(table) == {8: "quick"}
    (record,) = read_evidence(evidence_path(table))
    assert (record.verdict, record.published) == ("not_served", False)
    assert "no such instruction" in record.served["after"]["failure"]


def test_a_shape_without_a_row_gets_one_and_its_evidence_has_both_sides(run, table):
    summary = run(Compared(), 8, update_improved=True)

    assert verdicts(summary) == {8: "promoted"}
    assert kernels(table) == {8: "quick"} and agree(table)
    (record,) = read_evidence(evidence_path(table))
    sides = record.served
    assert (sides["before"]["name"], sides["after"]["name"]) == ("steady", "quick")
    assert len(sides["before"]["samples_us"]) == len(sides["after"]["samples_us"]) >= 3
    assert record.margin_pct == pytest.approx(30, abs=8)


def test_a_gain_under_the_bar_is_no_reason_to_change_a_row(run, seed, table):
    seed({8: "fair"})
    summary = run(Compared(), 8, update_improved=True, min_improvement_pct=60)
    assert verdicts(summary) == {8: "retained"}
    assert kernels(table) == {8: "fair"}


def test_a_stale_duplicate_does_not_survive_its_replacement(run, seed, table):
    seed({8: "fair"})
    header, row = table.read_text().splitlines()
    table.write_text(f"{header}\n{row}\n{row.replace(',1.0,', ',0.5,')}\n")
    assert len(table.read_text().splitlines()) == 3

    run(Compared(), 8, update_improved=True)

    assert len(table.read_text().splitlines()) == 2
    assert kernels(table) == {8: "quick"}


@pytest.mark.parametrize("flags", [{"update_improved": True}, {"compare": False, "all": True}])
def test_a_stale_duplicate_does_not_survive_a_decision_for_the_row_that_counts(run, seed, table, flags):
    seed({8: "quick", 16: "quick", 32: "quick"})
    header, *rows = table.read_text().splitlines()
    stale = [row.replace(",1.0,", ",3.0,") for row in rows]
    table.write_text("\n".join([header, stale[0], stale[0], *rows, stale[1], stale[2]]) + "\n")
    notes = Notes()

    summary = run(Compared(), 8, 16, reporter=notes, **flags)

    assert set(verdicts(summary).values()) <= {"retained", "ambiguous"}
    assert table.read_text().splitlines() == [header, *rows, stale[2]], "nobody decided on the last shape"
    (told,) = [text for text in notes.texts if "taken out" in text]
    assert "3 rows were taken out" in told and "quick at 3.0 us for N=" in told and told.endswith("and others")


def test_a_proposal_has_no_stale_duplicates_either_and_the_table_keeps_them(run, seed, table):
    seed({8: "fair", 16: "quick"})
    header, fair, quick = table.read_text().splitlines()
    table.write_text(f"{header}\n{fair}\n{quick}\n{quick.replace(',1.0,', ',0.5,')}\n")
    before, notes = table.read_bytes(), Notes()

    run(Compared(), 8, 16, reporter=notes)

    assert table.read_bytes() == before
    assert len(table.with_name("tuned.candidate.csv").read_text().splitlines()) == 3
    assert not any("taken out" in text for text in notes.texts)


def test_what_cannot_be_compared_is_refused_before_anything_is_done(run, tmp_path):
    with pytest.raises(UsageError, match="--update_improved writes what --compare finds better"):
        run(Compared(), 8, compare=False, update_improved=True)
    with pytest.raises(UsageError, match="tiny names nothing: define its serve"):
        run(Tiny(), 8)
    assert not list(tmp_path.glob("tuned*"))


def test_what_serving_gains_is_weighted_with_how_often_it_asks(run, seed, one_lane, table, tmp_path):
    seed({8: "fair", 16: "fair"})
    path = tmp_path / "counted.csv"
    path.write_text("N,calls\n8,5\n16,2\n8,10\n")

    summary = run(Compared(), untune_file=str(path))

    assert [(shape.shape["N"], shape.calls) for shape in summary.shapes] == [(8, 15), (16, 2)]
    for shape in summary.shapes:
        assert shape.saved_us == pytest.approx(400, abs=250)  # of sleeps, on a busy machine
        assert shape.saved_us == shape.served.before.us - shape.served.after.us
