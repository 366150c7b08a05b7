"""``aiter-tune autotune``: what it prints, writes and returns, on a machine without a GPU and with a table for sm90."""

import json
import subprocess
import sys

import pytest

from aiter_tuning.triton_autotune import load, merge_records, use_policy, write
from aiter_tuning.triton_autotune.command_line import main


@pytest.fixture
def run(capsys):
    def command(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return command


@pytest.fixture
def old(tmp_path, kernels):
    """Recordings of the older form: two ranks of three agree about ``a``."""
    paths = []
    for rank, block in enumerate((64, 64, 128)):
        path = tmp_path / f"old.rank{rank}.json"
        path.write_text(json.dumps({"sm100": {"k": {"a": kernels.entry(block), "b": kernels.entry(32)}}}))
        paths.append(path)
    return paths


@pytest.fixture
def recorded(tmp_path, kernels, monkeypatch):
    """Recordings of real kernels by two ranks, and what a third run chose."""
    policy = {"record_path": str(tmp_path / "new"), "modules": [kernels.MODULE], "arch": "sm90"}
    for rank, times in enumerate([(3.0, 1.0, 2.0), (3.0, 1.1, 1.105)]):
        monkeypatch.setenv("RANK", str(rank))
        with use_policy(policy):
            for n in (100, 200):
                kernels.launch(kernels.autotuned(bench=kernels.Bench(*times)), n)
    return sorted(tmp_path.glob("new.rank?.json"))


def test_merge_writes_the_majority_and_says_how_many_entries_were_disputed(run, old, tmp_path, kernels):
    table = tmp_path / "tables" / "sm100.json"
    code, out, err = run("merge", *old, "-o", table, "--source", "a test")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [f"wrote {table}: sm100, 1 kernels, 2 entries", "1 entries had ranks disagreeing"]
    assert load("sm100", [table.parent]).kernels == merge_records(old)["sm100"]
    assert json.loads(table.read_text())["source"] == "a test"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"sm100": {"k', "may be truncated"),
        ('{"arch": "sm100", "kernels": {}}', "tuned table, not a per-rank recording"),
        ("[1]", "expected {arch"),
    ],
)
def test_merge_and_report_name_the_file_that_cannot_be_used(run, old, tmp_path, text, said):
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    for words in (["merge", *old, bad, "-o", tmp_path / "x.json"], ["report", bad]):
        code, _, err = run(*words)
        assert code == 1
        assert "cannot read recordings: " in err
        assert "bad.json" in err
        assert said in err
        assert err.count("\n") == 1
    assert not (tmp_path / "x.json").exists()


def test_merge_wants_to_know_which_architecture(run, old, tmp_path, kernels):
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"sm90": {"k": {"a": kernels.entry(64)}}}))
    assert "the recordings cover ['sm100', 'sm90']" in run("merge", *old, other, "-o", tmp_path / "x.json")[2]
    assert "no records for sm80" in run("merge", *old, "--arch", "sm80", "-o", tmp_path / "x.json")[2]
    assert run("merge", *old, other, "--arch", "sm90", "-o", tmp_path / "x.json")[0] == 0
    other.write_text("{}")
    code, _, err = run("merge", other, "-o", tmp_path / "x.json")
    assert (code, "no records" in err) == (1, True)
    assert run("merge", tmp_path / "absent.json", "-o", tmp_path / "x.json")[0] == 1


def test_merge_by_regret_shows_margins_and_marks_near_ties(run, recorded, tmp_path, kernels):
    table = tmp_path / "sm90.json"
    code, out, _ = run("merge", *recorded, "-o", table, "--by", "regret", "--any-key")
    assert code == 0
    assert out.startswith(f"wrote {table}: sm90, 1 kernels, 3 entries")
    assert "near tie" in out
    assert "runner-up +" in out
    held = json.loads(table.read_text())
    name = f"{kernels.MODULE}.add_kernel"
    evidence = held["provenance"]["evidence"][name][kernels.key_text()]
    assert evidence["near_tie"] is True
    assert evidence["votes"] == 2
    assert held["kernels"][name]["*"]["kwargs"] == {"BLOCK": 64}
    assert held["provenance"]["kernels"][name].keys() == {"source", "candidates"}


def test_merge_by_regret_needs_times(run, old, recorded, tmp_path):
    assert "needs times" in run("merge", *old, "-o", tmp_path / "x.json", "--by", "regret")[2]
    assert "--any-key needs --by regret" in run("merge", *old, "-o", tmp_path / "x.json", "--any-key")[2]


