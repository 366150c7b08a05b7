"""Several tables as one: latencies decide within an environment, dates between environments, and nothing gets lost."""

from __future__ import annotations

import dataclasses
import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiter_tuning.keys import Key
from aiter_tuning.tables.csv_error import CsvError
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.evidence import append_evidence, evidence_path, read_evidence
from aiter_tuning.tables.evidence_record import Evidence, Timed
from aiter_tuning.tables.merge_file import merge_into
from aiter_tuning.tables.merging import TunedTables, expand_tables, merge_tables
from aiter_tuning.tables.preference import Contender, prefer
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tables.tuned_reader import read_tuned
from aiter_tuning.tables.tuned_row import TunedRow
from op_tests.examples import examples

GEMM = Key(M=int, N=int, K=int, dtype="bf16", bias=False)
HEADER = "gfx,cu_num,M,N,K,us,kernelName\n"
SHAPE = {"M": 1, "N": 2, "K": 3}


def row(us, kernel="k", m=1, **changes):
    shape = GEMM.parse({"M": m, "N": 2, "K": 3})
    return dataclasses.replace(TunedRow("sm90", 132, "H200", shape, 0, 0, us, kernel), **changes)


def record(kernel, day, us=1.0, run="run1", timer="kernel", m=1, **changes):
    side = Timed(kernel, {}, us)
    found = Evidence(
        "gemm",
        {"gfx": "sm90", "cu_num": 132, "gpu_model": "H200", **GEMM.parse({"M": m, "N": 2, "K": 3})},
        *("promote", "faster", True, True, 5.0, 3.0, 0.5, side, side, side, "GPU-0", timer),
        fingerprints={"run": run},
        began=f"2026-01-{day:02}T11:00:00+00:00",
        ended=f"2026-01-{day:02}T12:00:00+00:00",
    )
    return dataclasses.replace(found, **changes)


@pytest.fixture
def tuned(tmp_path):
    """Writes a tuned table, and its evidence where there is some."""

    def write(name, rows, records=()):
        path = tmp_path / name
        TunedCsv(path, GEMM).update(rows)
        append_evidence(path, records)
        return path

    return write


# The rule


def test_within_one_environment_the_fastest_row_counts_and_nothing_is_in_conflict():
    decided = prefer([Contender(row(5.0, "a"), record("a", 9)), Contender(row(4.0, "b"), record("b", 1))])
    assert decided.winner == 1
    assert decided.lost[0].reason == "slower in the same environment (5 us against 4 us)"
    assert not decided.lost[0].conflict


@pytest.mark.parametrize("other", [{"run": "run2"}, {"timer": "event"}])
def test_between_environments_the_newer_row_counts_though_it_is_slower_and_the_conflict_is_told(other):
    decided = prefer([Contender(row(4.0, "a"), record("a", 1)), Contender(row(9.0, "b"), record("b", 2, **other))])
    assert decided.winner == 1
    assert decided.lost[0].conflict
    assert "measured in another environment" in decided.lost[0].reason


def test_a_verified_row_counts_more_than_a_faster_one_that_nothing_explains():
    decided = prefer([Contender(row(4.0, "a")), Contender(row(9.0, "b"), record("b", 2))])
    assert (decided.winner, decided.lost[0].conflict) == (1, True)


def test_without_evidence_the_fastest_counts_and_the_clash_is_told():
    decided = prefer([Contender(row(5.0, "a")), Contender(row(4.0, "b"))])
    assert (decided.winner, decided.lost[0].conflict) == (1, True)
    assert "no evidence says whether they can be compared" in decided.lost[0].reason


def test_the_same_row_twice_is_no_conflict():
    decided = prefer([Contender(row(5.0, "a")), Contender(row(5.0, "a"))])
    assert (decided.winner, decided.lost[1].reason) == (0, "the same kernel and latency")
    assert not decided.lost[1].conflict


def test_times_with_and_without_a_zone_are_compared():
    bare = record("b", 2, ended="2026-01-02T13:00:00", run="run2")
    decided = prefer([Contender(row(4.0, "a"), record("a", 2)), Contender(row(9.0, "b"), bare)])
    assert decided.winner == 1


