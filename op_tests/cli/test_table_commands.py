"""``check``, ``merge`` and ``diff`` as a person runs them: what is printed, what is written, the exit code."""

from __future__ import annotations

import json
import os
import re

import pytest

from aiter_tuning.cli import main
from aiter_tuning.families.gemm_cpu import GemmCpu
from aiter_tuning.tables.evidence import append_evidence, evidence_path
from aiter_tuning.tables.evidence_record import Evidence, Timed
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tables.tuned_row import TunedRow
from op_tests.cli.conftest import ROOT

KEY = GemmCpu.key
CPU = ("x86-64-v4", 2, "Some CPU")


def row(m, us, kernel="linear", device=CPU, **config):
    return TunedRow(
        *device, {"M": m, "N": 64, "K": 64}, 0, 0, us, kernel, config={"kernel": kernel.partition("_t")[0], **config}
    )


def record(one, ended="2026-01-01T00:00:00+00:00", **fields):
    """Evidence of a row."""
    side = Timed(one.kernelName, {}, one.us)
    key = {"gfx": one.gfx, "cu_num": one.cu_num, "gpu_model": one.gpu_model, **KEY.parse(one.shape)}
    told = ("promote", "faster", True, True, 5.0, 3.0, 0.5, side, side, side, "CPU-0", "wall")
    return Evidence("gemm_cpu", key, *told, began=ended, ended=ended, **fields)


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Writes tables into the directory that the commands run in."""
    monkeypatch.chdir(tmp_path)

    def write(name, *rows):
        TunedCsv(tmp_path / name, KEY).update(rows)
        return name

    return write


@pytest.fixture
def command(capsys):
    def run(*words):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


# check


def test_a_table_in_order_ends_with_0(command, table):
    code, out, err = command("check", table("gemm_cpu_tuned.csv", row(1, 2.5), row(2, 3.5, "weight_first")))
    assert (code, out, err) == (0, "nothing found in 1 file\n", "")


def test_findings_have_their_place_first_and_end_with_1(command, table):
    first = table("a_gemm_cpu_tuned.csv", *(row(m, 2.5) for m in range(1, 61)))
    second = table("b_gemm_cpu_tuned.csv", *(row(m, 1.5, "weight_first") for m in range(1, 61)))
    before = sorted(os.listdir())
    code, out, _ = command("check", first, second)
    lines = out.splitlines()
    assert code == 1
    assert lines[-1] == "60 findings in 2 files: 60 clash"
    assert all(
        re.match(r"a_gemm_cpu_tuned\.csv:\d+: clash: M=\d+ N=64 K=64 dtype=fp32 on x86", line) for line in lines[:-1]
    )
    assert all("2.5 us against 1.5 us" in line for line in lines[:-1])
    assert sorted(os.listdir()) == before, "reading leaves nothing behind"


def test_check_as_json(command, table):
    code, out, _ = command("check", table("gemm_cpu_tuned.csv", row(1, 2.5, "renamed")), "--json")
    report = json.loads(out)
    assert code == 1
    assert report["counts"] == {"unknown_kernel": 1}
    (finding,) = report["findings"]
    assert (finding["file"], finding["line"], finding["kernel"]) == ("gemm_cpu_tuned.csv", 2, "renamed")


def test_kinds_of_findings_can_be_left_out(command, table):
    name = table("gemm_cpu_tuned.csv", row(1, 2.5, "renamed"), row(2, 1.5, "linear", ("gfx942", 304, "")))
    assert command("check", name, "--ignore", "unknown_kernel,foreign_arch")[0] == 0
    assert "1 finding in 1 file: 1 foreign_arch" in command("check", name, "--ignore", "unknown_kernel")[1]
    code, _, err = command("check", name, "--ignore", "nonsense")
    assert code == 2
    assert "'nonsense' is no kind of finding; there are broken, conflict_marker" in err


def test_rows_that_are_stale_for_one_reason_share_a_line_but_not_in_json(command, table, tmp_path, monkeypatch):
    rows = [row(m, 2.5) for m in range(1, 42)]
    name = table("gemm_cpu_tuned.csv", *rows)
    old = {"torch": "2.11.0", "triton": "3.6.0"}
    append_evidence(
        name, [*(record(one, versions=old) for one in rows[:40]), record(rows[40], versions={"torch": "1.0"})]
    )
    here = {"torch": "2.13.0", "triton": "3.9.0"}
    monkeypatch.setattr("aiter_tuning.cli.check_command.installed", here.get)

    code, out, _ = command("check", name)

    assert code == 1
    assert out.splitlines() == [
        f"{name}: 40 rows: stale: torch 2.11.0 -> 2.13.0, triton 3.6.0 -> 3.9.0 since it was measured; tune again",
        f"{name}:42: stale: torch 1.0 -> 2.13.0 since it was measured; tune again",
        "41 findings in 1 file: 41 stale",
    ]
    told = json.loads(command("check", name, "--json")[1])
    assert [finding["line"] for finding in told["findings"]] == list(range(2, 43))
    assert told["findings"][0]["measured_under"] == "2.11.0, 3.6.0"


def test_a_table_can_be_asked_for_a_device(command, table):
    table("gemm_cpu_tuned.csv", row(1, 2.5))
    assert command("check", "gemm_cpu_tuned.csv", "--for", "x86-64-v4/2")[0] == 0
    code, out, _ = command("check", "gemm_cpu_tuned.csv", "--for", "gfx942/304")
    assert (code, out.splitlines()[0]) == (
        1,
        "gemm_cpu_tuned.csv: empty: 0 rows for gfx942/304; it has rows for x86-64-v4/2",
    )
    assert command("check", "gemm_cpu_tuned.csv", "--for", "gfx942/many")[0] == 2


@pytest.mark.parametrize("device", ["/304", "gfx942/many", "gfx942/304/3", "gfx942/²"])
def test_a_device_that_means_nothing_is_one_line_and_exit_2(command, table, device):
    code, out, err = command("check", table("gemm_cpu_tuned.csv", row(1, 2.0)), "--for", device)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--for {device}" in err


def test_the_untuned_sibling_is_looked_for(command, table, tmp_path):
    table("gemm_cpu_tuned.csv", row(1, 2.5))
    (tmp_path / "gemm_cpu_untuned.csv").write_text("M,N,K\n1,64,64\n8,64,64\n")
    code, out, _ = command("check", "gemm_cpu_tuned.csv")
    assert code == 1
    assert "gemm_cpu_untuned.csv:3: untuned: 1 shape (M=8 N=64 K=64 dtype=fp32) without a row on x86-64-v4/2" in out


def test_a_mended_copy_has_what_can_be_served_and_the_table_stays(command, tmp_path, table):
    name = table("gemm_cpu_tuned.csv", row(1, 2.5), row(2, 4.5))
    path = tmp_path / name
    lines = path.read_text().splitlines(keepends=True)
    zeros = lines[1].replace(",2.5,", ",0.0,").replace(",1,64", ",3,64")
    damaged = lines[0] + "<<<<<<< ours\n" + lines[1] + "=======\n" + lines[1].replace(",2.5,", ",1.5,") + ">>>>>>> x\n"
    damaged += zeros + lines[2] + lines[2][:20] + "\n"
    path.write_text(damaged)
    code, out, err = command("check", name, "--fix", "mended.csv")
    assert code == 1
    assert "3 conflict_marker" in out
    assert "mended.csv: 2 rows; left out: 4 that cannot be read, 1 never measured, 1 that do not count" in err
    assert path.read_text() == damaged
    assert sorted(one.us for one in TunedCsv("mended.csv", KEY).rows()) == [1.5, 4.5]
    assert command("check", "mended.csv", "--family", "gemm_cpu")[0] == 0


def test_a_mended_copy_never_takes_the_place_of_a_file(command, table):
    name = table("gemm_cpu_tuned.csv", row(1, 2.5))
    for words in (
        (name, "--fix", name),
        (name, name.replace("c", "c"), "other_gemm_cpu_tuned.csv", "--fix", "new.csv"),
    ):
        code, _, err = command("check", *words)
        assert code == 2, err
    assert command("check", name, "--fix", "no/such/folder.csv")[0] == 2


def test_whose_table_it_is_has_to_be_told_by_name_or_by_flag(command, table):
    table("results.csv", row(1, 2.5))
    code, _, err = command("check", "results.csv")
    assert code == 2
    assert "results.csv: its name tells no family (FAMILY_tuned.csv does); name it with --family" in err
    assert command("check", "results.csv", "--family", "gemm_cpu")[0] == 0
    assert command("check", "results.csv", "--family", "gemm_cpus")[0] == 2


def test_patterns_and_lists_name_tables(command, table):
    table("a_gemm_cpu_tuned.csv", row(1, 2.5))
    table("b_gemm_cpu_tuned.csv", row(2, 2.5))
    assert command("check", "?_gemm*")[1] == "nothing found in 2 files\n"
    assert command("check", f"a_gemm_cpu_tuned.csv{os.pathsep}b_gemm_cpu_tuned.csv")[1] == "nothing found in 2 files\n"
    code, _, err = command("check", "none_*")
    assert (code, "none_*: matches no tuned table" in err) == (2, True)


# merge


@pytest.mark.parametrize(
    "words",
    [("check", ""), ("check", ":", " "), ("merge", "", "-o", "out.csv"), ("diff", "", ""), ("diff", "a.csv", "")],
)
def test_a_list_that_names_no_table_is_no_success(command, table, words):
    # what a script passes whose variable is empty
    table("a.csv", row(1, 2.0))
    code, out, err = command(*words, "--family", "gemm_cpu")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no table is named" in err


def test_shards_become_one_table(command, table):
    shards = [table(f"shard{i}_gemm_cpu_tuned.csv", row(1, 5.0 - i, f"k{i}"), row(10 + i, 9.0)) for i in range(3)]
    code, out, err = command("merge", "-o", "out.csv", *shards)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("out.csv: 4 rows of 3 files; left out: 2 do not count (2 conflicts)")
    assert len([line for line in out.splitlines() if line.startswith("conflict: ")]) == 2
    assert {one.kernelName for one in TunedCsv("out.csv", KEY).rows()} == {"k2", "linear"}
    assert TunedCsv("out.csv", KEY).find(*CPU, {"M": 1, "N": 64, "K": 64}).us == 3.0


def test_evidence_decides_and_goes_with_its_row(command, table):
    old = table("old_gemm_cpu_tuned.csv", then := row(1, 1.0, "then"))
    new = table("new_gemm_cpu_tuned.csv", now := row(1, 2.0, "now"))
    append_evidence(old, [record(then, fingerprints={"run": "run1"})])
    append_evidence(new, [record(now, "2026-02-01T00:00:00+00:00", fingerprints={"run": "run2"})])
    code, out, _ = command("merge", "-o", "out.csv", old, new, "--json")
    report = json.loads(out)
    assert (code, report["rows"], report["records"]) == (0, 1, 1)
    assert report["shadowed"][0]["conflict"] is True
    assert [one.kernelName for one in TunedCsv("out.csv", KEY).rows()] == ["now"]
    assert '"now"' in evidence_path("out.csv").read_text()


def test_a_merge_that_cannot_be_done_writes_nothing(command, table, tmp_path):
    name = table("gemm_cpu_tuned.csv", row(1, 2.5))
    (tmp_path / "bad_gemm_cpu_tuned.csv").write_text("gfx,cu_num,M,N,K,us\nx,2,1,1,1,fast\n")
    for words in (
        ("-o", "out.csv", name, "bad_gemm_cpu_tuned.csv"),
        ("-o", "out.csv", name, "none_gemm_cpu_tuned.csv"),
        ("-o", "none/out.csv", name),
        (name,),
    ):
        code, out, err = command("merge", *words)
        assert (code, out, err.count("\n")) == (2, "", 1), err
    assert not (tmp_path / "out.csv").exists()


def test_an_empty_file_is_no_table_to_merge_or_to_compare(command, table, tmp_path):
    (tmp_path / "empty.csv").touch()
    name = table("gemm_cpu_tuned.csv", row(1, 2.5))
    for words in (("merge", "-o", "out.csv", name, "empty.csv"), ("diff", name, "empty.csv")):
        code, _, err = command(*words, "--family", "gemm_cpu")
        assert (code, err.count("\n")) == (2, 1)
        assert "empty.csv" in err
    assert not (tmp_path / "out.csv").exists()


def test_a_family_that_is_misspelt_is_guessed(command, table):
    name = table("gemm_cpu_tuned.csv", row(1, 2.5))
    assert "did you mean gemm_cpu?" in command("check", name, "--family", "gemm-cpu")[2]
    own = f"{ROOT / 'op_tests' / 'families_for_tests' / 'tiny.py'}:Tny"
    assert "has no class Tny; did you mean Tiny?" in command("check", name, "--family", own)[2]


def test_an_older_table_gets_its_arch_when_it_is_named(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.csv").write_text("cu_num,m,n,k,us,KernelName\n2,1,64,64,2.5,linear\n")
    code, _, err = command("merge", "-o", "new.csv", "old.csv", "--family", "gemm_cpu", "--gfx", "x86-64-v4")
    assert code == 0
    assert "old.csv:1: column KernelName read as kernelName" in err
    assert TunedCsv("new.csv", KEY).find("x86-64-v4", 2, "any", {"M": 1, "N": 64, "K": 64}).kernelName == "linear"


# diff


def test_two_tables_that_say_the_same_end_with_0(command, table):
    first = table("a_gemm_cpu_tuned.csv", row(1, 2.5), row(2, 3.5))
    second = table("b_gemm_cpu_tuned.csv", row(2, 3.5), row(1, 2.5))
    assert command("diff", first, second) == (0, "no difference; 2 the same\n", "")


def test_differences_are_told_by_kind_with_what_they_gain(command, table):
    first = table("a_gemm_cpu_tuned.csv", row(1, 4.0), row(2, 3.0), row(3, 3.0), row(4, 2.0), row(6, 1.0))
    second = table("b_gemm_cpu_tuned.csv", row(1, 3.0, "onednn"), row(2, 2.0), row(3, 6.0), row(5, 2.0), row(6, 1.0))
    code, out, _ = command("diff", first, second)
    assert code == 1
    assert out.splitlines()[-1] == "1 added, 1 removed, 1 with another kernel, 1 faster, 1 slower; 1 the same"
    (kernel,) = [line for line in out.splitlines() if line.startswith("kernel")]
    assert ("linear" in kernel, "onednn" in kernel, "+25.0" in kernel) == (True, True, True)
    assert any(line.startswith("slower") and "-100.0" in line for line in out.splitlines())

    code, out, _ = command("diff", first, second, "--json")
    changes = {one["key"]["M"]: (one["change"], one["gain_pct"]) for one in json.loads(out)["differences"]}
    assert code == 1
    assert changes == {
        1: ("kernel", 25.0),
        2: ("faster", pytest.approx(100 / 3)),
        3: ("slower", -100.0),
        4: ("removed", None),
        5: ("added", None),
    }


def test_the_same_kernel_with_another_config_is_another_kernel(command, table):
    first = table("a_gemm_cpu_tuned.csv", row(1, 2.5, "split_n", parts=2))
    second = table("b_gemm_cpu_tuned.csv", row(1, 2.5, "split_n", parts=4))
    code, out, _ = command("diff", first, second, "--json")
    assert (code, json.loads(out)["differences"][0]["change"]) == (1, "kernel")


def test_a_diff_needs_files_that_can_be_read(command, table):
    first = table("a_gemm_cpu_tuned.csv", row(1, 2.5))
    code, _, err = command("diff", first, "none_gemm_cpu_tuned.csv")
    assert (code, "none_gemm_cpu_tuned.csv: no such file" in err) == (2, True)


@pytest.mark.parametrize("name", ["check", "merge", "diff"])
def test_help_teaches_by_examples(command, name):
    code, out, _ = command(name, "--help")
    assert code == 0
    assert f"aiter-tune {name} " in out
    assert "examples:" in out
