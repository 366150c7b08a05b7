"""Rows that came into the table while a run was measuring."""

from dataclasses import replace
from pathlib import Path

import pytest

from aiter_tuning.tables.evidence import Evidence, Timed, append_evidence
from aiter_tuning.tables.tuned import TunedRow
from aiter_tuning.tuner.generation import Generation, versions_in_evidence

OURS = TunedRow("sm90", 132, "H200", {"N": 8}, 0, 0, 10.0, "ours")
FASTER, SLOWER = replace(OURS, us=9.0, kernelName="theirs"), replace(OURS, us=11.0, kernelName="theirs")
NOON = "2026-01-31T12:00:00Z"
VERSIONS = {"driver": "580", "torch": "2.11", "triton": "3.6"}


@pytest.mark.parametrize("seen", [FASTER, SLOWER, OURS])
def test_a_row_that_was_seen_protects_nothing(seen):
    generation = Generation()
    generation.saw([seen])

    assert not generation.stays(seen, OURS)
    assert generation.notes(Path("t.csv")) == ()


def test_a_faster_row_that_came_meanwhile_stays_and_a_slower_one_goes():
    generation = Generation()

    assert generation.stays(FASTER, OURS)
    assert generation.yielded(OURS)
    assert not generation.stays(SLOWER, OURS)
    assert not generation.yielded(OURS)


def test_a_seen_row_that_somebody_replaced_meanwhile_is_a_row_that_came_meanwhile():
    generation = Generation()
    generation.saw([SLOWER])

    assert generation.stays(replace(SLOWER, us=9.5), OURS)


def test_a_row_as_fast_as_ours_stays_so_that_two_writers_do_not_take_turns():
    assert Generation().stays(replace(OURS, kernelName="theirs"), OURS)


def test_an_own_row_of_an_earlier_batch_is_replaced_whatever_it_says():
    generation = Generation()
    generation.saw([replace(OURS, us=5.0)])

    assert not generation.stays(replace(OURS, us=5.0), OURS)


def test_a_row_is_known_again_after_its_latency_was_rounded_and_its_model_tidied():
    generation = Generation()
    generation.saw([replace(OURS, us=5.00004999, gpu_model="A  B")])

    assert not generation.stays(replace(OURS, us=5.0, gpu_model="A B"), OURS)


def test_a_faster_row_of_other_versions_goes_and_is_told_of():
    generation = Generation(lambda row: VERSIONS | {"triton": "3.5"}, VERSIONS)

    assert not generation.stays(FASTER, OURS)
    assert "another run wrote 1 row of this run's shapes meanwhile" in generation.notes(Path("t.csv"))[0]


@pytest.mark.parametrize("theirs", [VERSIONS, VERSIONS | {"numpy": "2"}, {"torch": "2.11"}, {"triton": ""}, {}, None])
def test_versions_that_agree_as_far_as_they_are_known_are_one_environment(theirs):
    assert Generation(lambda row: theirs, VERSIONS).stays(FASTER, OURS)


def test_each_end_of_a_clash_is_a_note_of_its_own():
    generation = Generation()
    for size in (1, 2, 3):
        generation.stays(replace(FASTER, shape={"N": size}), replace(OURS, shape={"N": size}))
    generation.stays(SLOWER, OURS)

    stay, went = generation.notes(Path("t.csv"))
    assert stay == (
        "t.csv: another run wrote 3 rows of this run's shapes meanwhile, which are faster and stay; "
        "first theirs at 9.0 us, here ours at 10.0 us"
    )
    assert "1 row of this run's shapes meanwhile, which were slower" in went


def test_versions_come_from_the_evidence_of_the_row(tmp_path):
    tuned = tmp_path / "t.csv"
    key = {"gfx": "sm90", "cu_num": 132, "gpu_model": "H200", "N": 8}
    record = Evidence("tiny", key, "promoted", "", True, True, 1.0, 1.0, 0.1, None, Timed("theirs", {}, 9.0), None,
                      "GPU-0", "kernel", versions={"triton": "3.5"}, began=NOON, ended=NOON)  # fmt: skip
    append_evidence(tuned, [record])

    assert versions_in_evidence(tuned)(FASTER) == {"triton": "3.5"}
    assert versions_in_evidence(tuned)(OURS) is None
    assert versions_in_evidence(tmp_path / "none.csv")(OURS) is None