contenders = st.lists(
    st.builds(
        lambda us, kernel, evidence: Contender(row(us, kernel), evidence and record(kernel, *evidence)),
        st.sampled_from([1.0, 2.0, 3.0, 4.0]),
        st.sampled_from("abc"),
        st.none() | st.tuples(st.integers(1, 28), st.just(1.0), st.sampled_from(["run1", "run2"])),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=examples(300))
@given(contenders)
def test_the_order_of_rows_changes_nothing_but_which_of_equals_counts(rows):
    decided = [
        (order[prefer(order).winner].row.us, order[prefer(order).winner].evidence is None)
        for order in itertools.islice(itertools.permutations(rows), 24)
    ]
    # Two environments whose newest rows are of one moment are equals: either may count.
    moments = [one.evidence.ended for one in rows if one.evidence is not None]
    if len(set(moments)) == len(moments):
        assert len(set(decided)) == 1
    assert len(prefer(rows).lost) == len(rows) - 1


@settings(max_examples=examples(300))
@given(contenders)
def test_no_row_loses_to_a_slower_one_of_its_own_environment(rows):
    decided = prefer(rows)
    winner = rows[decided.winner]
    for one in rows:
        both = one.evidence is not None and winner.evidence is not None
        if (both and one.evidence.fingerprints == winner.evidence.fingerprints) or not any(r.evidence for r in rows):
            assert winner.row.us <= one.row.us
        if one.evidence is not None:
            assert winner.evidence is not None


# Which files


def test_a_list_names_files_and_patterns_each_file_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    for name in ("b.csv", "a.csv", "a_untuned.csv", "a.checkpoint.csv", "a.profile.1.csv", "notes.txt"):
        (tmp_path / "models" / name).touch()
    assert [str(p) for p in expand_tables(f"main.csv{os.pathsep}models/*{os.pathsep}models/a.csv")] == [
        "main.csv",
        "models/a.csv",
        "models/b.csv",
    ]
    assert [str(p) for p in expand_tables(["models/b.csv", "models/*"])] == ["models/b.csv", "models/a.csv"]
    with pytest.raises(CsvError, match=r"none/\*: matches no tuned table"):
        expand_tables("none/*")


# Reading


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_tables_are_read_as_one_in_either_order_and_stay_as_they_are(tuned, order):
    """A slow row of a model's own table hid the better one of the common table."""
    files = [tuned("common.csv", [row(2.0, "good"), row(7.0, "other", m=5)]), tuned("model.csv", [row(3.0, "stale")])]
    before = [path.read_bytes() for path in files]
    tables = TunedTables([files[i] for i in order], GEMM)
    assert tables.find("sm90", 132, "H200", SHAPE).kernelName == "good"
    assert tables.find("sm90", 132, "H200", {**SHAPE, "M": 5}).kernelName == "other"
    assert [w for w in tables.warnings if f"{files[1]}:2: the key of {files[0]}:2 again, slower" in w]
    assert [path.read_bytes() for path in files] == before


def test_evidence_decides_between_tables_as_it_does_within_one(tuned):
    old = tuned("old.csv", [row(2.0, "fast_then")], [record("fast_then", 1)])
    new = tuned("new.csv", [row(3.0, "fast_now")], [record("fast_now", 20, run="run2")])
    assert TunedTables([old, new], GEMM).find("sm90", 132, "H200", SHAPE).kernelName == "fast_now"

    both = old.with_name("both.csv")
    both.write_text(old.read_text() + new.read_text().splitlines()[1] + "\n")
    append_evidence(both, [record("fast_then", 1), record("fast_now", 20, run="run2")])
    table = TunedCsv(both, GEMM)
    assert table.find("sm90", 132, "H200", SHAPE).kernelName == "fast_now"
    assert any(":2: the key of line 3 again, measured in another environment" in w for w in table.warnings)


def test_damaged_evidence_is_told_and_the_rest_used(tuned):
    first, second = tuned("a.csv", [row(2.0, "a")]), tuned("b.csv", [row(3.0, "b")], [record("b", 1)])
    with evidence_path(second).open("a") as file:
        file.write("{broken\n")
    tables = TunedTables([first, second], GEMM)
    assert tables.find("sm90", 132, "H200", SHAPE).kernelName == "b"
    assert any("b.evidence.jsonl:2" in warning for warning in tables.warnings)


def test_a_row_that_was_never_measured_wins_against_nothing(tmp_path):
    for name, us in (("zero.csv", "0.0"), ("minus.csv", "-1"), ("real.csv", "50.5")):
        (tmp_path / name).write_text(f"{HEADER}sm90,132,1,2,3,{us},{name}\n")
    tables = TunedTables([tmp_path / name for name in ("zero.csv", "minus.csv", "real.csv")], GEMM)
    assert [one.kernelName for one in tables.rows()] == ["real.csv"]
    assert len([w for w in tables.warnings if "not a measured latency" in w]) == 2


def test_a_model_that_one_table_names_and_another_does_not_are_two_keys_the_named_one_first(tuned, tmp_path):
    named = tuned("named.csv", [row(9.0, "named")])
    (tmp_path / "any.csv").write_text(f"{HEADER}sm90,132,1,2,3,1.5,any\n")
    tables = TunedTables([tmp_path / "any.csv", named], GEMM)
    assert tables.find("sm90", 132, "H200", SHAPE).kernelName == "named"
    assert tables.find("sm90", 132, "H100", SHAPE).kernelName == "any"
    assert tables.warnings == []


def test_open_tables_see_what_others_write_and_files_that_come_later(tuned, tmp_path):
    tables = TunedTables([tmp_path / "a.csv", tmp_path / "b.csv"], GEMM)
    assert tables.rows() == []
    tuned("b.csv", [row(3.0, "b")])
    assert [one.kernelName for one in tables.rows()] == ["b"]
    tuned("a.csv", [row(2.0, "a")])
    assert [one.kernelName for one in tables.rows()] == ["a"]


def test_variants_have_keys_of_their_own_by_their_tag(tmp_path):
    path = tmp_path / "tagged.csv"
    path.write_text(
        "gfx,cu_num,M,N,K,us,kernelName,_tag\n"
        "sm90,132,1,2,3,5.0,plain,\nsm90,132,1,2,3,1.0,tagged,probe\nsm90,132,1,2,3,2.0,slower,probe\n"
        "sm90,132,1,2,3,6.0,slow,\nsm90,132,x,2,3,3.0,foreign,other\n"
    )
    merge = merge_tables([read_tuned(path, GEMM)])
    assert [one.kernelName for one in merge.served().values()] == ["plain"]
    assert [str(placed)[-1] for placed in merge.kept] == ["2", "3"]
    assert [placed.entry.line for placed in merge.others] == [6]


# Writing


def test_a_merge_holds_each_key_once_with_its_evidence_and_merging_again_changes_nothing(tuned, tmp_path):
    shards = [
        tuned(f"shard{i}.csv", [row(10.0 - i, f"k{i}"), row(5.0, f"own{i}", m=10 + i)], [record(f"k{i}", 1 + i)])
        for i in range(3)
    ]
    out = tmp_path / "out.csv"
    merged = merge_into(out, shards, GEMM)
    assert (merged.written, merged.records, len(merged.merge.shadowed)) == (4, 1, 2)
    assert {one.kernelName for one in TunedCsv(out, GEMM).rows()} == {"k2", "own0", "own1", "own2"}
    assert [one.winner.name for one in read_evidence(evidence_path(out))] == ["k2"]

    before = out.read_bytes(), evidence_path(out).read_bytes()
    assert merge_into(out, [*shards, out], GEMM).records == 0
    assert (out.read_bytes(), evidence_path(out).read_bytes()) == before


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=12, unique_by=lambda pair: pair[1]),
    st.integers(1, 4),
    st.randoms(),
)
def test_however_a_run_is_cut_into_shards_their_merge_is_the_same(tmp_path_factory, pairs, count, random):
    """Rows without evidence: the fastest of each key."""
    folder = tmp_path_factory.mktemp("shards")
    shuffled = random.sample(pairs, len(pairs))
    paths = []
    for i in range(count):
        path = folder / f"{i}.csv"
        lines = "".join(f"sm90,132,{m},2,3,{us}.5,k{us}\n" for m, us in shuffled[i::count])
        path.write_text(HEADER + lines)
        paths.append(path)
    merge_into(folder / "out.csv", paths, GEMM)
    best = {m: min(us for other, us in pairs if other == m) for m, _ in pairs}
    rows = TunedCsv(folder / "out.csv", GEMM).rows()
    assert {one.shape["M"]: one.us for one in rows} == {m: us + 0.5 for m, us in best.items()}
    assert len(rows) == len(best)


