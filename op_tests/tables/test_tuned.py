"""Tuned tables: found by full key, merged under a lock, never holding what was not measured."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiter_tuning.keys import Key
from aiter_tuning.tables.csv_reader import CsvError, read_csv
from aiter_tuning.tables.lock import FileLock, LockTimeoutError
from aiter_tuning.tables.tuned import TunedCsv, TunedRow

GEMM = Key(M=int, N=int, K=int, dtype="bf16", bias=False)
ROW = TunedRow(
    gfx="sm90",
    cu_num=132,
    gpu_model="NVIDIA H200",
    shape={"M": 64, "N": 128, "K": 256},
    kernelId=3,
    splitK=2,
    us=12.34567,
    kernelName="bm64_bn128",
    tflops=1.234,
    bw=55.555,
    errRatio=0.01,
    config={"BM": 64, "stages": [3, 4]},
)
UPSTREAM = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw\n"
    "gfx950,256,1,384,7168,False,torch.bfloat16,torch.bfloat16,False,False,asm,7,3,20.1108,old_a,0.0104,280.3,1042.8\n"
    "gfx942,304,1,384,7168,False,torch.bfloat16,torch.bfloat16,False,False,triton,0,0,30.5,old_b,0.0,1.50,2.50\n"
    "gfx950,256,2,384,7168,False,torch.bfloat16,torch.bfloat16,False,True,asm,7,3,9.5,other,0.0,1.0,2.0\n"
)


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "tuned.csv"


def row(m=64, **changes) -> TunedRow:
    return dataclasses.replace(ROW, shape={"M": m, "N": 128, "K": 256}, **changes)


def test_a_file_that_does_not_exist_has_no_rows_and_reading_makes_none(path):
    table = TunedCsv(path, GEMM)
    assert table.rows() == []
    assert table.find("sm90", 132, "NVIDIA H200", ROW.shape) is None
    assert os.listdir(path.parent) == []


def test_an_empty_file_and_a_header_alone_have_no_rows(path):
    path.touch()
    assert TunedCsv(path, GEMM).rows() == []
    path.write_text("gfx,cu_num,M,N,K,us")
    assert TunedCsv(path, GEMM).rows() == []
    path.write_bytes(b"")
    assert TunedCsv(path, GEMM).update([ROW]) == 1
    assert len(TunedCsv(path, GEMM).rows()) == 1


def test_a_new_file_has_the_columns_in_their_order(path):
    TunedCsv(path, GEMM).update([ROW])
    header, line = path.read_text().splitlines()
    assert header == ("gfx,cu_num,gpu_model,M,N,K,dtype,bias,kernelId,splitK,us,kernelName,tflops,bw,errRatio,config")
    assert line == (
        "sm90,132,NVIDIA H200,64,128,256,bf16,False,3,2,12.3457,bm64_bn128,1.23,55.55,0.01,"
        '"{""BM"":64,""stages"":[3,4]}"'
    )


def test_what_was_written_is_found_by_any_spelling_of_its_shape(path):
    TunedCsv(path, GEMM).update([ROW])
    table = TunedCsv(path, GEMM)
    found = table.find("sm90", 132, "NVIDIA H200", {"K": "256", "M": 64.0, "N": "128", "dtype": "torch.bfloat16"})
    assert found is not None
    assert found.config == {"BM": 64, "stages": [3, 4]}
    assert (found.kernelId, found.splitK, found.us, found.kernelName) == (3, 2, 12.3457, "bm64_bn128")
    assert (found.tflops, found.bw, found.errRatio) == (1.23, 55.55, 0.01)


def test_another_device_finds_nothing(path):
    TunedCsv(path, GEMM).update([ROW])
    table = TunedCsv(path, GEMM)
    for device in (("sm100", 132, "NVIDIA H200"), ("sm90", 114, "NVIDIA H200"), ("sm90", 132, "NVIDIA H100")):
        assert table.find(*device, ROW.shape) is None


def test_a_row_without_a_model_serves_every_model_and_yields_to_an_exact_one(path):
    path.write_text(UPSTREAM)
    table = TunedCsv(path, GEMM)
    shape = {"M": 1, "N": 384, "K": 7168}
    assert table.find("gfx950", 256, "MI355X", shape).kernelName == "old_a"
    exact = TunedRow("gfx950", 256, "MI355X", shape, 1, 0, 19.0, "exact")
    table.update([exact])
    assert table.find("gfx950", 256, "MI355X", shape).kernelName == "exact"
    assert table.find("gfx950", 256, "MI350X", shape).kernelName == "old_a"


def test_an_open_table_sees_what_others_write(path):
    reader, writer = TunedCsv(path, GEMM), TunedCsv(path, GEMM)
    assert reader.rows() == []
    for us in (5.0, 4.0):
        writer.update([row(us=us)])
        assert reader.find("sm90", 132, "NVIDIA H200", ROW.shape).us == us


# Updating what others wrote


def test_an_upstream_file_keeps_its_columns_its_spellings_and_its_other_rows(path):
    path.write_text(UPSTREAM)
    new = TunedRow("gfx950", 256, "", {"M": 1, "N": 384, "K": 7168}, 9, 1, 18.5, "new", 300.0, 1100.0, 0.5)
    TunedCsv(path, GEMM).update([new])
    before, after = UPSTREAM.splitlines(), path.read_text().splitlines()
    columns = after[0].split(",")
    assert [name for name in columns if name not in ("gpu_model", "config")] == before[0].split(",")
    changed = dict(zip(columns, after[1].split(","), strict=True))
    assert (changed["solidx"], changed["err_ratio"], changed["kernelName"], changed["us"]) == (
        "9",
        "0.5",
        "new",
        "18.5",
    )
    assert changed["outdtype"] == "torch.bfloat16"
    assert changed["libtype"] == ""  # it named the library of the kernel that went
    for old, kept in zip(before[2:], after[2:], strict=True):
        cells = dict(zip(columns, kept.split(","), strict=True))
        assert [cells[name] for name in before[0].split(",")] == old.split(",")
        assert (cells["gpu_model"], cells["config"]) == ("", "")


def test_a_row_that_means_something_else_is_neither_found_nor_replaced(path):
    path.write_text(UPSTREAM)
    table = TunedCsv(path, GEMM)
    shape = {"M": 2, "N": 384, "K": 7168}
    assert table.find("gfx950", 256, "", shape) is None
    assert any(":4: bpreshuffle is True" in warning for warning in table.warnings)
    table.update([TunedRow("gfx950", 256, "", shape, 0, 0, 8.0, "mine")])
    assert "other" in path.read_text()
    assert table.find("gfx950", 256, "", shape).kernelName == "mine"


def test_a_tagged_row_is_kept_and_never_served(path):
    path.write_text("gfx,cu_num,M,N,K,kernelId,splitK,us,kernelName,_tag\nsm90,132,64,128,256,1,0,1.5,tagged,probe\n")
    table = TunedCsv(path, GEMM)
    assert table.rows() == []
    table.update([dataclasses.replace(ROW, gpu_model="")])
    assert [r.kernelName for r in table.rows()] == ["bm64_bn128"]
    assert "tagged" in path.read_text()


def test_a_row_without_gfx_is_not_matched_on_any_arch(path):
    path.write_text("cu_num,M,N,K,us,kernelName\n256,64,128,256,1.5,legacy\n")
    table = TunedCsv(path, GEMM)
    assert table.find("gfx1250", 256, "", ROW.shape) is None
    assert table.find("", 256, "", ROW.shape) is None
    assert any(":2: the row does not say for which gfx it is; left out" in warning for warning in table.warnings)


@pytest.mark.parametrize("us", ["0", "0.0", "-1", "inf", "nan", "", "Null"])
def test_a_row_that_was_never_measured_is_left_out_and_can_be_replaced(path, us):
    path.write_text(f"gfx,cu_num,M,N,K,us,kernelName\nsm90,132,64,128,256,{us},copied\nsm90,132,1,1,1,2.5,good\n")
    table = TunedCsv(path, GEMM)
    assert [r.kernelName for r in table.rows()] == ["good"]
    assert any("tuned.csv:2: us is" in warning and "not a measured latency" in warning for warning in table.warnings)
    table.update([dataclasses.replace(ROW, gpu_model="")])
    assert "copied" not in path.read_text()
    assert sorted(r.kernelName for r in table.rows()) == ["bm64_bn128", "good"]


@pytest.mark.parametrize("order", [(3.0, 2.0, 4.0), (2.0, 3.0, 4.0), (4.0, 3.0, 2.0)])
def test_of_several_rows_with_one_key_the_fastest_is_served_and_the_others_are_reported(path, order):
    rows = "".join(f"sm90,132,64,128,256,{us},k{us}\n" for us in order)
    path.write_text("gfx,cu_num,M,N,K,us,kernelName\n" + rows)
    table = TunedCsv(path, GEMM)
    assert table.find("sm90", 132, "", ROW.shape).us == 2.0
    assert len(table.rows()) == 1
    slower = {f":{order.index(us) + 2}: the key of line" for us in (3.0, 4.0)}
    assert all(any(place in warning for warning in table.warnings) for place in slower)
    table.update([dataclasses.replace(ROW, gpu_model="", us=9.0)])
    assert [r.us for r in table.rows()] == [9.0]


def test_a_broken_tuned_table_is_refused_and_left_alone(path):
    for content, place in (
        ("gfx,cu_num,M,N,K,us\nsm90,132,x,1,1,2\n", ":2:3: M is 'x'"),
        ("gfx,cu_num,M,N,K,us\nsm90,132,1,1,1,fast\n", ":2:6: us is 'fast'; expected a number"),
        ("gfx,cu_num,M,N,K,us\nsm90,132,1,1,1\n", ":2:6: the row has 5 cells"),
        ("gfx,cu_num,M,N,K\nsm90,132,1,1,1\n", ":1: no column us"),
        ("gfx,cu_num,M,N,K,us,config\nsm90,132,1,1,1,2,{\n", ":2:7: config is no JSON"),
        ("gfx,cu_num,M,N,K,us,kernelId\nsm90,132,1,1,1,2,1.5\n", ":2:7: kernelId is '1.5'; expected a whole number"),
        ("gfx,cu_num,M,N,K,us\n<<<<<<< HEAD\n", ":2:1: a conflict marker"),
    ):
        path.write_text(content)
        for act in (TunedCsv(path, GEMM).rows, lambda: TunedCsv(path, GEMM).update([ROW])):
            with pytest.raises(CsvError) as refused:
                act()
            assert str(refused.value).startswith(f"{path}{place}")
        assert path.read_text() == content


# What may be written


@pytest.mark.parametrize("us", [0, 0.0, -1, -1.0, math.inf, -math.inf, math.nan])
def test_what_is_no_latency_never_gets_in(path, us):
    TunedCsv(path, GEMM).update([row(1)])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="expected a measured latency, finite and above 0"):
        TunedCsv(path, GEMM).update([row(2), row(3, us=us)])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"errRatio": math.nan},
        {"tflops": math.inf},
        {"bw": -1.0},
        {"kernelName": ""},
        {"kernelName": "two\nlines"},
        {"gfx": " "},
        {"gpu_model": "a\nb"},
        {"config": {"x": math.nan}},
        {"config": {"x": object()}},
        {"shape": {"M": 0, "N": 1, "K": 1}},
    ],
)
def test_a_row_that_could_not_be_read_back_never_gets_in(path, wrong):
    with pytest.raises(ValueError):
        TunedCsv(path, GEMM).update([dataclasses.replace(ROW, **wrong)])
    assert os.listdir(path.parent) == []


def test_a_latency_too_short_for_four_decimals_keeps_its_digits(path):
    TunedCsv(path, GEMM).update([row(us=0.00001234)])
    assert TunedCsv(path, GEMM).rows()[0].us == 0.00001234


def test_of_several_new_rows_with_one_key_the_last_counts(path):
    assert TunedCsv(path, GEMM).update([row(us=1.0), row(us=3.0), row(us=2.0)]) == 1
    assert [r.us for r in TunedCsv(path, GEMM).rows()] == [2.0]


def test_no_rows_write_nothing(path):
    assert TunedCsv(path, GEMM).update([]) == 0
    assert os.listdir(path.parent) == []


def test_sorting_orders_by_device_and_by_n_before_m(path):
    rows = [
        dataclasses.replace(ROW, gfx=gfx, shape={"M": m, "N": n, "K": 1})
        for gfx, m, n in (("sm90", 2, 1), ("sm90", 10, 1), ("sm90", 1, 2), ("sm100", 1, 1))
    ]
    TunedCsv(path, GEMM).update(reversed(rows), sort=True)
    frame = read_csv(path)
    assert frame[["gfx", "N", "M"]].values.tolist() == [
        ["sm100", 1, 1],
        ["sm90", 1, 2],
        ["sm90", 1, 10],
        ["sm90", 2, 1],
    ]


def test_the_written_file_is_read_with_numeric_columns(path):
    TunedCsv(path, GEMM).update([row(1), row(2, config={})])
    frame = read_csv(path)
    assert all(frame[name].dtype.kind in "if" for name in ("cu_num", "M", "kernelId", "splitK", "us", "tflops", "bw"))


def test_a_full_disk_leaves_the_table_as_it_was(small_disk, fill_disk):
    path = small_disk / "tuned.csv"
    table = TunedCsv(path, GEMM)
    table.update([row(1)])
    before = path.read_bytes()
    hog = fill_disk(small_disk)
    with pytest.raises(OSError, match="No space left"):
        table.update([row(m) for m in range(1, 200)])
    assert path.read_bytes() == before
    hog.unlink()
    table.update([row(2)])
    assert len(table.rows()) == 2


# Several writers

ADD_ROWS = """
import sys
from aiter_tuning.keys import Key
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
path, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
table = TunedCsv(path, Key(M=int, N=int, K=int, dtype="bf16", bias=False))
print("ready")
sys.stdin.readline()
for m in range(first, first + count):
    table.update([TunedRow("sm90", 132, "H", {"M": m, "N": 1, "K": 1}, 0, 0, 1.0 + m, f"k{m}")])
    print(m)
