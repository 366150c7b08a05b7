"""Tables that other tools and older versions wrote: read by the rules of docs/tables.md, one test a rule."""

from __future__ import annotations

import pytest

from aiter_tuning.keys import Key
from aiter_tuning.tables.csv_error import CsvError
from aiter_tuning.tables.csv_reader import read_csv
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tables.tuned_row import TunedRow

GEMM = Key(M=int, N=int, K=int, dtype="bf16", bias=False)
BATCHED = Key(B=int, M=int, N=int, K=int)
SHAPE = {"M": 1, "N": 2, "K": 3}


@pytest.fixture
def table(tmp_path):
    def write(header, *rows, key=GEMM):
        path = tmp_path / "tuned.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        return TunedCsv(path, key)

    return write


def test_the_layout_of_bf16_products(table):
    found = table(
        "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw",
        "gfx950,256,1,2,3,False,torch.bfloat16,torch.bfloat16,False,False,asm,7,3,20.1108,_ZN5kernelE,0.0104,280.3,1042.8",
    ).rows()
    assert found == [
        TunedRow("gfx950", 256, "", GEMM.parse(SHAPE), 7, 3, 20.1108, "_ZN5kernelE", 280.3, 1042.8, 0.0104)
    ]


def test_the_layout_of_8_bit_products(table):
    (found,) = table(
        "gfx,cu_num,M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
        "gfx942,304,1,2,3,ck,7,0,10.2154,a8w8_1x128,4.93,2465.42,0.0",
    ).rows()
    assert (found.kernelId, found.us, found.errRatio) == (7, 10.2154, 0.0)


def test_the_layout_of_batched_products(table):
    (found,) = table(
        "gfx,cu_num,B,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
        "gfx942,304,16,32,1280,8192,28,0,68.9821,rowwise,155.6551,5004.8295,0.0",
        key=BATCHED,
    ).rows()
    assert dict(found.shape) == {"B": 16, "M": 32, "N": 1280, "K": 8192}


@pytest.mark.parametrize(
    "header", ["GFX,CU_NUM,m,n,k,US,KernelName,KERNELID", "gfx,Cu_Num,M,n,K,Us,kernelname,kernelid"]
)
def test_columns_in_another_case_are_read_as_ours_with_a_note_for_each(table, header):
    tuned = table(header, "gfx942,304,1,2,3,1.5,name,9")
    found = tuned.find("gfx942", 304, "MI300X", SHAPE)
    assert (found.us, found.kernelName, found.kernelId) == (1.5, "name", 9)
    assert any(
        w.endswith("tuned.csv:1: column " + header.split(",")[-2] + " read as kernelName") for w in tuned.warnings
    )


@pytest.mark.parametrize("name", ["kernel_name", "kernelNam", "KernelName ,kernelname", "conf", "configs"])
def test_a_column_that_nearly_names_what_a_row_says_is_refused(table, name):
    with pytest.raises(CsvError, match=r":1:\d+: unknown column"):
        table(f"gfx,cu_num,M,N,K,us,{name}", "gfx942,304,1,2,3,1.5,a" + ",b" * name.count(",")).rows()


@pytest.mark.parametrize("name", ["ksplit", "kernelName1", "us1", "block_m", "err1", "run_1stage", "libtype"])
def test_columns_of_other_operators_are_not_taken_for_ours(table, name):
    assert len(table(f"gfx,cu_num,M,N,K,{name},us", "gfx942,304,1,2,3,x,1.5").rows()) == 1


@pytest.mark.parametrize("blank", ["", "Null", "nan", "NA", "<NA>"])
def test_what_pandas_leaves_for_nothing_is_nothing(table, blank):
    tuned = table("gfx,cu_num,M,N,K,bias,kernelId,us,errRatio", f"gfx942,304,1,2,3,{blank},{blank},1.5,{blank}")
    (found,) = tuned.rows()
    assert (found.shape["bias"], found.kernelId, found.errRatio) == (False, 0, 0.0)


def test_a_number_column_with_null_in_it_is_one_of_numbers_and_stays_one(table):
    tuned = table(
        "gfx,cu_num,M,N,K,us,kernelId,errRatio", "gfx942,304,1,2,3,1.5,Null,Null", "gfx942,304,2,2,3,2.5,4,0.5"
    )
    tuned.update([TunedRow("gfx942", 304, "", {**SHAPE, "M": 4}, 1, 0, 9.0, "k")])
    frame = read_csv(tuned.path)
    assert [frame[name].dtype.kind for name in ("us", "kernelId", "errRatio", "M")] == ["f", "i", "f", "i"]
    assert sorted(row.us for row in tuned.rows()) == [1.5, 2.5, 9.0]


@pytest.mark.parametrize(("cell", "fraction"), [("0.6%", 0.006), ("5.1 %", 0.051), ("100%", 1.0), ("0.0%", 0.0)])
def test_a_percentage_is_a_fraction(table, cell, fraction):
    (found,) = table("gfx,cu_num,M,N,K,us,errRatio", f"gfx942,304,1,2,3,1.5,{cell}").rows()
    assert found.errRatio == pytest.approx(fraction)


@pytest.mark.parametrize("cell", ["1_0.5", "0x1p3", "1.5us", "1,5", "١.٥", "%", "1.5%%"])
def test_what_only_python_takes_for_a_number_is_refused(table, cell):
    with pytest.raises(CsvError, match=r":2:6: us is "):
        table("gfx,cu_num,M,N,K,us", f'gfx942,304,1,2,3,"{cell}"').rows()


@pytest.mark.parametrize(("cell", "flag"), [("1.0", True), ("True", True), ("nan", False), ("", False), ("0.0", False)])
def test_a_flag_in_any_spelling(table, cell, flag):
    (found,) = table("gfx,cu_num,M,N,K,bias,us", f"gfx942,304,1,2,3,{cell},1.5").rows()
    assert found.shape["bias"] is flag


def test_a_flag_whose_column_is_absent_is_its_default(table):
    (found,) = table("gfx,cu_num,M,N,K,us", "gfx942,304,1,2,3,1.5").rows()
    assert found.shape["bias"] is False


@pytest.mark.parametrize("row", [",256,1,2,3,1.5", "gfx950,,1,2,3,1.5", "gfx950,0,1,2,3,1.5"])
def test_a_row_that_does_not_say_for_which_device_it_is_matches_none(table, row):
    """256 compute units are an MI355X and a gfx1250 alike."""
    tuned = table("gfx,cu_num,M,N,K,us", row)
    assert tuned.rows() == []
    assert all(tuned.find(gfx, cu, "", SHAPE) is None for gfx in ("gfx950", "gfx1250", "") for cu in (256, 0))
    assert "the row does not say for" in tuned.warnings[-1]


@pytest.mark.parametrize("gfx", ["#sm90", "gfx 942", "-", "sm90;", "942", "0"])
def test_what_is_no_arch_is_refused(table, gfx):
    with pytest.raises(CsvError, match=r":2:1: gfx is .*expected an arch such as gfx942"):
        table("gfx,cu_num,M,N,K,us", f"{gfx},304,1,2,3,1.5").rows()


def test_archs_with_features_are_archs(table):
    assert len(table("gfx,cu_num,M,N,K,us", "gfx942:sramecc+:xnack-,304,1,2,3,1.5", "x86-64-v4,2,1,2,3,2").rows()) == 2
