"""Reading CSV files: forgiving about form, strict about meaning, exact about the place."""

from __future__ import annotations

import csv
import io
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiter_tuning.tables.csv_reader import CsvError, CsvScan, read_csv, read_rows
from aiter_tuning.tables.csv_writer import csv_line
from op_tests.examples import examples


@pytest.fixture
def written(tmp_path):
    def write(content: str | bytes, name: str = "shapes.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def refusal(path: Path, **how) -> str:
    """What the reader says, from the file's name on."""
    with pytest.raises(CsvError) as refused:
        read_rows(path, **how)
    text = str(refused.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text.removeprefix(f"{path.parent}/")


def cells(path: Path, **how) -> list[dict[str, str]]:
    return [row.cells for row in read_rows(path, **how).rows]


# What is forgiven


@pytest.mark.parametrize(
    "content",
    [
        "M,N,K\n1,2,3\n",
        "M,N,K\r\n1,2,3\r\n",
        "M,N,K\r1,2,3\r",
        "M,N,K\n1,2,3",
        "\ufeffM,N,K\n1,2,3\n",
        " M , N,K \n 1, 2,\t3 \n",
        "\n\nM,N,K\n\n1,2,3\n\n\n",
        "M,N,K\n,,\n1,2,3\n , ,\n",
        '"M","N","K"\n"1", "2","3"\n',
        "M,N,K\n1,2,3,\n",
        "M,N,K\n1,2,3,,, \n",
        "M,N,K,\n1,2,3,\n",
        "M,N,K,\n1,2,3\n",
        ",M,N,K\n0,1,2,3\n",
        "Unnamed: 0,M,N,K\n0,1,2,3\n",
        "M,Unnamed: 1,N,K\n1,noise,2,3\n",
    ],
)
def test_the_same_row_in_every_form_that_tools_leave_behind(written, content):
    assert cells(written(content)) == [{"M": "1", "N": "2", "K": "3"}]


def test_rows_know_the_line_they_start_on(written):
    table = read_rows(written('A,B\n\n1,2\n"two\nlines",3\n,\n4,5\n'))
    assert [(row.line, row.cells["B"]) for row in table.rows] == [(3, "2"), (4, "3"), (7, "5")]


def test_a_header_alone_is_a_table_without_rows(written):
    for content in ("M,N,K", "M,N,K\n", "M,N,K\r\n\r\n"):
        table = read_rows(written(content), required=("M", "N", "K"))
        assert (table.header, table.rows) == (("M", "N", "K"), [])


def test_a_last_row_without_a_line_end_counts_in_a_file_that_others_write(written):
    assert cells(written("M,N\n1,2\n3,4")) == [{"M": "1", "N": "2"}, {"M": "3", "N": "4"}]


# What is refused


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff", " \n", ",,\n"])
def test_an_empty_file_is_no_table(written, content):
    assert "the file is empty; expected a line of column names" in refusal(written(content))


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    assert refusal(tmp_path / "none.csv") == "none.csv: no such file; expected a CSV file; check the path"
    assert "cannot be read (Is a directory)" in refusal(tmp_path)


def test_a_row_with_a_cell_too_many_is_refused_where_it_is(written):
    assert refusal(written("M,N,K\n1,2,3\n1,2,3,4\n")).startswith(
        "shapes.csv:3:4: the row has 4 cells and the header 3 columns; '4' belongs to none"
    )


@pytest.mark.parametrize("row", ["1,2", "1,2\n", "1,2\n4,5,6\n", "1"])
def test_a_row_with_a_cell_too_few_is_refused_whether_it_ends_or_not(written, row):
    message = refusal(written(f"M,N,K\n{row}"))
    first = row.split("\n")[0].count(",") + 2
    assert message.startswith(f"shapes.csv:2:{first}: the row has {first - 1} cells and the header 3 columns")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("M,N,K\n<<<<<<< HEAD\n1,2,3\n=======\n4,5,6\n>>>>>>> theirs\n", 2),
        ("<<<<<<< HEAD\nM,N,K\n=======\nM,N\n>>>>>>> x\n", 1),
        ("M,N,K\n1,2,3\n=======\n", 3),
        ("M,N,K\r\n1,2,3\r\n||||||| base\r\n", 3),
        ("M,N,K\n1,2,3\n>>>>>>> branch, with, commas\n", 3),
    ],
)
def test_conflict_markers_are_named(written, content, line):
    assert refusal(written(content)).startswith(f"shapes.csv:{line}:1: a conflict marker")


def test_a_cell_that_only_resembles_a_conflict_marker_is_a_cell(written):
    assert cells(written("M,N\n<<<,>\n=,=\n")) == [{"M": "<<<", "N": ">"}, {"M": "=", "N": "="}]