def test_a_table_that_cannot_be_written_is_exit_code_5(run, old, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("merge", *old, "-o", tmp_path / "file" / "sm100.json")
    assert code == 5
    assert err.count("\n") == 1


def test_report_counts_kernels_entries_and_disputes(run, old):
    code, out, _ = run("report", *old)
    assert code == 0
    assert out == "sm100: 1 kernels, 2 entries\n  k: 2 entries  <- 1 disagreed across ranks\n"
    data = json.loads(run("report", *old, "--json")[1])
    assert sorted(data["sm100"]["k"]["disagreed"]["a"].values()) == [1, 2]


def test_show_prints_entries_by_kernel(run, recorded, tmp_path, kernels):
    table = tmp_path / "sm90.json"
    run("merge", *recorded, "-o", table)
    code, out, _ = run("show", table)
    assert code == 0
    assert out.startswith("sm90: 1 kernels, 2 entries\nmade with: triton ")
    assert f"  {kernels.key_text()}  BLOCK=64 num_stages=3 num_warps=4\n" in out
    assert "0 kernels" in run("show", table, "--kernel", "nobody.*")[1]
    assert json.loads(run("show", table, "--json")[1])["arch"] == "sm90"


def test_diff_tells_tables_apart(run, tmp_path, kernels):
    left, right = tmp_path / "a.json", tmp_path / "b.json"
    write("sm90", {"k": {"a": kernels.entry(64), "gone": kernels.entry(1)}}, left)
    write("sm90", {"k": {"a": kernels.entry(32) | {"num_ctas": 1}, "new": kernels.entry(1)}}, right)
    code, out, _ = run("diff", left, right)
    assert code == 1
    assert [line[0] for line in out.splitlines()[:3]] == ["~", "-", "+"]
    assert run("diff", left, left)[0] == 0
    assert json.loads(run("diff", left, right, "--json")[1])["only_right"] == ["k[new]"]


def test_diff_of_choice_logs_finds_contradictions_only(run, tmp_path):
    from aiter_tuning.triton_autotune.choices import write_choices

    left, right, more = (tmp_path / f"{name}.json" for name in "abc")
    write_choices(left, {"sm90|k|a": "1;pinned"}, {})
    write_choices(right, {"sm90|k|a": "2;pinned"}, {})
    write_choices(more, {"sm90|k|a": "1;pinned", "sm90|k|b": "1;pinned"}, {})
    assert run("diff", left, right)[0] == 1
    assert run("diff", left, more)[0] == 0


def test_diff_compares_like_with_like(run, old, recorded, tmp_path):
    run("merge", *recorded, "-o", tmp_path / "sm90.json")
    assert run("diff", *recorded)[0] == 0
    assert "cannot compare a recording" in run("diff", recorded[0], tmp_path / "sm90.json")[2]
    (tmp_path / "broken.json").write_text("{")
    assert run("diff", tmp_path / "broken.json", recorded[0])[0] == 1


def test_a_fresh_table_is_valid_against_its_kernels(run, recorded, tmp_path, kernels, monkeypatch):
    table = tmp_path / "sm90.json"
    run("merge", *recorded, "-o", table)
    monkeypatch.setattr(kernels, "tuned_now", kernels.autotuned(), raising=False)
    code, out, _ = run("validate", table, "--import", kernels.MODULE)
    assert (code, out) == (0, "1 table(s): 0 finding(s)\n")


def test_validate_finds_what_no_longer_fits(run, tmp_path, kernels, monkeypatch):
    name = f"{kernels.MODULE}.add_kernel"
    monkeypatch.setattr(kernels, "tuned_now", kernels.autotuned(), raising=False)
    table = tmp_path / "sm90.json"
    broken = {"kwargs": {"BLOCK": 64}, "num_warps": 4}
    entries = {name: {"a": kernels.entry(999), "b": broken, "c": kernels.entry(64) | {"waves": 1}}, "m.gone": {}}
    provenance = {"environment": {"triton": "1.0"}, "kernels": {name: {"source": "old", "candidates": "old"}}}
    write("sm90", entries, table, provenance=provenance)
    held = json.loads(table.read_text())
    held["deny"] = [{"kernel": name, "config": {"kwargs": {"BLOCK": 999}}, "reason": "racy"}]
    table.write_text(json.dumps(held))
    code, out, _ = run("validate", table, "--import", kernels.MODULE)
    assert code == 1
    for text in (
        "[a]: stands for no candidate",
        "[a]: denied: racy",
        "[b]: can never match: lacks num_stages",
        "[c]: can never match: unknown field(s) waves",
        "m.gone: the imported modules have no such autotuned kernel",
        "stale, kernel source: table old",
        "stale, candidates: table old",
        "note: stale, triton: table 1.0",
    ):
        assert text in out, out


def test_validate_reads_the_deny_list_beside_the_table(run, tmp_path, kernels):
    table, rules = tmp_path / "sm90.json", tmp_path / "deny.json"
    write("sm90", {"k": {"a": kernels.entry(64), "b": kernels.entry(128)}}, table)
    assert run("validate", table)[0] == 0
    rules.write_text(json.dumps([{"kernel": "k", "config": {"kwargs": {"BLOCK": 128}}, "reason": "racy"}]))
    code, out, _ = run("validate", table)
    assert code == 1
    assert f"{table}: k[b]: denied: racy" in out and "k[a]" not in out
    rules.write_text('[{"kernl": "k"}]')
    code, out, _ = run("validate", table)
    assert code == 1
    assert f"{rules}: deny rule 0: expected an object that names a 'kernel'" in out


def test_validate_without_kernels_finds_what_a_file_alone_can_tell(run, tmp_path, kernels):
    empty, twice, other = (tmp_path / f"{name}.json" for name in ("empty", "twice", "other"))
    write("sm90", {}, empty)
    twice.write_text('{"arch": "sm90", "kernels": {"k": {"a": %s, "a": %s}}}' % ((json.dumps(kernels.entry(1)),) * 2))
    other.write_text('{"arch": "sm90", "kernels": {"k": {"a": 1}}}')
    code, out, _ = run("validate", empty, twice, other, "--json")
    assert code == 1
    findings = {item["where"].rpartition("/")[2]: item["what"] for item in json.loads(out)["findings"]}
    assert findings["empty.json"] == "0 entries for sm90"
    assert "there twice" in findings["twice.json"]
    assert "is not {tuning key: config}" in findings["other.json"]


def test_coverage_counts_what_was_seen_and_finds_the_misses(run, recorded, tmp_path, kernels, monkeypatch):
    from aiter_tuning.triton_autotune import write_choice_log

    table = tmp_path / "sm90.json"
    run("merge", *recorded, "-o", table)
    assert run("coverage", table, "--seen", *recorded)[0] == 0
    with use_policy({"mode": "pinned", "modules": [kernels.MODULE], "arch": "sm90"}):
        for n in (100, 300):
            kernels.launch(kernels.autotuned(), n)
        kernels.launch(kernels.autotuned(kernels.add_kernel, configs=[kernels.config(64)]), 400)
        write_choice_log(tmp_path / "choices.json")
    code, out, _ = run("coverage", table, "--seen", tmp_path / "choices.json")
    assert code == 1
    assert f"MISS sm90 {kernels.MODULE}.add_kernel" in out
    assert "n=300" in out
    assert "1 exact" in out
    run("merge", *recorded, "-o", table, "--by", "regret", "--any-key")
    code, out, _ = run("coverage", tmp_path, "--seen", tmp_path / "choices.json", "--json")
    assert code == 0
    assert json.loads(out)["counts"] == {"exact": 1, "any": 1, "some": 0, "miss": 0}
    assert run("coverage", table)[0] == 0
    monkeypatch.setattr(kernels, "count_now", kernels.autotuned(kernels.count_kernel), raising=False)
    code, out, _ = run("coverage", table, "--import", kernels.MODULE)
    assert code == 1
    assert "count_kernel[(any)]" in out


def test_a_module_that_cannot_be_imported_is_one_line(run, tmp_path, kernels):
    write("sm90", {"k": {"a": kernels.entry(1)}}, tmp_path / "sm90.json")
    code, _, err = run("validate", tmp_path / "sm90.json", "--import", "no_such_module_anywhere")
    assert code == 1
    assert "no_such_module_anywhere" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [("merge", "no.json", "-o", "t.json"), ("report", "no.json"), ("show", "no.json")])