def test_what_the_output_held_takes_part_although_nobody_named_it(tuned, tmp_path):
    out = tuned("out.csv", [row(1.0, "kept"), row(4.0, "old", m=7)])
    merge_into(out, [tuned("new.csv", [row(2.0, "slower"), row(3.0, "better", m=7)])], GEMM)
    assert sorted(one.kernelName for one in TunedCsv(out, GEMM).rows()) == ["better", "kept"]


def test_one_layout_is_kept_and_two_become_one_with_all_their_columns(tmp_path):
    bf16 = tmp_path / "bf16.csv"
    bf16.write_text(
        "gfx,cu_num,M,N,K,bias,dtype,outdtype,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw\n"
        "gfx950,256,1,2,3,True,torch.bfloat16,torch.bfloat16,asm,7,3,20.1,a,0.0104,280.3,1042.8\n"
    )
    plain = tmp_path / "plain.csv"
    plain.write_text(
        "gfx,cu_num,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n" + "gfx950,256,4,5,6,1,0,9.5,b,1,2,0.6%\n"
    )
    merge_into(tmp_path / "same.csv", [bf16], GEMM)
    assert (tmp_path / "same.csv").read_text() == bf16.read_text()

    merge_into(tmp_path / "both.csv", [plain, bf16], GEMM)
    table = read_rows(tmp_path / "both.csv")
    assert table.header == (
        *("gfx", "cu_num", "M", "N", "K", "dtype", "bias", "outdtype", "libtype"),
        *("kernelId", "splitK", "us", "kernelName", "tflops", "bw", "errRatio"),
    )
    assert [(one.cells["kernelId"], one.cells["errRatio"], one.cells["bias"]) for one in table.rows] == [
        ("1", "0.6%", "False"),
        ("7", "0.0104", "True"),
    ]
    assert {(one.kernelName, one.errRatio) for one in TunedCsv(tmp_path / "both.csv", GEMM).rows()} == {
        ("a", 0.0104),
        ("b", 0.006),
    }