@pytest.mark.parametrize(
    ("header", "found", "meant"),
    [
        ("m,N,K", "'m'", "'M'"),
        ("M,N,Kk,K_", "'K_'", "'K'"),
        ("M,N,K,Bias", "'Bias'", "'bias'"),
        ("M,N,K,dtpye", "'dtpye'", "'dtype'"),
        ("M,N,K,d_type", "'d_type'", "'dtype'"),
        ("M,N,K,biass", "'biass'", "'bias'"),
        ("M,N,K,dtype1", "'dtype1'", "'dtype'"),
        ("M,N,K,dtypebf16x", "'dtypebf16x'", "'dtype'"),
    ],
)
def test_a_near_miss_in_spelling_is_named(written, header, found, meant):
    width = header.count(",") + 1
    message = refusal(
        written(f"{header}\n{','.join('1' * width)}\n"),
        required=("M", "N", "K"),
        known=("M", "N", "K", "dtype", "bias"),
    )
    place = header.split(",").index(found.strip("'")) + 1
    assert message.startswith(f"shapes.csv:1:{place}: unknown column {found}; expected {meant}")


@pytest.mark.parametrize(
    "header", ["M,N,K,B", "M,N,K,outdtype", "M,N,K,us1,us2", "M,N,K,mode1,mode2", "M,N,K,dtype,indtype"]
)
def test_another_column_is_not_taken_for_a_misspelling(written, header):
    row = ",".join("1" * (header.count(",") + 1))
    path = written(f"{header}\n{row}\n")
    assert len(cells(path, required=("M", "N", "K"), known=("M", "N", "K", "dtype", "us", "mode"))) == 1


def test_missing_columns_are_named_together(written):
    assert refusal(written("M,x,y\n1,2,3\n"), required=("M", "N", "K")) == (
        "shapes.csv:1: no columns N, K; the file has M, x, y; add what is missing"
    )


def test_a_file_without_a_header_is_told_so(written):
    message = refusal(written("1,2,3\n4,5,6\n"), required=("M", "N", "K"))
    assert message.startswith("shapes.csv:1:1: the first line holds numbers; expected column names, among them M, N, K")


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_is_named(written, separator):
    content = f"M{separator}N{separator}K\n1{separator}2{separator}3\n"
    assert f"separated by {separator!r}; expected commas" in refusal(written(content), required=("M", "N", "K"))
    assert f"separated by {separator!r}; expected commas" in refusal(written(content), required=())


def test_a_column_that_is_there_twice_is_refused(written):
    assert refusal(written("M,N,M\n1,2,3\n")).startswith("shapes.csv:1:3: column M is there twice, first as column 1")


def test_bytes_that_are_no_text_are_found(written):
    assert refusal(written(b"M,N\n1,2\n1,\xff\n")).startswith("shapes.csv:3: byte 0xff is not UTF-8")
    assert refusal(written(b"M,N\n1,2\n1,\0\0\n")).startswith("shapes.csv:3: a zero byte")
    assert "not UTF-8" in refusal(written("M,N\n1,2\n".encode("utf-16")))


@pytest.mark.parametrize("content", ['M,N\n1,2\n"1,2\n3,4\n', 'M,N\n1,2\n"1"x,2\n'])
def test_quotes_that_do_not_close_are_refused_where_they_open(written, content):
    assert refusal(written(content)).startswith("shapes.csv:3: ")


def test_an_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(CsvError("a.csv", "found", line=3, column=2)))
    assert (str(error), error.path, error.line, error.column) == ("a.csv:3:2: found", "a.csv", 3, 2)


# Files that we append to


def test_a_torn_last_line_is_dropped_with_a_warning(written):
    table = read_rows(written("M,N\n1,2\n3,4"), appended=True)
    assert [row.cells["M"] for row in table.rows] == ["1"]
    assert len(table.warnings) == 1
    assert table.warnings[0].endswith(
        "shapes.csv:3: the last line has no end (3 bytes), its write was cut off; dropped"
    )


@pytest.mark.parametrize(
    "garbage", [b"3", b"3,4,5", b'"3,4', b"\xff,1", b"\0\0\0", b"<<<<<<< HEAD", b"1,2" + b"\0" * 50]
)
def test_a_garbled_line_in_the_middle_is_skipped_and_the_rest_used(written, garbage):
    table = read_rows(written(b"M,N\n1,2\n" + garbage + b"\n5,6\n"), appended=True)
    assert [row.cells for row in table.rows] == [{"M": "1", "N": "2"}, {"M": "5", "N": "6"}]
    assert [warning.partition("shapes.csv:")[2][0] for warning in table.warnings] == ["3"]
    assert all(warning.endswith("; skipped") for warning in table.warnings)


def test_an_appended_file_with_a_torn_header_has_nothing_in_it(written):
    assert "the file is empty" in refusal(written("M,N"), appended=True)


TABLE = "M,N,name\n" + "".join(f"{i},{i * 7},v{i}é\n" for i in range(1, 8))