"""


def test_rows_of_writers_at_the_same_time_all_arrive(path, program):
    writers = [program(ADD_ROWS, path, 1 + 100 * i, 40) for i in range(3)]
    for writer in writers:
        assert writer.line() == "ready"
    for writer in writers:
        writer.tell()
    for writer in writers:
        writer.end()
    assert sorted(r.shape["M"] for r in TunedCsv(path, GEMM).rows()) == [
        m + 100 * i for i in range(3) for m in range(1, 41)
    ]


def test_a_killed_writer_costs_no_row_that_was_written(path, program):
    TunedCsv(path, GEMM).update([row()])
    for attempt in range(5):
        writer = program(ADD_ROWS, path, 1000 * attempt + 1, 10_000)
        assert writer.line() == "ready"
        writer.tell()
        last = [writer.line() for _ in range(3)][-1]
        writer.kill()
        rows = TunedCsv(path, GEMM).rows()
        assert {1000 * attempt + 1, int(last)} <= {r.shape["M"] for r in rows}
        assert len({r.full_key for r in rows}) == len(rows)
    assert TunedCsv(path, GEMM).find("sm90", 132, "NVIDIA H200", ROW.shape) is not None


def test_a_writer_that_waits_too_long_says_for_whom(path):
    with FileLock.beside(path), pytest.raises(LockTimeoutError, match=f"process {os.getpid()} on"):
        TunedCsv(path, GEMM, lock_timeout=0).update([ROW])
    assert not path.exists()


# Any rows

name = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12).filter(
    lambda n: n.lower() != "null"
)
number = st.floats(0, 1e9, allow_nan=False)
scalar = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
)
any_row = st.builds(
    TunedRow,
    gfx=st.sampled_from(["sm90", "gfx950"]),
    cu_num=st.integers(1, 300),
    gpu_model=name | st.just(""),
    shape=st.fixed_dictionaries(
        {"M": st.integers(1, 3), "N": st.integers(1, 3), "K": st.integers(1, 10**9), "bias": st.booleans()}
    ),
    kernelId=st.integers(-1, 10**6),
    splitK=st.integers(0, 64),
    us=st.floats(1e-3, 1e12, exclude_min=True),
    kernelName=name,
    tflops=number,
    bw=number,
    errRatio=st.floats(0, 1),
    config=st.dictionaries(st.text(max_size=8), scalar | st.lists(scalar, max_size=3), max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(any_row, max_size=5), max_size=4), st.booleans())
def test_after_any_updates_every_key_holds_its_last_row(tmp_path_factory, batches, sort):
    path = tmp_path_factory.mktemp("tuned") / "tuned.csv"
    expected: dict[object, TunedRow] = {}
    for batch in batches:
        TunedCsv(path, GEMM).update(batch, sort=sort)
        for one in batch:
            typed = dataclasses.replace(one, shape=GEMM.parse(one.shape))
            expected[typed.full_key] = typed
    table = TunedCsv(path, GEMM)
    assert {r.full_key for r in table.rows()} == set(expected)
    for one in expected.values():
        found = table.find(one.gfx, one.cu_num, one.gpu_model, one.shape)
        assert found is not None
        assert (found.kernelName, found.kernelId, found.config) == (one.kernelName, one.kernelId, one.config)
        assert found.us == round(one.us, 4)


def test_a_table_that_did_not_change_is_read_once(path, monkeypatch):
    from aiter_tuning.tables import tuned

    TunedCsv(path, GEMM).update([row(m) for m in range(1, 50)])
    table, readings, read = TunedCsv(path, GEMM), [], tuned.read_tuned
    monkeypatch.setattr(tuned, "read_tuned", lambda *a, **k: readings.append(a) or read(*a, **k))
    assert all(table.find("sm90", 132, "NVIDIA H200", {"M": m, "N": 128, "K": 256}) for m in range(1, 50))
    assert len(readings) == 1


def key_of(m):
    return dataclasses.replace(ROW, shape=GEMM.parse({"M": m, "N": 128, "K": 256})).full_key


def stacked(path, *rows):
    """Puts each row into the file, whatever is there."""
    for one in rows:
        held = path.read_text().splitlines()[1:] if path.exists() else []
        path.unlink(missing_ok=True)
        TunedCsv(path, GEMM).update([one])
        header, line = path.read_text().splitlines()
        path.write_text("\n".join([header, *held, line]) + "\n")


def test_of_a_settled_key_the_row_that_counts_is_left_and_other_keys_keep_what_they_have(path):
    stacked(path, row(1, us=9.0), row(2, us=8.0), row(1, us=5.0), row(2, us=7.0), row(1, us=6.0))
    table = TunedCsv(path, GEMM)
    lines = path.read_text().splitlines()

    assert table.update([], settled=table.crowded_keys() - {key_of(2)}) == 0

    assert path.read_text().splitlines() == [lines[0], lines[2], lines[3], lines[4]]
    assert [entry.line for entry in table.removed] == [2, 6]
    before = path.stat()
    assert table.update([], settled=[key_of(1)]) == 0
    assert path.stat().st_ino == before.st_ino, "nothing to do, nothing written"


def test_of_a_settled_key_rows_that_were_never_measured_go_and_stay_where_there_are_no_others(path):
    stacked(path, row(1, us=9.0), row(2, us=8.0))
    header, one, two = path.read_text().splitlines()
    one_unmeasured, two_unmeasured = one.replace("9.0", "-1"), two.replace("8.0", "0")
    path.write_text("\n".join([header, one_unmeasured, one, two_unmeasured, two_unmeasured]) + "\n")
    table = TunedCsv(path, GEMM)
    assert table.crowded_keys() == {key_of(1), key_of(2)}

    table.update([], settled=table.crowded_keys())

    assert path.read_text().splitlines() == [header, one, two_unmeasured, two_unmeasured]


def test_a_row_that_stays_stays_alone_where_its_key_is_settled(path):
    stacked(path, row(1, us=9.0), row(1, us=5.0))
    table = TunedCsv(path, GEMM)

    written = table.update([row(1, us=6.0)], stays=lambda current, new: current.us < new.us, settled=[key_of(1)])

    assert written == 0
    assert [one.us for one in table.rows()] == [5.0] and len(path.read_text().splitlines()) == 2
    assert [entry.cells["us"] for entry in table.removed] == ["9.0"]
