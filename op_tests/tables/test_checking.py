"""What tables themselves tell about what is wrong with them: every finding at once, each with its place."""

from __future__ import annotations

import os

import pytest

from aiter_tuning.keys import Key
from aiter_tuning.tables.checking import Target, check_tables
from aiter_tuning.tables.evidence import evidence_path
from aiter_tuning.tables.findings import Code

GEMM = Key(M=int, N=int, K=int, dtype="bf16", bias=False)
HEADER = "gfx,cu_num,M,N,K,us,kernelName\n"


@pytest.fixture
def write(tmp_path):
    def written(content, name="gemm_tuned.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return written


def told(*paths, **how):
    return [(f.code, f.line, f.column) for f in check_tables(paths, GEMM, **how).findings]


def test_a_table_in_order_has_no_findings(write):
    assert told(write(HEADER + "gfx942,304,1,2,3,1.5,k\ngfx950,256,1,2,3,1.5,k\n")) == []
    assert told(write("M,N,K\n1,2,3\n4,5,6", "gemm_untuned.csv")) == []


def test_everything_that_is_wrong_is_told_at_once_and_the_rest_is_read(write):
    path = write(
        HEADER.encode() + b"gfx942,304,1,2,3,1.5,k\n"
        b"<<<<<<< HEAD\n"
        b"gfx942,304,x,2,3,1.5,k\n"
        b"gfx942,304,4,2,3,fast,k\n"
        b"=======\n"
        b"gfx942,304,4,2,3\n"
        b"gfx942,304,4,2,3,1.5,k,9\n"
        b">>>>>>> theirs\n"
        b"gfx942,304,\xff,2,3,1.5,k\n"
        b"gfx942,304,5,2,3,0.0,k\n"
        b",304,6,2,3,1.5,k\n"
        b"gfx942,304,7,2,3,7.5,k\n"
    )
    checked = check_tables([path], GEMM)
    assert sorted((f.line, str(f.code), f.column) for f in checked.findings) == [
        (3, "conflict_marker", 1),
        (4, "broken", 3),
        (5, "broken", 6),
        (6, "conflict_marker", 1),
        (7, "broken", 6),
        (8, "broken", 8),
        (9, "conflict_marker", 1),
        (10, "broken", None),
        (11, "unmeasured", 6),
        (12, "placeless", 1),
    ]
    assert [row.shape["M"] for row in checked.merge.served().values()] == [1, 7]


def test_a_key_that_is_there_twice_is_told_with_both_latencies(write):
    (finding,) = check_tables([write(HEADER + "gfx942,304,1,2,3,2.5,a\ngfx942,304,1,2,3,1.5,b\n")], GEMM).findings
    assert (finding.code, finding.line) == (Code.duplicate, 2)
    assert "M=1 N=2 K=3 dtype=bf16 on gfx942/304: the key of line 3 again, slower (2.5 us against 1.5 us)" in str(
        finding
    )
    assert (finding.facts["us"], finding.facts["kept_us"], finding.facts["kernel"]) == (2.5, 1.5, "a")


def test_two_files_that_answer_for_the_same_keys_are_told_key_by_key(write):
    """Two models' files tuned the same 60 shapes, and main broke."""
    rows = [f"gfx942,304,{m},2,3," for m in range(1, 61)]
    one = write(HEADER + "".join(f"{row}{2 + i}.5,a\n" for i, row in enumerate(rows)), "one_tuned.csv")
    two = write(HEADER + "".join(f"{row}{1 + i}.5,b\n" for i, row in enumerate(rows)), "two_tuned.csv")
    findings = check_tables([one, two], GEMM).findings
    assert [finding.code for finding in findings] == [Code.clash] * 60
    assert {(finding.facts["us"], finding.facts["kept_us"]) for finding in findings} == {
        (2.5 + i, 1.5 + i) for i in range(60)
    }
    assert all(str(one) in str(finding) and f"{two}:{finding.line}" in str(finding) for finding in findings)


@pytest.mark.parametrize("content", [HEADER, HEADER.rstrip("\n"), HEADER + "\n,,,,,,\n"])
def test_a_table_without_rows_says_so_for_the_device_that_was_asked_for(write, content):
    path = write(content)
    (finding,) = check_tables([path], GEMM, target=Target("gfx942", 304)).findings
    assert (finding.code, finding.message) == (Code.empty, "0 rows for gfx942/304")
    assert [f.code for f in check_tables([path], GEMM).findings] == [Code.empty]


def test_a_table_with_rows_for_other_devices_only_says_for_which(write):
    path = write(HEADER + "gfx950,256,1,2,3,1.5,k\n")
    (finding,) = check_tables([path], GEMM, target=Target("gfx942", 304)).findings
    assert finding.message == "0 rows for gfx942/304; it has rows for gfx950/256"
    assert told(path, target=Target("gfx950")) == []


@pytest.mark.parametrize("us", ["0", "0.0", "-1", "inf", "nan", "", "Null"])
def test_rows_that_nobody_measured_are_told(write, us):
    path = write(HEADER + f"gfx942,304,1,2,3,{us},copied\ngfx942,304,2,2,3,2.5,k\n")
    assert told(path) == [(Code.unmeasured, 2, 6)]


def test_a_row_of_another_computation_is_told(write):
    path = write("gfx,cu_num,M,N,K,bpreshuffle,us\ngfx942,304,1,2,3,True,1.5\ngfx942,304,1,2,3,False,1.5\n")
    assert told(path) == [(Code.other_computation, 2, 6)]


@pytest.mark.parametrize("content", ["", "M,N\n1,2\n", "us\n1\n", b"\xff\xfeM\0", "M,N,K\n1,2,x\n"])
def test_a_file_that_cannot_be_read_is_a_finding_and_hides_no_other_file(write, content):
    bad, good = write(content, "bad.csv"), write(HEADER + "gfx942,304,1,2,3,0,k\ngfx942,304,2,2,3,1,k\n", "good.csv")
    findings = check_tables([bad, good], GEMM).findings
    assert [f.path.name for f in findings if f.code in (Code.broken, Code.empty)] == ["bad.csv"]
    assert [f.path.name for f in findings if f.code is Code.unmeasured] == ["good.csv"]


def test_a_missing_file_is_a_finding(tmp_path):
    (finding,) = check_tables([tmp_path / "none.csv"], GEMM).findings
    assert str(finding) == f"{tmp_path}/none.csv: broken: no such file; expected a CSV file; check the path"


def test_a_repeated_shape_is_told_with_its_first_line(write):
    path = write("M,N,K\n1,2,3\n4,5,6\n1.0,2,3\n", "gemm_untuned.csv")
    (finding,) = check_tables([path], GEMM).findings
    assert (finding.code, finding.line, finding.facts["first_line"]) == (Code.duplicate, 4, 2)


def test_a_row_that_lies_beside_a_single_cell_may_be_half_of_one(write):
    """A line break inside its first cell leaves ``m90``, an arch that nobody has."""
    path = write("gfx,cu_num,M,N,K,us\ns\nm90,132,1,2,3,1.5\nsm90,132,2,2,3,1.5\nsm90,132,3,2,3,15\n.5\n")
    checked = check_tables([path], GEMM)
    assert [row.shape["M"] for row in checked.merge.served().values()] == [2]
    assert sorted(f.line for f in checked.findings) == [2, 3, 5, 6]


def test_damaged_evidence_is_told_with_its_line(write):
    path = write(HEADER + "gfx942,304,1,2,3,1.5,k\n")
    evidence_path(path).write_text('\n{}\n{"schema": 1, "family": "ge')
    findings = [f for f in check_tables([path], GEMM).findings if f.code is Code.bad_evidence]
    assert [(os.path.basename(f.path), f.line) for f in findings] == [("gemm_tuned.evidence.jsonl", n) for n in (2, 3)]


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\x00\xff\xfe", b"\x89PNG\r\n\x1a\n\xff"], ids=["gzip", "png"])
def test_a_file_that_is_no_text_is_not_called_empty(write, content):
    (finding, *_) = check_tables([write(content)], GEMM).findings
    assert finding.code is Code.broken
    assert "not UTF-8 text" in finding.message
