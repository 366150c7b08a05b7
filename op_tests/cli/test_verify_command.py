"""``aiter-tune verify``: rows that hold, and those that no longer do."""

import json
from dataclasses import replace

import pytest

from aiter_tuning.devices.discovery import discover
from aiter_tuning.tables.evidence import Evidence, Timed, append_evidence, evidence_path
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from op_tests.cli.conftest import ROOT
from op_tests.families_for_tests.compared import Compared

COMPARED = f"{ROOT / 'op_tests' / 'families_for_tests' / 'compared.py'}:Compared"
LOOSE = ("--errRatio", "0.5")
NOON = "2026-01-31T12:00:00Z"


@pytest.fixture
def table(tmp_path):
    return tmp_path / "out.csv"


def row(size, name, **fields):
    device = discover("cpu", 0)[0]
    shape = {"N": size, "dtype": "fp32"}
    made = TunedRow(device.gfx, device.cu_num, device.gpu_model, shape, 0, 0, 1000.0, name, config={"do": name})
    return replace(made, **fields)


def evidence(row, incumbent, versions):
    key = {"gfx": row.gfx, "cu_num": row.cu_num, "gpu_model": row.gpu_model, **row.shape}
    sides = {name: Timed(name, {"do": name}, 1000.0) for name in (row.kernelName, incumbent, "steady")}
    return Evidence(
        *("compared", key, "promoted", "faster", True, True, 10.0, 3.0, 0.5),
        *(sides[incumbent], sides[row.kernelName], sides["steady"], "", "wall"),
        versions=versions,
        began=NOON,
        ended=NOON,
    )


def test_each_row_is_held_against_the_default_and_what_it_replaced(run_here, table):
    rows = [row(8, "quick"), row(16, "wrong"), row(32, "gone"), row(64, "fair"), row(128, "steady"), row(9, "quick")]
    rows.append(replace(row(7, "steady"), config={"do": "same"}))
    elsewhere = row(8, "quick", gfx="sm90", cu_num=132, gpu_model="NVIDIA H200")
    TunedCsv(table, Compared.key).update([*rows, elsewhere])
    append_evidence(table, [evidence(rows[3], "quick", {}), evidence(rows[5], "steady", {"torch": "1.0"})])

    code, out, err = run_here("verify", "out.csv", "--family", COMPARED, "--json")

    assert code == 1, err
    told = json.loads(out)
    found = {one["shape"]["N"]: one for one in told["rows"]}
    assert {n: list(one["doubts"]) for n, one in found.items()} == {
        8: [],
        16: ["wrong"],
        32: ["gone"],
        64: ["slower"],
        128: [],
        9: ["stale"],
        7: ["changed_config"],
    }
    assert found[7]["us"] < found[7]["default_us"], "what serving launches is timed"
    assert found[7]["doubts"]["changed_config"] == 'the config of steady is {"do":"steady"} today, not {"do":"same"}'
    assert 3 < found[8]["ahead_pct"] < 100 and found[128]["ahead_pct"] is None, "the default leads nobody"
    assert "slower than quick" in found[64]["doubts"]["slower"], "faster than the default, but not than what was there"
    assert "measured under torch 1.0" in found[9]["doubts"]["stale"]
    assert found[8]["us"] < found[8]["default_us"]
    assert (told["other_devices"], found[8]["has_evidence"], found[9]["has_evidence"]) == (1, False, True)


def test_a_table_whose_rows_hold_ends_with_0_and_kinds_can_be_left_out(command, table):
    rows = [row(8, "quick"), row(9, "quick")]
    TunedCsv(table, Compared.key).update(rows)
    append_evidence(table, [evidence(rows[1], "steady", {"torch": "1.0"})])

    process = command("verify", "out.csv", "--family", COMPARED, "--ignore", "stale")
    out, err = process.communicate()

    assert process.returncode == 0, err
    assert "2 rows for this device: 2 holds" in out
    titles, first = (line.split() for line in out.splitlines()[1:3])
    assert titles[-3:] == ["ahead", "%", "verdict"] and float(first[-2]) > 3


def test_a_table_without_a_row_for_this_device_verifies_nothing_and_says_so(run_here, table):
    elsewhere = row(8, "quick", gfx="sm90", cu_num=132, gpu_model="NVIDIA H200")
    TunedCsv(table, Compared.key).update([elsewhere])
    code, out, err = run_here("verify", "out.csv", "--family", COMPARED)
    assert (code, out) == (2, "") and "out.csv: there is no row for " in err and "; 1 row for other devices" in err


def test_a_row_that_was_tuned_under_a_looser_limit_is_verified_under_it(run_here, table):
    TunedCsv(table, Compared.key).update([row(8, "rough")])
    told = [json.loads(run_here("verify", "out.csv", "--family", COMPARED, "--json", *more)[1]) for more in ((), LOOSE)]
    assert ["wrong" in one["rows"][0]["doubts"] for one in told] == [True, False]


def test_evidence_that_is_no_file_is_told(run_here, table):
    TunedCsv(table, Compared.key).update([row(8, "quick")])
    evidence_path(table).mkdir()
    code, _, err = run_here("verify", "out.csv", "--family", COMPARED)
    assert code == 2 and "out.evidence.jsonl: is a directory; expected evidence" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gone.csv", "--family", COMPARED), "error: gone.csv: no such file"),
        (("out.csv",), "its name tells no family"),
        (("out.csv", "--family", COMPARED, "--ignore", "luck"), "no kind of doubt"),
    ],
)
def test_what_cannot_be_verified_is_one_line_and_exit_code_2(run_here, table, words, says):
    TunedCsv(table, Compared.key).update([row(8, "quick")])
    code, _, err = run_here("verify", *words)
    assert code == 2 and says in err and len(err.splitlines()) == 1
