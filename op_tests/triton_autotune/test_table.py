"""Tables: old and new files, one or several, and entries that no longer belong to their kernel."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.triton_autotune import TunedTable, load, load_overlay, write
from aiter_tuning.triton_autotune.identity import Fingerprint
from aiter_tuning.triton_autotune.table import Live, StaleEntryError

NOW = Live(Fingerprint("new", "cands"), {"triton": "3.9", "torch": "2.13", "driver": "", "device": "H200"})


def provenance(source="new", candidates="cands", **environment):
    return {
        "provenance": {
            "environment": {"triton": "3.9", "device": "H200", **environment},
            "kernels": {"k": {"source": source, "candidates": candidates}},
        }
    }


def test_a_lookup_finds_live_candidates_only(kernels):
    configs = kernels.three_configs()
    table = TunedTable("sm90", {"k": {"a": kernels.entry(64), "gone": kernels.entry(999), "empty": {}}})
    assert table.lookup("k", "a", configs) is configs[1]
    assert table.lookup("k", "gone", configs) is None
    assert table.lookup("k", "other", configs) is None
    assert table.lookup("nobody", "a", configs) is None
    assert table
    assert not TunedTable("sm90", {})


def test_an_empty_entry_is_none_and_falls_to_any_key(kernels):
    configs = kernels.three_configs()
    table = TunedTable("sm90", {"k": {"a": {}, "*": kernels.entry(128)}})
    assert table.lookup("k", "a", configs) is configs[0]
    assert table.find(["k"], "a", configs).found.config is configs[0]


def test_an_entry_with_a_field_too_many_or_too_few_never_matches(kernels):
    configs = kernels.three_configs()
    for changed in (kernels.entry(64) | {"waves": 2}, {"kwargs": {"BLOCK": 64}, "num_warps": 4}):
        assert TunedTable("sm90", {"k": {"a": changed}}).lookup("k", "a", configs) is None


def test_ctas_and_registers_tell_candidates_apart(kernels):
    configs = [kernels.config(64), kernels.config(64, num_ctas=2), kernels.config(64, maxnreg=128)]
    for index, more in enumerate(({}, {"num_ctas": 2}, {"maxnreg": 128})):
        table = TunedTable("sm90", {"k": {"*": kernels.entry(64) | more}})
        assert table.lookup("k", "any", configs) is configs[index]


def test_what_is_written_is_read_back_and_stamped(tmp_path, kernels):
    import triton

    path = tmp_path / "deep" / "sm90.json"
    write("sm90", {"k": {"*": kernels.entry(64)}}, path, source="a run", provenance={"environment": {"torch": "2"}})
    held = json.loads(path.read_text())
    assert (held["arch"], held["source"], held["triton"]) == ("sm90", "a run", triton.__version__)
    assert held["packages"]["triton"] == triton.__version__
    assert path.read_text().endswith("}\n")
    assert path.read_text().startswith('{\n "arch"')
    assert load("sm90", [path.parent]).kernels == {"k": {"*": kernels.entry(64)}}
    assert [file.name for file in path.parent.iterdir()] == ["sm90.json"]


def test_a_table_that_cannot_be_written_leaves_the_old_one_whole(tmp_path, kernels):
    path = tmp_path / "sm90.json"
    write("sm90", {"k": {}}, path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        write("sm90", {"k": {"*": object()}}, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["sm90.json"]


def test_a_reader_that_knows_no_provenance_reads_our_tables(tmp_path, kernels):
    """What such a reader asks of a file: an object with the arch and ``kernels``; entries equal to a config's data."""
    path = tmp_path / "sm90.json"
    write("sm90", {"k": {"*": kernels.entry(64)}}, path, provenance={"environment": {}})
    held = json.loads(path.read_text())
    assert held["arch"] == "sm90"
    assert held["kernels"]["k"]["*"].keys() <= {
        "kwargs",
        "num_warps",
        "num_stages",
        "num_ctas",
        "maxnreg",
        "ir_override",
    }


