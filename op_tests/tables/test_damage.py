"""Damaged files: read to exactly their undamaged rows, or refused with file and line; never a wrong value.

What no reader can tell is left out: a digit more in a number (as where half a row runs into the next one), a comma more
in a text, and a cut in the last cell of a line that may be shorter. In our own tuned tables the last cell is a config,
in quotes, so that a file may be cut off anywhere.
"""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiter_tuning.keys import Key
from aiter_tuning.tables.checking import check_tables
from aiter_tuning.tables.csv_error import CsvError
from aiter_tuning.tables.findings import Code
from aiter_tuning.tables.merge_file import merge_into
from aiter_tuning.tables.shapes import read_shapes
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tables.tuned_row import TunedRow, row_cells, widened
from op_tests.examples import examples

GEMM = Key(M=int, N=int, K=int, bias=False, dtype="bf16")
many = settings(max_examples=examples(600), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

STRAY = [b"\0", b"\x01", b"\x7f", b"\x80", b"\xe9", b"\xff", b'"', b",", b"\n", b"\r", b"\xef\xbb\xbf"]
"""Bytes that belong into no cell of a table."""

shapes = st.fixed_dictionaries(
    {
        "M": st.sampled_from([1, 16, 64, 111, 4096]),
        "N": st.sampled_from([128, 2112, 7168]),
        "K": st.sampled_from([256, 1280, 7168]),
        "bias": st.booleans(),
        "dtype": st.sampled_from(["bf16", "fp16"]),
    }
)
configs = st.dictionaries(
    st.sampled_from(["BM", "stages", "kernel"]), st.integers(0, 512) | st.just("til,ed"), min_size=1
)
rows = st.builds(
    TunedRow,
    gfx=st.sampled_from(["sm90", "gfx950"]),
    cu_num=st.sampled_from([132, 256]),
    gpu_model=st.sampled_from(["NVIDIA H200", "AMD Instinct MI355X"]),
    shape=shapes,
    kernelId=st.integers(0, 40),
    splitK=st.integers(0, 8),
    us=st.integers(10_001, 99_999_999).map(lambda n: n / 10_000),
    kernelName=st.sampled_from(["bm64_bn128", "linear", "split_k2_16x32x128_w4_s3"]),
    tflops=st.sampled_from([1.25, 300.5]),
    bw=st.sampled_from([10.5, 2000.0]),
    errRatio=st.sampled_from([0.0, 0.0104]),
    config=configs,
)


@st.composite
def tables(draw, cells_of, elements):
    """Lines of a file, header first, with the value of each row."""
    values = draw(st.lists(elements, min_size=2, max_size=6))
    header, lines = cells_of(values)
    return header, list(zip(lines, values, strict=True))


def tuned_lines(values):
    from aiter_tuning.tables.csv_writer import csv_line

    header = widened((), GEMM)
    cells = [row_cells(header, row, GEMM, {}) for row in values]
    return csv_line(header), [csv_line(row[name] for name in header) for row in cells]


def shape_lines(values):
    return "M,N,K,bias,dtype\n", [",".join(str(shape[name]) for name in GEMM.columns) + "\n" for shape in values]


def _start_of_last_cell(line):
    return line.rfind(b',"{') + 1 if b',"{' in line else line.rfind(b",") + 1


@st.composite
def damaged(draw, table):
    """A file, the values of the rows that were left as they are, and all values that were ever in it."""
    header, rows = table
    lines = [(header.encode(), None), *((line.encode(), value) for line, value in rows)]
    for _ in range(draw(st.integers(1, 3))):
        if not lines:
            break
        where = draw(st.integers(0, len(lines) - 1))
        line, value = lines[where]
        kind = draw(st.sampled_from(["cut", "join", "double", "swap", "stray", "crlf", "bom", "end"]))
        if kind == "cut":
            last_cell = max(1, _start_of_last_cell(line))
            lines[where] = (line[: draw(st.integers(0, last_cell - 1))] + b"\n", None)
        elif kind == "join" and where + 1 < len(lines) and (where == 0 or value is not None):
            lines[where : where + 2] = [(line.rstrip(b"\r\n") + lines[where + 1][0], None)]
        elif kind == "double":
            lines.insert(where, (line, value))
        elif kind == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[where], lines[other] = lines[other], lines[where]
        elif kind == "stray":
            at, byte = draw(st.integers(0, len(line) - 1)), draw(st.sampled_from(STRAY))
            if byte != b"," or at <= _start_of_last_cell(line):
                lines[where] = (line[:at] + byte + line[at:], None)
        elif kind == "crlf":
            lines = [(one.replace(b"\n", b"\r\n"), told) for one, told in lines]
        elif kind == "bom":
            lines[0] = (b"\xef\xbb\xbf" + lines[0][0], lines[0][1])
        elif kind == "end":
            lines[-1] = (lines[-1][0].rstrip(b"\r\n"), lines[-1][1])
    left = [value for _, value in lines if value is not None]
    return b"".join(line for line, _ in lines), left, [value for _, value in rows]


def told_with_its_place(error, path):
    assert re.match(rf"{re.escape(str(path))}(:\d+(:\d+)?)?: ", str(error)), str(error)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "damaged.csv"


def key_of(row):
    return dataclasses.replace(row, shape=GEMM.parse(row.shape)).full_key


def agrees(found, left, ever):
    """Whether rows that were read are rows that were written, all undamaged ones among them."""
    written = [dataclasses.replace(row, shape=GEMM.parse(row.shape), us=round(row.us, 4)) for row in ever]
    for row in found:
        assert row in written, f"a row that nobody wrote: {row}"
    for row in left:
        assert any(one.full_key == key_of(row) and one.us <= round(row.us, 4) for one in found), f"lost: {row}"
    assert len({row.full_key for row in found}) == len(found)


tuned_files = tables(tuned_lines, rows).flatmap(damaged)
shape_files = tables(shape_lines, shapes).flatmap(damaged)


@many
@given(tuned_files)
def test_a_damaged_tuned_table_gives_its_undamaged_rows_or_is_refused(path, file):
    data, left, ever = file
    path.write_bytes(data)
    try:
        found = TunedCsv(path, GEMM).rows()
    except CsvError as error:
        told_with_its_place(error, path)
    else:
        agrees(found, left, ever)


@many
@given(shape_files)
def test_a_damaged_file_of_shapes_gives_its_undamaged_shapes_or_is_refused(path, file):
    data, left, ever = file
    path.write_bytes(data)
    try:
        found = {tuple(shape.values()) for shape in read_shapes(path, GEMM).shapes}
    except CsvError as error:
        told_with_its_place(error, path)
    else:
        assert set(map(GEMM.values, left)) <= found <= set(map(GEMM.values, ever))


@many
@given(tables(tuned_lines, rows), st.data())
def test_our_own_tables_may_be_cut_off_at_any_byte(path, table, data):
    header, lines = table
    whole = "".join([header, *(line for line, _ in lines)]).encode()
    cut = whole[: data.draw(st.integers(1, len(whole)))]
    path.write_bytes(cut)
    try:
        found = TunedCsv(path, GEMM).rows()
    except CsvError as error:
        told_with_its_place(error, path)
    else:
        agrees(found, [value for line, value in lines if line.encode().strip() in cut], [value for _, value in lines])


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tuned_files)
def test_check_reads_all_undamaged_rows_and_the_mended_copy_has_them(path, file):
    data, left, ever = file
    path.write_bytes(data)
    checked = check_tables([path], GEMM)
    if not checked.tuned:  # its header is damaged
        assert any(finding.code in (Code.broken, Code.conflict_marker, Code.empty) for finding in checked.findings)
        return
    is_whole = not any(finding.code is Code.broken for finding in checked.findings)
    agrees(list(checked.merge.served().values()), left if is_whole else [], ever)
    out = path.with_name("mended.csv")
    out.unlink(missing_ok=True)
    merge_into(out, [path], GEMM, refused=lambda error: None)
    assert TunedCsv(out, GEMM).rows() == list(checked.merge.served().values())


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp037"])
@pytest.mark.parametrize("kind", ["tuned", "shapes"])
def test_another_encoding_is_refused_with_its_place(path, encoding, kind):
    row = TunedRow("sm90", 132, "H", {"M": 1, "N": 2, "K": 3}, 0, 0, 1.5, "k", config={"BM": 1})
    header, lines = tuned_lines([row]) if kind == "tuned" else shape_lines([GEMM.parse(row.shape)])
    path.write_bytes((header + lines[0]).encode(encoding))
    with pytest.raises(CsvError) as refused:
        TunedCsv(path, GEMM).rows() if kind == "tuned" else read_shapes(path, GEMM)
    told_with_its_place(refused.value, path)