def test_rows_without_an_arch_are_matched_nowhere_until_somebody_says_which_it_is(tmp_path):
    """Two archs have 256 compute units: guessing one from the number took rows for the other."""
    legacy = tmp_path / "legacy.csv"
    legacy.write_text("cu_num,M,N,K,us,kernelName\n256,1,2,3,1.5,k\n256,4,5,6,-1,k\n")
    merge_into(tmp_path / "kept.csv", [legacy], GEMM)
    assert TunedCsv(tmp_path / "kept.csv", GEMM).rows() == []
    assert "256,1,2,3,1.5,k" in (tmp_path / "kept.csv").read_text().replace(",,", ",")

    merged = merge_into(tmp_path / "out.csv", [legacy], GEMM, gfx="gfx950")
    assert [(one.gfx, one.us) for one in TunedCsv(tmp_path / "out.csv", GEMM).rows()] == [("gfx950", 1.5)]
    assert len(merged.merge.unmeasured) == 1


def test_rows_that_are_none_of_the_familys_business_are_kept_once(tmp_path):
    path = tmp_path / "mixed.csv"
    path.write_text(
        "gfx,cu_num,M,N,K,scaleAB,us,kernelName\n"
        + "sm90,132,1,2,3,True,1.5,scaled\n" * 2
        + "sm90,132,1,2,3,False,2.5,k\n"
    )
    merge_into(tmp_path / "out.csv", [path], GEMM)
    assert (tmp_path / "out.csv").read_text().count("scaled") == 1


def test_a_broken_input_stops_a_merge_before_anything_is_written(tuned, tmp_path):
    good = tuned("good.csv", [row(1.0)])
    (tmp_path / "bad.csv").write_text(f"{HEADER}sm90,132,1,2,3,fast,k\n")
    with pytest.raises(CsvError, match=r"bad\.csv:2:6: us is 'fast'"):
        merge_into(tmp_path / "out.csv", [good, tmp_path / "bad.csv"], GEMM)
    with pytest.raises(CsvError, match="no such file"):
        merge_into(tmp_path / "out.csv", [good, tmp_path / "none.csv"], GEMM)
    (tmp_path / "empty.csv").touch()
    with pytest.raises(CsvError, match=r"empty\.csv.*empty"):
        merge_into(tmp_path / "out.csv", [good, tmp_path / "empty.csv"], GEMM)
    assert not (tmp_path / "out.csv").exists()
    assert not evidence_path(tmp_path / "out.csv").exists()


def test_a_merge_can_be_sorted(tuned, tmp_path):
    merge_into(tmp_path / "out.csv", [tuned("a.csv", [row(1.0, m=m) for m in (30, 4, 5)])], GEMM, sort=True)
    assert [one.shape["M"] for one in TunedCsv(tmp_path / "out.csv", GEMM).rows()] == [4, 5, 30]


def test_an_output_that_was_only_touched_is_written_but_is_no_table_to_read(tuned, tmp_path):
    good, out = tuned("good.csv", [row(1.0)]), tmp_path / "out.csv"
    out.touch()
    with pytest.raises(CsvError, match=r"out\.csv.*empty"):
        merge_into(out, [good, out], GEMM)
    assert out.stat().st_size == 0
    assert merge_into(out, [good], GEMM).written == 1
