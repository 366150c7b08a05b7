"""Files of shapes: distinct shapes in order, one warning, and no row taken for what it is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.keys import Key
from aiter_tuning.tables.csv_reader import CsvError
from aiter_tuning.tables.shapes import read_shapes

GEMM = Key(M=int, N=int, K=int, dtype="fp32", bias=False)


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "untuned.csv"
        path.write_text(content, newline="")
        return path

    return write


def refusal(path, key=GEMM):
    with pytest.raises(CsvError) as refused:
        read_shapes(path, key)
    return str(refused.value).removeprefix(f"{path.parent}/")


def test_sizes_alone_are_enough_where_the_rest_has_defaults(written):
    file = read_shapes(written("M,N,K\n1, 256, 7168\n2, 256, 7168"), GEMM)
    assert file.shapes == (
        {"M": 1, "N": 256, "K": 7168, "dtype": "fp32", "bias": False},
        {"M": 2, "N": 256, "K": 7168, "dtype": "fp32", "bias": False},
    )
    assert (file.rows, file.duplicates, file.warnings) == (2, 0, ())


def test_a_shape_that_is_there_twice_in_any_spelling_counts_once(written):
    file = read_shapes(
        written("M,N,K,bias,dtype\n1,2,3,False,fp32\n4,5,6,,\n1.0,2,3,0,torch.float32\n1,2,3,True,float\n"), GEMM
    )
    assert [(shape["M"], shape["bias"]) for shape in file.shapes] == [(1, False), (4, False), (1, True)]
    assert (file.rows, file.duplicates) == (4, 1)


def test_a_header_alone_is_no_shapes_and_no_error(written):
    assert read_shapes(written("M,N,K"), GEMM).shapes == ()


def test_a_tuned_table_serves_as_a_file_of_shapes(written):
    file = read_shapes(
        written(
            "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw\n"
            "gfx950,256,1,2,3,False,torch.bfloat16,torch.bfloat16,False,False,asm,7,3,20.1,k,0.01,280.3,1042.8\n"
            "gfx942,304,1,2,3,False,torch.bfloat16,torch.bfloat16,False,False,asm,7,3,-1,k,0.01,280.3,1042.8\n"
        ),
        GEMM,
    )
    assert file.shapes == ({"M": 1, "N": 2, "K": 3, "dtype": "bf16", "bias": False},)
    assert len(file.warnings) == 1
    assert file.warnings[0].endswith(": columns outdtype, scaleAB, bpreshuffle unknown to this family, ignored")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("M,N,K\n1,2,3\n4,x,6\n", "untuned.csv:3:2: N is 'x', expected a whole number of 1 or more; correct the cell"),
        ("M,N,K\n-1,2,3\n", "untuned.csv:2:1: M is '-1', expected a whole number of 1 or more; correct the cell"),
        ("M,N,K\n1,0,3\n", "untuned.csv:2:2: N is '0', expected a whole number of 1 or more; correct the cell"),
        ("M,N,K\n1,,3\n", "untuned.csv:2:2: N is missing, expected a whole number of 1 or more; correct the cell"),
        ("M,x,N,K,bias\n1,0,2,3,maybe\n", "untuned.csv:2:5: bias is 'maybe', expected True or False; correct the cell"),
    ],
)
def test_a_wrong_cell_is_named_by_file_line_and_column(written, content, message):
    assert refusal(written(content)) == message


def test_a_missing_and_a_misspelled_column_are_named(written):
    assert refusal(written("M,N\n1,2\n")) == "untuned.csv:1: no column K; the file has M, N; add what is missing"
    assert refusal(written("M,N,K,biass\n1,2,3,True\n")).startswith(
        "untuned.csv:1:4: unknown column 'biass'; expected 'bias'"
    )


def test_columns_that_differ_in_case_only_are_read_as_ours_with_a_word_about_it(written):
    file = read_shapes(written("m,n,k,Bias\n1,2,3,True\n"), GEMM)
    assert file.shapes == ({"M": 1, "N": 2, "K": 3, "dtype": "fp32", "bias": True},)
    assert file.warnings[-1].endswith(":1: column Bias read as bias")


def test_two_columns_that_could_both_be_meant_are_refused(written):
    assert refusal(written("M,N,k,K ,BIAS,Bias\n1,2,9,3,True,False\n")).startswith(
        "untuned.csv:1:5: unknown column 'BIAS'; expected 'bias'"
    )


def test_no_shape_is_guessed_where_a_file_has_no_column_of_one(written):
    defaults = Key(tokens=64, dtype="bf16")
    assert refusal(written("a,b\n1,2\n"), defaults).startswith("untuned.csv:1: no column of a shape; expected tokens")


def test_a_repeated_shape_and_an_unended_line_are_told_with_their_places(written):
    file = read_shapes(written("M,N,K\n1,2,3\n4,5,6\n1,2,3"), GEMM)
    assert (file.lines, file.repeated, file.unended) == ((2, 3), ((4, 2),), 4)
    assert read_shapes(written("M,N,K\n1,2,3\n"), GEMM).unended is None


@pytest.mark.parametrize("true", ["True", "1", "1.0", "yes"])
@pytest.mark.parametrize("flag", ["scaleAB", "bpreshuffle", "use_g1u1", "is_varlen"])
def test_a_row_with_an_unknown_true_flag_is_refused(written, flag, true):
    message = refusal(written(f"M,N,K,{flag}\n1,2,3,False\n1,2,3,{true}\n"))
    assert message.startswith(f"untuned.csv:3:4: {flag} is {true}, which this family does not know")


def test_a_lone_1_is_a_flag_only_where_the_column_is_one_of_flags(written):
    assert len(read_shapes(written("B,M,N,K\n1,1,2,3\n1,4,5,6\n"), GEMM).shapes) == 2
    assert "which this family does not know" in refusal(written("M,N,K,scaleAB\n1,2,3,1\n"))
    assert "which this family does not know" in refusal(written("M,N,K,swizzled\n1,2,3,0\n1,2,3,1\n"))


def test_another_output_dtype_is_refused_and_an_equal_one_is_not(written):
    header = "M,N,K,dtype,outdtype\n"
    assert len(read_shapes(written(header + "1,2,3,torch.bfloat16,bf16\n1,2,3,bf16,\n"), GEMM).shapes) == 1
    message = refusal(written(header + "1,2,3,torch.bfloat16,torch.float32\n"))
    assert message.startswith("untuned.csv:2:5: outdtype is torch.float32 where dtype is bf16")
    assert "where dtype is fp32" in refusal(written("M,N,K,outdtype\n1,2,3,torch.bfloat16\n"))


def test_a_batch_is_left_out_with_a_warning_that_names_it(written):
    file = read_shapes(written("B,M,N,K\n16, 1, 1280, 8192\n8, 1, 1280, 8192\n"), GEMM)
    assert (len(file.shapes), file.duplicates) == (1, 1)
    assert file.warnings == (f"{file.path}: column B unknown to this family, ignored",)


def test_a_field_that_the_family_knows_is_no_unknown_flag(written):
    key = Key(M=int, N=int, K=int, scaleAB=False, outdtype="bf16", dtype="bf16")
    file = read_shapes(written("M,N,K,dtype,outdtype,scaleAB\n1,2,3,bf16,fp32,True\n"), key)
    assert file.shapes[0]["scaleAB"] is True
    assert file.warnings == ()


shape = st.fixed_dictionaries(
    {"M": st.integers(1, 9), "N": st.integers(1, 9), "K": st.integers(1, 3), "bias": st.booleans()}
)


@given(st.lists(shape, max_size=30), st.permutations(["M", "N", "K", "bias"]))
def test_every_distinct_shape_is_counted_whatever_the_order_of_columns(tmp_path_factory, shapes, columns):
    path = tmp_path_factory.mktemp("shapes") / "untuned.csv"
    rows = [",".join(str(shape[name]) for name in columns) for shape in shapes]
    path.write_text("\n".join([",".join(columns), *rows]))
    file = read_shapes(path, GEMM)
    distinct = list({GEMM.values(shape): GEMM.parse(shape) for shape in shapes}.values())
    assert list(file.shapes) == distinct
    assert (file.rows, file.duplicates) == (len(shapes), len(shapes) - len(distinct))


def test_calls_of_a_shape_are_added_up_and_its_rows_are_no_duplicates(tmp_path):
    path = tmp_path / "misses.csv"
    path.write_text("M,N,K,calls\n1,2,3,1\n4,5,6,1\n1,2,3,41\n7,8,9,\n4,5,6,0.5\n")
    file = read_shapes(path, Key(M=int, N=int, K=int))
    assert [shape["M"] for shape in file.shapes] == [1, 4, 7]
    assert file.calls == (42, 1.5, 1)
    assert (file.rows, file.duplicates, file.warnings) == (3, 0, ())


def test_a_column_of_calls_is_neither_unknown_nor_a_flag(tmp_path):
    path = tmp_path / "misses.csv"
    path.write_text("M,calls\n1,1\n2,0\n")
    file = read_shapes(path, Key(M=int))
    assert (len(file.shapes), file.calls, file.warnings) == (2, (1, 0), ())


@pytest.mark.parametrize("count", ["-1", "often", "inf", "nan?"])
def test_calls_that_are_no_number_are_refused_with_their_place(tmp_path, count):
    path = tmp_path / "misses.csv"
    path.write_text(f"M,calls\n1,1\n2,{count}\n")
    with pytest.raises(CsvError, match=r"misses.csv:3:2: calls is .*; expected a number of 0 or more"):
        read_shapes(path, Key(M=int))


def test_a_file_of_calls_whose_writer_was_cut_off_loses_the_broken_lines_with_a_warning(tmp_path):
    path = tmp_path / "misses.csv"
    path.write_text("M,N,K,calls\n1,2,3,1\n4,5\n7,8,9,2\n1,2,")
    file = read_shapes(path, Key(M=int, N=int, K=int))
    assert [(shape["M"], calls) for shape, calls in zip(file.shapes, file.calls, strict=True)] == [(1, 1), (7, 2)]
    assert [warning.split(":")[1] for warning in file.warnings] == ["3", "5"]
    path.write_text("M,N,K\n1,2,3\n4,5\n")
    with pytest.raises(CsvError, match=r"misses\.csv:3"):
        read_shapes(path, Key(M=int, N=int, K=int))