@given(cut=st.integers(TABLE.encode().index(b"\n") + 1, len(TABLE.encode())))
def test_wherever_a_write_is_cut_off_all_whole_rows_remain(tmp_path_factory, cut):
    data = TABLE.encode()[:cut]
    path = tmp_path_factory.mktemp("torn") / "appended.csv"
    path.write_bytes(data)
    table = read_rows(path, appended=True)
    assert len(table.rows) == data.count(b"\n") - 1
    assert all(row.cells["name"] == f"v{row.cells['M']}é" for row in table.rows)
    assert bool(table.warnings) == (not data.endswith(b"\n"))


# Any table

# Without carriage returns, which the csv module of Python 3.11 writes unquoted.
cell = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=12).map(str.strip)


@settings(max_examples=examples(300))
@given(st.data())
def test_whatever_the_csv_module_writes_is_read_back(tmp_path_factory, data):
    width = data.draw(st.integers(1, 5))
    header = [f"column{i}" for i in range(width)]
    rows = data.draw(st.lists(st.lists(cell, min_size=width, max_size=width), max_size=6))
    buffer = io.StringIO()
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    writer = csv.writer(
        buffer, lineterminator=end, quoting=data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    )
    writer.writerows([header, *rows])
    path = tmp_path_factory.mktemp("any") / "any.csv"
    path.write_bytes(buffer.getvalue().encode())
    told = [[r.strip() for r in row] for row in rows if any(r.strip() for r in row)]
    if any(line[:7] in ("<" * 7, ">" * 7, "=" * 7, "|" * 7) for row in told for r in row for line in r.split("\n")):
        return  # a conflict marker inside a cell is refused, as it should be
    assert [list(row.values()) for row in cells(path)] == told


@settings(max_examples=examples(300))
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_table_or_one_line_that_says_why_not(tmp_path_factory, content, appended):
    path = tmp_path_factory.mktemp("bytes") / "any.csv"
    path.write_bytes(content)
    said = None
    try:
        table = read_rows(path, appended=appended)
    except CsvError as error:
        said = str(error)
    if said is None:
        assert all(set(row.cells) == set(table.header) for row in table.rows)
    else:
        assert said.startswith(str(path))


def test_a_scan_reads_as_it_goes(written):
    path = written("M,N\n" + "1,2\n" * 50_000 + "1\n")
    scan = iter(CsvScan(path))
    assert next(scan).cells == {"M": "1", "N": "2"}
    with pytest.raises(CsvError, match=":50002:2:"):
        list(scan)


any_cell = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12).map(str.strip)


@settings(max_examples=examples(300))
@given(st.lists(any_cell, min_size=1, max_size=5))
def test_whatever_we_write_is_read_back(tmp_path_factory, row):
    path = tmp_path_factory.mktemp("ours") / "ours.csv"
    path.write_bytes((csv_line([f"column{i}" for i in range(len(row))]) + csv_line(row)).encode())
    if any(line[:7] in ("<" * 7, ">" * 7, "=" * 7, "|" * 7) for value in row for line in re.split("\r|\n", value)):
        return
    assert [list(read.values()) for read in cells(path)] == [row] * any(row)


# DataFrames


def test_columns_are_numeric_where_all_their_cells_are(written):
    frame = read_csv(written("M,us,bias,name,gap\n1,2.5,True,a,1\n,,,,\n2,inf,False,Null,\n"))
    assert {name: str(dtype) for name, dtype in frame.dtypes.items() if name != "name"} == {
        "M": "int64",
        "us": "float64",
        "bias": "bool",
        "gap": "Int64",
    }
    assert frame["M"].tolist() == [1, 2]
    assert frame["name"].isna().tolist() == [False, True]
    assert frame["gap"].isna().tolist() == [False, True]


def test_null_as_older_tables_write_it_is_no_text(written):
    frame = read_csv(written("us,tflops\nNull,1\n10.5,Null\n"))
    assert frame["us"].isna().tolist() == [True, False]
    assert frame["us"].max() == 10.5
    assert frame["tflops"].sort_values().tolist()[0] == 1


def test_a_frame_of_a_header_alone_has_its_columns(written):
    frame = read_csv(written("M,N,K"))
    assert (list(frame.columns), len(frame)) == (["M", "N", "K"], 0)


def test_a_frame_written_by_pandas_is_read_back(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"M": [1, 2], "us": [1.5, 2.0], "bias": [True, False], "name": ["a,b", 'c"d']})
    frame.to_csv(tmp_path / "frame.csv")
    pd.testing.assert_frame_equal(read_csv(tmp_path / "frame.csv"), frame)


def test_the_package_hands_out_its_names_and_loads_pandas_for_frames_only(written):
    path = written("M\n1\n")
    code = (
        "import sys; from aiter_tuning import tables; from aiter_tuning.tables import "
        "read_csv, CsvError, TunedCsv, TunedRow, Checkpoint, FileLock; print('pandas' in sys.modules);"
        f"read_csv({str(path)!r}); print('pandas' in sys.modules, 'torch' in sys.modules, dir(tables)[:0]);"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\nTrue False []\n"
