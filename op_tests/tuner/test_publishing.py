"""From a choice to a row that a lookup finds."""

import csv
from dataclasses import replace

import pytest

from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.evidence import Evidence, Timed, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.plan import plan_shape
from aiter_tuning.tuner.profile_file import ProfileFile
from aiter_tuning.tuner.publishing import LookupFailedError, Publisher, WriteFailedError, tuned_row

DEVICE = Device("k:K", "gpu0", "GPU-0", gfx="sm90", cu_num=132, gpu_model="H200")
OK = Measurement(Status.ok, 12.34567, 0.00123)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def rows(tiny):
    family = tiny()

    def make(size, us=12.34567):
        plan = plan_shape(family, family.key.parse({"N": size}), DEVICE)
        return tuned_row(plan, plan.candidate("quick"), Measurement(Status.ok, us, 0.0), DEVICE)

    return make


@pytest.fixture
def table(tmp_path, tiny):
    return TunedCsv(tmp_path / "tuned.csv", tiny().key)


@pytest.fixture
def publisher(table):
    def make(**options):
        return Publisher(table.path, table.key, **({"batch": 100} | options))

    return make


def test_a_row_names_device_shape_kernel_and_rates(tiny):
    family = tiny()
    plan = plan_shape(family, family.key.parse({"N": 10_000_000}), DEVICE)
    row = tuned_row(plan, plan.candidate("quick"), Measurement(Status.ok, 100.0, 0.01234), DEVICE)

    assert (row.gfx, row.cu_num, row.gpu_model) == ("sm90", 132, "H200")
    assert (row.kernelName, row.kernelId, row.config) == ("quick", 1, {"do": "quick"})
    assert (row.us, row.tflops, row.bw, row.errRatio) == (100.0, 0.1, 800.0, 0.0123)


def test_rows_are_written_when_the_batch_is_full(publisher, rows, table):
    publisher = publisher(batch=2, clock=Clock())
    publisher.add(rows(1))
    assert table.rows() == []

    publisher.add(rows(2))
    assert len(table.rows()) == 2


def test_rows_are_written_after_five_seconds_however_few(publisher, rows, table):
    clock = Clock()
    publisher = publisher(clock=clock)
    publisher.add(rows(1))
    clock.now = 4.9
    publisher.write_if_due()
    assert table.rows() == []

    clock.now = 5.0
    publisher.write_if_due()
    assert len(table.rows()) == 1


def test_what_was_written_is_found_by_a_lookup(publisher, rows):
    publisher = publisher()
    publisher.add(rows(1))
    publisher.write()

    assert publisher.check() == ()


def test_a_row_that_somebody_else_replaced_is_a_note_and_no_failure(publisher, rows, table):
    publisher = publisher()
    for size in (1, 2):
        publisher.add(rows(size))
    publisher.write()
    table.update([rows(1, us=99.0)])

    (note,) = publisher.check()

    assert "replaced 1 row of this run meanwhile; N=1 dtype=fp32" in note
    assert "now has quick at 99.0 us" in note


def test_a_faster_row_that_another_run_wrote_meanwhile_stays(publisher, rows, table):
    publisher = publisher()
    table.update([rows(1, us=5.0), rows(2, us=50.0)])
    for size in (1, 2):
        publisher.add(rows(size))
    publisher.write()

    assert {row.shape["N"]: row.us for row in table.rows()} == {1: 5.0, 2: 12.3457}
    assert [row.shape["N"] for row in publisher.written] == [2]
    stays, went = publisher.check()
    assert "1 row of this run's shapes meanwhile, which are faster and stay" in stays
    assert "which were slower" in went


def test_a_row_without_a_model_does_not_stand_in_for_one_that_vanished(publisher, rows, table):
    publisher = publisher()
    publisher.add(rows(1))
    publisher.write()
    table.path.unlink()
    table.update([replace(rows(1), gpu_model="")])

    with pytest.raises(LookupFailedError, match="does not find quick at"):
        publisher.check()


def test_a_table_that_cannot_be_read_any_more_fails_the_check(publisher, rows, table):
    publisher = publisher()
    publisher.add(rows(1))
    publisher.write()
    table.path.write_text(table.path.read_text() + "<<<<<<< ours\n")

    with pytest.raises(LookupFailedError, match="could not be read back"):
        publisher.check()


def test_a_row_that_vanished_fails_the_check(publisher, rows, table):
    publisher = publisher()
    publisher.add(rows(1))
    publisher.write()
    table.path.unlink()

    with pytest.raises(LookupFailedError, match="does not find quick at"):
        publisher.check()


def test_a_table_that_cannot_be_written_says_so_and_keeps_the_rows(publisher, rows, table):
    publisher = publisher()
    publisher.add(rows(1))
    table.path.mkdir()

    with pytest.raises(WriteFailedError, match="could not be written"):
        publisher.write()

    table.path.rmdir()
    publisher.write()
    assert len(table.rows()) == 1


