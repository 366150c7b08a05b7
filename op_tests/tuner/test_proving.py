"""Rows are written only once a fresh process has served them; what it refuses has its verdict and evidence."""

import pytest

from aiter_tuning.tables.evidence import evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner import TunerCommon
from aiter_tuning.tuner.family_reference import reference_of
from aiter_tuning.tuner.outcome import ExitCode
from aiter_tuning.tuner.proving import UNASKED, Prover
from op_tests.families_for_tests.compared import Compared, Fragile, Rough


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.csv"


@pytest.fixture
def run(one_lane, table, shapes):
    def tune(family, *sizes, **flags):
        args = {"untune_file": str(shapes(*sizes)), "tune_file": str(table), "warmup": 1, "iters": 3}
        return TunerCommon(family).run({**args, "confirm": False, **flags}, pool=one_lane)

    return tune


def records(table):
    return sorted(read_evidence(evidence_path(table)), key=lambda record: record.key["N"])


def test_what_serving_does_not_take_is_not_written_and_its_verdict_says_so(run, table):
    summary = run(Fragile(), 8, 16)

    assert not table.exists()
    assert summary.exit_code is ExitCode.no_correct_candidate
    for shape, record in zip(summary.shapes, records(table), strict=True):
        assert (shape.verdict, shape.published) == ("not_served", False)
        assert "fragile is not published" in shape.reason and "no such instruction" in shape.reason
        assert (record.verdict, record.published, record.winner) == ("not_served", False, None)


def test_what_it_takes_is_written_as_ever(run, table):
    summary = run(Compared(), 8, 16)

    assert {row.shape["N"]: row.kernelName for row in TunedCsv(table, Compared.key).rows()} == {8: "quick", 16: "quick"}
    assert [shape.published for shape in summary.shapes] == [True, True]
    assert [record.published for record in records(table)] == [True, True]


def test_what_the_run_accepts_its_proof_accepts(run, table):
    summary = run(Rough(), 8, errRatio=0.2)

    assert [(shape.verdict, shape.published) for shape in summary.shapes] == [("promoted", True)]
    assert [(row.kernelName, row.errRatio) for row in TunedCsv(table, Rough.key).rows()] == [("rough", 0.125)]


def test_what_the_run_does_not_accept_its_proof_does_not(one_lane, table):
    device = one_lane.devices[0]
    row = TunedRow(
        device.gfx,
        device.cu_num,
        device.gpu_model,
        {"N": 8, "dtype": "fp32"},
        0,
        0,
        5.0,
        "rough",
        config={"do": "rough"},
    )
    with Prover(reference_of(Rough), Rough.key, table, device, seed=0, stop=lambda: False, err_ratio=0.1) as prover:
        assert prover.objections([row], [])[row.full_key].startswith("its result is wrong: 12.5 % of 8 elements")


def test_proofs_can_be_switched_off(run, table):
    run(Fragile(), 8, probe=False)
    assert [row.kernelName for row in TunedCsv(table, Fragile.key).rows()] == ["fragile"]


def test_a_run_that_is_stopped_leaves_rows_for_the_next_one(one_lane, table):
    device = one_lane.devices[0]
    row = TunedRow(device.gfx, device.cu_num, device.gpu_model, {"N": 8, "dtype": "fp32"}, 0, 0, 5.0, "quick")
    with Prover(reference_of(Compared), Compared.key, table, device, seed=0, stop=lambda: True) as prover:
        assert prover.objections([row], []) == {row.full_key: UNASKED}
