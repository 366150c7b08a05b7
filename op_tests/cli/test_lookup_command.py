"""aiter-tune lookup, as a person types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_tuning.cli import main
from aiter_tuning.families import find_family
from aiter_tuning.serving import bind
from aiter_tuning.tables.evidence import Evidence, Timed, append_evidence
from aiter_tuning.tables.tuned import TunedCsv, TunedRow

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "op_tests" / "families_for_tests" / "tiny.py"
SHAPE = {"M": 4, "N": 64, "K": 32, "dtype": "fp32", "bias": False}


@pytest.fixture
def here():
    return bind("gemm_cpu").device


@pytest.fixture
def table(tmp_path, here, monkeypatch):
    """Where a lookup finds it unasked: ./tuned_csv."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    table = TunedCsv(tmp_path / "tuned_csv/gemm_cpu_tuned.csv", find_family("gemm_cpu").key)
    table.path.parent.mkdir()
    rows = [
        TunedRow(*here, SHAPE, 6, 0, 5.5, "split_n2", config={"kernel": "split_n", "parts": 2}),
        TunedRow(*here, {**SHAPE, "M": 8}, 0, 0, 5.5, "nope", config={"kernel": "linear"}),
        TunedRow(here.gfx, here.cu_num + 1, here.gpu_model, {**SHAPE, "M": 16}, 0, 0, 7.0, "linear"),
    ]
    table.update(rows)
    evidence = Evidence(
        "gemm_cpu",
        {**here._asdict(), **SHAPE},
        *("promoted", "12.5 % faster than linear", True, True, 12.5, 3.0, 0.4),
        incumbent=Timed("linear", {"kernel": "linear"}, 6.3),
        winner=Timed("split_n2", {"kernel": "split_n", "parts": 2}, 5.5),
        default=None,
        device_uuid="cpu:0",
        timer="wall",
        versions={"torch": "2.0.0"},
        began="2026-01-01T12:00:00+00:00",
        ended="2026-01-01T12:00:09+00:00",
    )
    append_evidence(table.path, [evidence])
    return table


def test_the_words_that_a_run_prints_find_the_row_that_it_wrote(table, capsys):
    words = find_family("gemm_cpu").key.label(SHAPE).split()
    assert main(["lookup", "gemm_cpu", *words, "--tuned", str(table.path)]) == 0
    assert "split_n2" in capsys.readouterr().out


def test_a_row_is_shown_with_its_evidence_and_its_age(table, here, capsys):
    assert main(["lookup", "gemm_cpu", "M=4", "N=64", "K=32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    figures = "margin 12.50 %, bar 3.00 %, noise 0.40 %"
    assert lines[:5] == [
        f"gemm_cpu M=4 N=64 K=32 dtype=fp32 on {here}",
        "  kernel     split_n2, 5.5 us",
        '  config     {"kernel":"split_n","parts":2}',
        "  table      tuned_csv/gemm_cpu_tuned.csv",
        f"  evidence   promoted on 2026-01-01T12:00:09+00:00: 12.5 % faster than linear ({figures})",
    ]
    assert lines[5].startswith("  stale      measured under torch 2.0.0, this is ")


def test_json_tells_the_same(table, here, capsys):
    assert main(["lookup", "gemm_cpu", "M=4", "N=64", "K=32", "bias=0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["row"]["kernelName"] == "split_n2"
    assert told["row"]["config"] == {"kernel": "split_n", "parts": 2}
    assert told["evidence"]["verdict"] == "promoted"
    assert told["device"] == here._asdict()
    assert told["shape"] == told["served_by"] == SHAPE


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["M=5"], "M=4 N=64 K=32 dtype=fp32 split_n2, 5.5 us, in tuned_csv/gemm_cpu_tuned.csv: M is 4 there, 5 here"),
        (["M=16"], ": cu_num is "),
        (["M=4", "gpu_model=Another"], " there, Another here"),
        (["M=8"], "gemm_cpu has no kernel 'nope' for it"),
    ],
)
def test_a_miss_names_the_field_that_differs_or_what_is_wrong_with_the_row(table, capsys, words, told):
    assert main(["lookup", "gemm_cpu", *words, "N=64", "K=32"]) == 1
    first, nearest, *_, last = capsys.readouterr().out.splitlines()
    assert first.endswith(": no row, its default serves")
    assert nearest.startswith("  nearest    ") and told in nearest
    assert last.startswith("  looked in  ")


def test_a_given_table_is_the_only_one_that_is_looked_into(table, tmp_path, capsys):
    assert main(["lookup", "gemm_cpu", "M=4", "N=64", "K=32", "--tuned", "none.csv", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["row"], told["tables"], told["nearest"]) == (None, ["none.csv"], [])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["gemm_cpu", "M"], "'M' is no field of a key; expected FIELD=VALUE"),
        (["gemm_cpu", "M=4", "M=4"], "M is given twice"),
        (["gemm_cpu", "M=4", "N=64"], "M=4 N=64: K is missing"),
        (["gemm_cpu", "M=4", "N=64", "K=-1"], "K is '-1', expected a whole number of 1 or more"),
        (["gemm_cpu", "M=4", "N=64", "K=32", "cu_num=two"], "cu_num is 'two', expected a whole number"),
        (["gemm_cpu", "M=4", "N=64", "K=32", "colour=red"], "colour is no field"),
        (["gemm_zpu", "M=4"], "unknown family 'gemm_zpu'; did you mean gemm_cpu?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(table, capsys, words, complaint):
    assert main(["lookup", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("aiter-tune lookup: error: ") and complaint in line


def test_what_a_run_has_tuned_is_found_by_a_lookup_in_another_process(tune_here, command, tmp_path):
    run = tune_here("Tiny")
    assert run.returncode == 0, run.err
    found, _ = (hit := command("lookup", f"{TINY}:Tiny", "N=8", "--tuned", "out.csv", "--json")).communicate()
    assert hit.returncode == 0
    assert json.loads(found)["row"]["kernelName"] == "quick"
    missed, _ = (miss := command("lookup", f"{TINY}:Tiny", "N=9", "--tuned", "out.csv")).communicate()
    assert miss.returncode == 1
    assert "N is 8 there, 9 here" in missed


def test_a_recorded_miss_is_tuned_and_found_afterwards(run_here, command, tmp_path):
    (tmp_path / "serve.py").write_text(
        f"from aiter_tuning import lookup\nfor _ in range(5):\n    lookup('{TINY}:Tiny', tuned='out.csv', N=24)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AITER_TUNE_RECORD": "misses"}
    subprocess.run([sys.executable, "serve.py"], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "misses/tiny_untuned.csv").read_text().splitlines()[0] == "N,dtype,calls"
    run = run_here("tune", f"{TINY}:Tiny", "-i", "misses/tiny_untuned.csv", "-o", "out.csv", "--confirm", "False")
    assert run.returncode == 0, run.err
    (hit := command("lookup", f"{TINY}:Tiny", "N=24", "--tuned", "out.csv")).communicate()
    assert hit.returncode == 0