def test_a_file_that_is_not_there_is_named_with_the_reason_and_no_number(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*words)
    assert code == 1
    assert err.endswith("no.json: No such file or directory\n") and "Errno" not in err and err.count("\n") == 1


def test_a_missing_command_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_help_can_be_pasted(capsys):
    with pytest.raises(SystemExit):
        main(["--help"], prog="aiter-tune autotune")
    assert "\n  aiter-tune autotune report run.rank*.json " in capsys.readouterr().out


@pytest.mark.parametrize("front", [["-m", "aiter_tuning.triton_autotune"], ["-m", "aiter_tuning", "autotune"]])
def test_both_fronts_answer_without_torch(front, old):
    code = f"import sys, runpy; sys.argv = {['x', *front[2:], 'report', str(old[0])]!r}\n"
    code += f"try: runpy.run_module({front[1]!r}, run_name='__main__')\n"
    code += "except SystemExit as e: print(e.code, [m for m in ('torch', 'triton', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["sm100: 1 kernels, 2 entries", "  k: 2 entries", "0 []"]


@pytest.mark.parametrize("more", [[], ["--import", "json"], ["--seen", "choices.json"]])
def test_coverage_of_a_table_that_is_not_there_is_an_error(run, tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "choices.json").write_text("{}")
    code, out, err = run("coverage", "nofile.json", *more)
    assert code == 1 and not out
    assert "nofile.json: No such file or directory" in err