# The file of -o2.


@pytest.fixture
def profiled(tiny, tmp_path):
    family = tiny()
    plan = plan_shape(family, family.key.parse({"N": 8}), DEVICE)
    path = tmp_path / "profile.csv"

    def append(steady=OK, quick=OK):
        ProfileFile(path, family.key, DEVICE).append(plan, {"steady": steady, "quick": quick})
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    append.path = path
    return append


def test_a_profile_has_a_row_for_every_candidate_and_tells_a_hang_from_a_refusal(profiled):
    hang = Measurement.failed(Status.timeout, "no result after 60 s, killed")
    refusal = Measurement.failed(Status.unsupported, "not for this shape")

    first, second = profiled(hang, refusal)

    assert (first["us"], first["status"]) == ("inf", "timeout")
    assert (second["us"], second["status"], second["detail"]) == ("-1", "unsupported", "not for this shape")
    assert list(first)[:5] == ["gfx", "cu_num", "gpu_model", "N", "dtype"]


def test_a_profile_is_appended_to_and_keeps_the_columns_it_has(profiled):
    profiled.path.write_text("gfx,cu_num,N,us,kernelName,status,detail,note\nsm80,108,4,1.5,old,ok,,kept")

    rows = profiled()

    assert [row["kernelName"] for row in rows] == ["old", "steady", "quick"]
    assert rows[0]["note"] == "kept"
    assert rows[1] == {
        "gfx": "sm90", "cu_num": "132", "N": "8", "us": "12.3457", "kernelName": "steady",
        "status": "ok", "detail": "", "note": "Null",
    }  # fmt: skip


def test_a_profile_that_is_some_other_file_is_refused_before_the_run(profiled):
    profiled.path.write_text("name,price\n")

    with pytest.raises(UsageError, match=r"profile\.csv:1: has no column N, us, kernelName, status, detail"):
        profiled()
    assert profiled.path.read_text() == "name,price\n"


def test_a_tuned_table_is_no_profile_so_that_failures_never_become_rows_of_it(profiled, table, rows):
    table.update([rows(1)])
    profiled.path.write_bytes(table.path.read_bytes())

    with pytest.raises(UsageError, match=r"profile\.csv:1: has no column status, detail"):
        profiled()
    assert profiled.path.read_bytes() == table.path.read_bytes()


def test_a_profile_that_is_no_text_is_refused(profiled):
    profiled.path.write_bytes(b"\xff\xfe\x00N,us")

    with pytest.raises(UsageError, match=r"profile\.csv: cannot be read"):
        profiled()


def evidence_of(row):
    key = {"gfx": row.gfx, "cu_num": row.cu_num, "gpu_model": row.gpu_model, **row.shape}
    winner = Timed(row.kernelName, dict(row.config), row.us)
    noon = "2026-01-31T12:00:00Z"
    return Evidence(
        *("tiny", key, "promoted", "faster", True, True, 10.0, 3.0, 0.5, None, winner, None, "", "wall"),
        began=noon,
        ended=noon,
    )


def test_no_record_calls_a_row_published_that_anothers_kept_out(publisher, rows, table):
    ours = publisher()
    table.update([replace(rows(8), us=1.0, kernelName="steady", config={"do": "steady"})])  # came meanwhile, is faster
    for size in (8, 16):
        ours.add(rows(size), evidence_of(rows(size)))
    ours.write()

    records = read_evidence(evidence_path(table.path))
    assert [(record.key["N"], record.published) for record in records] == [(8, False), (16, True)]
    assert {row.shape["N"]: row.kernelName for row in table.rows()} == {8: "steady", 16: "quick"}
    assert ours.kept_out == {rows(8).full_key}


class Refusing:
    """Stands for the process that serves staged rows."""

    asked = 0

    def get_ready(self):
        pass

    def objections(self, rows, evidence):
        self.asked += 1
        return {row.full_key: "fell back" for row in rows if row.shape["N"] == 8}


def test_rows_that_serving_refuses_are_left_out_and_the_others_written(publisher, rows, table):
    proven = publisher(prover=Refusing())
    for size in (8, 16):
        proven.add(rows(size), evidence_of(rows(size)))
    proven.write()

    assert [row.shape["N"] for row in table.rows()] == [16]
    assert proven.refused == {rows(8).full_key: "fell back"}
    records = read_evidence(evidence_path(table.path))
    assert [(record.key["N"], record.verdict, record.published) for record in records] == [
        (8, "not_served", False),
        (16, "promoted", True),
    ]


def test_rows_wait_for_a_proof_that_costs_a_small_part_of_the_run(publisher, rows):
    clock, prover = Clock(), Refusing()
    proven = publisher(prover=prover, clock=clock)
    proven.add(rows(16))
    for clock.now in (6.0, 59.0):
        proven.write_if_due()
    assert prover.asked == 0
    clock.now = 61.0
    proven.write_if_due()
    assert prover.asked == 1 and len(proven.written) == 1