def test_letters_of_an_older_encoding_are_refused_and_plain_ones_are_the_same_text(path):
    row = TunedRow("sm90", 132, "Bj\u00f6rk", {"M": 1, "N": 2, "K": 3}, 0, 0, 1.5, "k", config={"BM": 1})
    header, lines = tuned_lines([row])
    path.write_bytes((header + lines[0]).encode("cp1252"))
    with pytest.raises(CsvError, match=r"damaged\.csv:2: byte 0xf6 is not UTF-8"):
        TunedCsv(path, GEMM).rows()
    path.write_bytes((header + lines[0].replace("\u00f6", "o")).encode("cp1252"))
    assert [found.us for found in TunedCsv(path, GEMM).rows()] == [1.5]


def test_the_last_shape_of_a_file_without_a_line_end_is_told_to_be_such(path):
    path.write_text("M,N,K\n1,128,7168\n2,128,71")
    file = read_shapes(path, GEMM)
    assert (file.shapes[-1]["K"], file.unended) == (71, 3)
    assert any(":3: the last line has no line end" in note for note in check_tables([path], GEMM).notes)


def test_an_unended_row_is_a_finding_where_half_of_its_last_cell_would_decide(path):
    path.write_text("gfx,cu_num,M,N,K,kernelName,us\nsm90,132,1,2,3,k,12.3")
    assert Code.no_line_end in [finding.code for finding in check_tables([path], GEMM).findings]
    assert any(":2: the last line has no line end" in warning for warning in _warnings(path))
    path.write_text("gfx,cu_num,M,N,K,kernelName,us,bw\nsm90,132,1,2,3,k,12.3,5")
    assert Code.no_line_end not in [finding.code for finding in check_tables([path], GEMM).findings]


def _warnings(path):
    table = TunedCsv(path, GEMM)
    table.rows()
    return table.warnings
