"""Finals with real workers: what is decided, what a person sees, what survives ``kill -9``."""

import json
import time

import psutil

from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.evidence import evidence_path, read_evidence


def rows_of(path):
    return [row.cells for row in read_rows(path).rows]


def blocks_in(checkpoint):
    """Blocks of finals that are on record, by size."""
    if not checkpoint.exists():
        return []
    text = checkpoint.read_bytes()
    lines = text[: text.rfind(b"\n") + 1].decode().splitlines()
    return sorted(
        {(cells[1], cells[4]) for line in lines if (cells := line.split(","))[4:5] and "finalist:" in cells[4]}
    )


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def test_finals_killed_in_the_middle_go_on_and_decide_as_an_undisturbed_run(tune, tune_here, tmp_path, descendants):
    checkpoint, flags = tmp_path / "out.checkpoint.csv", ("--rounds", "12")
    process = tune("Tiny", *flags)
    wait_until(lambda: len(blocks_in(checkpoint)) >= 5)
    workers = descendants(process)
    process.kill()
    process.communicate()
    psutil.wait_procs(workers, timeout=10)
    before = blocks_in(checkpoint)

    code, _, err = tune_here("Tiny", *flags, "-v")

    assert code == 0, err
    (profile,) = tmp_path.glob("out.profile.*.csv")
    turns = [(row["N"], row["candidate"], row["phase"]) for row in rows_of(profile) if "finalist" in row["phase"]]
    assert len(turns) == len(set(turns)) == 2 * 2 * 12, "no block was measured twice"
    assert len(before) >= 5 and f"{len(before)} blocks are on record" in err
    assert {row["N"]: row["kernelName"] for row in rows_of(tmp_path / "out.csv")} == {"8": "quick", "16": "quick"}
    records = read_evidence(evidence_path(tmp_path / "out.csv"))
    assert sorted((record.key["N"], record.verdict) for record in records) == [(8, "promoted"), (16, "promoted")]
    assert all(len(record.winner.samples_us) == 12 for record in records)
    assert records[0].command.startswith("aiter-tune tune ")


def test_a_rerun_of_all_changes_nothing_and_says_so(tune_here, tmp_path):
    tune_here("Tiny", sizes=(8,))
    before = (tmp_path / "out.csv").read_bytes()

    code, out, err = tune_here("Tiny", "--all", "--json", sizes=(8,))

    assert code == 0, err
    (shape,) = json.loads(out)["shapes"]
    assert (shape["verdict"], shape["incumbent"], shape["published"]) == ("retained", "quick", False)
    assert shape["blocks"] >= 3
    assert (tmp_path / "out.csv").read_bytes() == before


def test_a_candidate_that_kills_its_worker_has_no_part_in_the_finals(tune_here, tmp_path):
    code, _, err = tune_here("Troubled", sizes=(8,))

    assert code == 0, err
    (profile,) = tmp_path.glob("out.profile.*.csv")
    assert {row["candidate"] for row in rows_of(profile) if row["phase"] == "finals"} == {"steady", "quick"}


def test_flags_of_the_decision_are_checked_before_anything_is_started(tune_here):
    for flag, value, says in (
        ("--strategy", "luck", "invalid choice: 'luck'"),
        ("--min_improvement_pct", "100", "'100' is not a percentage"),
        ("--rounds", "0", "'0' is not a whole number of 1 or more"),
        ("--timer", "kernel", "--timer kernel: the kernel timer needs a GPU"),
        ("--timer", "sundial", "there is no timer 'sundial'"),
    ):
        code, _, err = tune_here("Tiny", flag, value)
        assert code == 2, err
        assert says in err