def test_the_first_usable_file_is_taken_whole_and_the_others_are_named(tmp_path, table_dir, kernels, caplog):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sm90.json").write_text("{")
    mislabelled = table_dir({"k": {}}, arch="sm90", directory="mislabelled")
    (tmp_path / "mislabelled" / "sm90.json").write_text(json.dumps({"arch": "sm103", "kernels": {}}))
    shapeless = table_dir({}, directory="shapeless")
    (tmp_path / "shapeless" / "sm90.json").write_text("[]")
    good = table_dir({"k": {"*": kernels.entry(64)}}, directory="good")
    late = table_dir({"other": {"*": kernels.entry(64)}}, directory="late")
    table = load("sm90", [str(tmp_path / "nowhere"), str(broken), mislabelled, shapeless, good, late])
    assert list(table.kernels) == ["k"]
    for text in ("nowhere does not exist", "broken/sm90.json", "holds a table for sm103, not sm90", "shapeless"):
        assert text in caplog.text
    assert not load("sm90", [])


def test_a_table_in_the_place_of_its_directory_is_told_apart_from_nothing(table_dir, kernels, caplog):
    load("sm90", [table_dir({"k": {"*": kernels.entry(64)}}) + "/sm90.json"])
    assert "sm90.json is a file; expected a directory, in which sm90.json is looked for" in caplog.text
    assert "does not exist" not in caplog.text


def test_a_directory_with_tables_of_other_names_says_which_it_looked_for(table_dir, kernels, caplog):
    folder = table_dir({"k": {"*": kernels.entry(64)}})
    (Path(folder) / "deny.json").write_text("[]")
    load("sm103", [folder])
    assert f"{folder} has no sm103.json, the table of this architecture; it has sm90.json" in caplog.text
    caplog.clear()
    (Path(folder) / "sm90.json").unlink()
    load("sm103", [folder])
    assert not caplog.text


def test_the_search_path_is_the_callers_and_no_variables(monkeypatch, table_dir, kernels):
    monkeypatch.setenv("MCORE_AUTOTUNE_TABLE_PATH", table_dir({"k": {"*": kernels.entry(64)}}))
    assert not load("sm90")


def test_another_triton_is_a_warning_and_the_table_is_used(table_dir, kernels, caplog):
    folder = table_dir({"k": {"*": kernels.entry(64)}}, triton="1.0")
    assert load("sm90", [folder])
    assert "made with triton 1.0" in caplog.text


def test_an_overlay_takes_each_entry_from_the_first_file_that_has_it(table_dir, kernels):
    configs = kernels.three_configs()
    mine = table_dir({"k": {"a": kernels.entry(128)}}, directory="mine")
    theirs = table_dir({"k": {"a": kernels.entry(64), "b": kernels.entry(64)}, "j": {"*": kernels.entry(32)}})
    table = load_overlay("sm90", [mine, theirs])
    assert [table.lookup("k", key, configs).kwargs["BLOCK"] for key in "ab"] == [128, 64]
    assert table.lookup("j", "a", configs).kwargs["BLOCK"] == 32
    assert table.kernels["k"] == {"a": kernels.entry(128), "b": kernels.entry(64)}
    assert load("sm90", [mine, theirs]).lookup("k", "b", configs) is None


def test_a_stale_entry_does_not_hide_a_good_one_in_the_next_file(table_dir, kernels):
    configs = kernels.three_configs()
    mine = table_dir({"k": {"a": kernels.entry(999), "*": kernels.entry(128)}}, directory="mine")
    theirs = table_dir({"k": {"a": kernels.entry(64)}})
    found = load_overlay("sm90", [mine, theirs]).find(["k"], "a", configs)
    assert found.found.config is configs[1]
    assert "mine/sm90.json: k[a] names no candidate" in found.notes[0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (provenance(source="old"), "kernel source: table old, now new"),
        (provenance(candidates="fewer"), "candidates: table fewer, now cands"),
        (provenance(triton="3.6"), "triton: table 3.6, now 3.9"),
        (provenance(device="H100"), "device: table H100, now H200"),
    ],
)
def test_an_entry_of_another_kernel_or_machine_is_used_warned_about_missed_or_an_error(kernels, changed, said):
    configs = kernels.three_configs()
    table = TunedTable("sm90", {"k": {"*": kernels.entry(64)}}, changed)
    outcomes = {on: table.find(["k"], "a", configs, NOW, on) for on in ("use", "warn", "miss")}
    assert outcomes["use"].found.config is configs[1]
    assert outcomes["use"].notes == ()
    assert outcomes["warn"].found.config is configs[1]
    assert said in outcomes["warn"].notes[0]
    assert outcomes["miss"].found is None
    assert said in outcomes["miss"].notes[0]
    with pytest.raises(StaleEntryError, match=said):
        table.find(["k"], "a", configs, NOW, "error")


def test_an_entry_without_a_live_candidate_is_an_error_too_where_staleness_is(kernels):
    table = TunedTable("sm90", {"k": {"*": kernels.entry(999)}})
    with pytest.raises(StaleEntryError, match="names no candidate"):
        table.find(["k"], "a", kernels.three_configs(), NOW, "error")


@pytest.mark.parametrize("unknown", ["", "unknown", None])
def test_what_is_not_known_makes_nothing_stale(kernels, unknown):
    table = TunedTable("sm90", {"k": {"*": kernels.entry(64)}}, provenance(driver=unknown, torch=unknown))
    assert table.stale("k", NOW) == ()
    assert TunedTable("sm90", {}, {"provenance": "free text"}).stale("k", NOW) == ()
    assert TunedTable("sm90", {}).stale("k", NOW) == ()


def test_a_fresh_table_says_nothing(kernels, caplog, table_dir):
    caplog.set_level(logging.INFO)
    table = load_overlay("sm90", [table_dir({"k": {"*": kernels.entry(64)}}, **provenance())])
    assert table.find(["k"], "a", kernels.three_configs(), NOW, "error").notes == ()
    assert not caplog.records


SIZES = st.sampled_from([128, 64, 32, 999])
LAYER = st.dictionaries(st.sampled_from(["a", "b", "*"]), SIZES)


@given(st.lists(LAYER, max_size=4))
def test_one_layer_finds_what_a_lookup_finds_and_more_layers_never_lose_an_entry(layers):
    from aiter_tuning.triton_autotune.table import OverlayTable
    from op_tests.triton_autotune import kernels

    configs = kernels.three_configs()
    tables = [TunedTable("x", {"k": {key: kernels.entry(size) for key, size in layer.items()}}) for layer in layers]
    found = OverlayTable("x", tables).lookup("k", "a", configs)
    exact = [layer["a"] for layer in layers if layer.get("a", 999) != 999]
    star = [layer["*"] for layer in layers if layer.get("*", 999) != 999]
    assert (found.kwargs["BLOCK"] if found else None) == next(iter(exact + star), None)
