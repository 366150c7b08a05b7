"""What the evidence beside a table says about its rows: stale ones, solution numbers, and which of two counts."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from aiter_tuning import lookup
from aiter_tuning.serving import versions
from aiter_tuning.tables.evidence import Evidence, Timed, append_evidence
from op_tests.serving.scaled import HERE, line, write_table

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """What this process would find installed."""
    here = {"triton": "3.2.0", "torch": "2.9.1"}
    monkeypatch.setattr(versions, "installed", here.get)
    return here


def explain_row(table, m, *, kernel="fast", minutes=0, run="run", **measured):
    append_evidence(
        table,
        [
            Evidence(
                "scaled",
                {**HERE._asdict(), "M": m, "N": 64, "dtype": "bf16", "bias": False},
                *("promoted", "faster", True, True, 5.0, 3.0, 0.5),
                incumbent=None,
                winner=Timed(kernel, {}, 10.0),
                default=None,
                device_uuid="GPU-0",
                timer="kernel",
                versions=measured,
                fingerprints={"run": run},
                began=NOON.isoformat(),
                ended=(NOON + timedelta(minutes=minutes)).isoformat(),
            )
        ],
    )


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.csv"


def test_a_row_of_another_triton_serves_and_is_marked_stale(scaled, table):
    write_table(table, line(64), line(65))
    explain_row(table, 64, triton="3.1.0", torch="2.9.1")
    explain_row(table, 65, triton="3.2.0", torch="2.9.1", driver="570")
    assert lookup(scaled, tuned=table, M=64, N=64).stale == "measured under triton 3.1.0, this is 3.2.0"
    assert lookup(scaled, tuned=table, M=65, N=64).stale == ""


def test_a_row_without_evidence_serves_and_nothing_is_said_of_it(scaled, table, said):
    write_table(table, line(64))
    explain_row(table, 64, kernel="another")
    assert lookup(scaled, tuned=table, M=64, N=64).stale == ""
    assert said() == []


def test_a_version_that_is_not_installed_here_makes_nothing_stale(scaled, table, installed):
    del installed["triton"]
    write_table(table, line(64))
    explain_row(table, 64, triton="3.1.0")
    assert lookup(scaled, tuned=table, M=64, N=64).stale == ""


def test_damaged_evidence_costs_no_row(scaled, table, said):
    write_table(table, line(64), line(65))
    explain_row(table, 65, triton="3.1.0")
    with table.with_name("tuned.evidence.jsonl").open("a") as file:
        file.write("{nope\n{}\n")
    assert lookup(scaled, tuned=table, M=64, N=64) is not None
    assert lookup(scaled, tuned=table, M=65, N=64).stale
    assert len(said("no record of evidence")) == 1


@pytest.mark.parametrize(
    ("config", "measured", "serves"),
    [
        ({"library_version": "2.9.1"}, {}, True),
        ({"library_version": "2.8.0"}, {}, False),
        ({}, {"torch": "2.9.1"}, True),
        ({}, {"torch": "2.8.0"}, False),
        ({}, {}, False),
    ],
)
def test_a_solution_number_serves_under_the_very_version_that_numbered_it(
    scaled, table, said, config, measured, serves
):
    number = json.dumps({"kernel": "fast", "library": "hipblaslt", "solution": 1234, **config})
    write_table(table, line(64, config=number))
    if measured:
        explain_row(table, 64, **measured)
    for _ in range(2):
        assert (lookup(scaled, tuned=table, M=64, N=64) is not None) is serves
    assert len(said("solution number of hipblaslt")) == (0 if serves else 1)


def test_a_library_that_is_a_package_of_its_own_is_asked_for_its_own_version(scaled, table, installed):
    installed["cublas"] = "13.1"
    numbered = {"kernel": "fast", "library": "cublas", "library_version": "13.1"}
    write_table(table, line(64, config=json.dumps(numbered)))
    assert lookup(scaled, tuned=table, M=64, N=64) is not None


def test_of_two_rows_in_two_files_the_newest_environment_counts_and_not_the_faster_row(scaled, tmp_path):
    old = write_table(tmp_path / "old.csv", line(64, us=5.0))
    new = write_table(tmp_path / "new.csv", line(64, us=6.0))
    explain_row(old, 64, run="old driver")
    explain_row(new, 64, run="new driver", minutes=5)
    for tables in ((old, new), (new, old)):
        assert lookup(scaled, tuned=tables, M=64, N=64).us == 6.0
