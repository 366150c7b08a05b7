"""``aiter-tune poison``: the list shown, filtered and cleared; and a whole run that feeds and heeds it."""

import json
from dataclasses import replace

import pytest

from aiter_tuning.cli import main
from aiter_tuning.status import Status
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tuner.poison import Poisoned
from aiter_tuning.tuner.poison_list import PoisonFile

RECORD = Poisoned(
    {"gfx": "sm90", "cu_num": 132, "gpu_model": "NVIDIA H200"}, "ab12cd", {"torch": "2.11", "triton": ""}, "gemm",
    "bm128", {"M": 1, "N": 2}, Status.crash, "worker was killed by signal 11 (SIGSEGV)", "2026-01-31T12:00:00Z",
)  # fmt: skip
HUNG = replace(RECORD, candidate="bm64", fingerprint="ffee", family="norm", status=Status.timeout)


@pytest.fixture
def listed(capsys):
    def run(*words):
        code = main(["poison", *words])
        return code, capsys.readouterr()

    PoisonFile().add([RECORD, HUNG])
    return run


def test_the_list_says_who_did_what_when_and_where(listed):
    code, said = listed()

    assert code == 0
    assert "2026-01-31T12:00:00Z  gemm bm128 [ab12cd]  M=1 N=2" in said.out
    assert "crash: worker was killed by signal 11 (SIGSEGV)" in said.out
    assert "on NVIDIA H200 (sm90, 132 CUs); torch 2.11\n" in said.out
    assert said.out.splitlines()[-1].startswith("2 records: ")


@pytest.mark.parametrize(
    "words", [("--family", "gemm"), ("--candidate", "bm128"), ("--fingerprint", "ab"), ("list", "--family", "gemm")]
)
def test_filters_choose(listed, words):
    _, said = listed(*words, "--json")

    assert [record["candidate"] for record in json.loads(said.out)["records"]] == ["bm128"]


def test_clear_takes_off_what_it_is_told_and_nothing_without_a_word(listed):
    code, said = listed("clear")
    assert (code, len(PoisonFile().read())) == (2, 2)
    assert "clear --all" in said.err

    code, said = listed("clear", "--candidate", "bm64")
    assert (code, PoisonFile().read()) == (0, [RECORD])
    assert "1 record cleared" in said.out
    listed("clear", "--all")
    assert PoisonFile().read() == []


@pytest.mark.parametrize("words", [("--all",), ("clear", "--all", "--family", "gemm")])
def test_all_is_for_clearing_the_whole_list_and_nothing_else(listed, words):
    code, said = listed(*words)
    assert (code, len(PoisonFile().read())) == (2, 2)
    assert "--all is for clearing the whole list" in said.err


def test_an_empty_list_is_no_error(capsys):
    assert main(["poison"]) == 0
    assert capsys.readouterr().out.startswith("0 records: ")


def test_a_list_that_cannot_be_written_ends_with_5(listed, aiter_tuning_home):
    file = aiter_tuning_home / "poison.jsonl"
    file.unlink()
    file.mkdir()
    code, said = listed("clear", "--all")
    assert code == 5
    assert "poison.jsonl" in said.err


def test_a_candidate_that_dies_is_left_alone_by_a_run_that_knows_nothing_else_of_it(tune_here, run_here, tmp_path):
    assert tune_here("Troubled", sizes=(8,)).returncode == 0

    out = run_here("poison", "--json").out
    (record,) = json.loads(out)["records"]
    assert (record["candidate"], record["shape"]["N"], record["status"]) == ("dies", 8, "crash")
    assert record["detail"].startswith("worker exited with code 7")

    (tmp_path / "out.csv").rename(tmp_path / "first.csv")
    for profile in tmp_path.glob("out.profile.*"):
        profile.unlink()
    code, _, err = tune_here("Troubled", sizes=(8,))
    assert code == 0, err
    assert "1 candidate not run, since it killed or hung a worker before (dies)" in err
    (profile,) = tmp_path.glob("out.profile.*.csv")
    rows = [row.cells for row in read_rows(profile).rows if row.cells["candidate"] == "dies"]
    assert [(row["event"], row["status"], row["us"]) for row in rows] == [("finished", "crash", "inf")]
    assert rows[0]["detail"].startswith("poisoned: ")
