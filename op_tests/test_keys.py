"""Keys: every spelling of a shape ends as the same values, and what cannot be meant is refused by column."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.keys import REQUIRED, Key, KeyFieldError, full_key, normalise_dtype

GEMM = Key(M=int, N=int, K=int, dtype="bf16", bias=False)


def test_a_type_makes_a_field_required_and_a_default_gives_the_type():
    by_name = {field.name: field for field in GEMM.fields}
    assert by_name["M"].default is REQUIRED
    assert by_name["M"].type is int
    assert (by_name["dtype"].type, by_name["dtype"].default, by_name["dtype"].is_dtype) == (str, "bf16", True)
    assert (by_name["bias"].type, by_name["bias"].default, by_name["bias"].is_dtype) == (bool, False, False)
    assert GEMM.columns == ("M", "N", "K", "dtype", "bias")
    assert GEMM.required == ("M", "N", "K")


@pytest.mark.parametrize("size", ["64", " 64", "64.0", "64.", "+64", 64, 64.0])
def test_a_size_is_read_however_a_table_spells_it(size):
    parsed = GEMM.parse({"M": size, "N": 1, "K": 1})
    assert parsed["M"] == 64
    assert type(parsed["M"]) is int


@pytest.mark.parametrize("size", ["0", "-1", "x", "1.5", "1e3", "1_000", "٣", True, [1], "inf", 0, -0.0, 2.5])
def test_what_is_no_size_is_refused_with_its_column(size):
    with pytest.raises(KeyFieldError) as refused:
        GEMM.parse({"M": 1, "N": size, "K": 1})
    assert refused.value.column == "N"
    assert refused.value.expected == "a whole number of 1 or more"
    assert len(str(refused.value)) < 150


def test_a_count_with_a_default_may_be_zero():
    key = Key(M=int, pad=4)
    assert key.parse({"M": 1, "pad": "0"}) == {"M": 1, "pad": 0}
    assert key.parse({"M": 1}) == {"M": 1, "pad": 4}
    with pytest.raises(KeyFieldError, match=r"pad is '-1', expected a whole number of 0 or more"):
        key.parse({"M": 1, "pad": "-1"})


@pytest.mark.parametrize(
    ("spelling", "flag"),
    [
        ("True", True),
        ("true", True),
        ("1", True),
        ("1.0", True),
        ("yes", True),
        (1, True),
        (1.0, True),
        (True, True),
        ("False", False),
        ("FALSE", False),
        ("0", False),
        ("0.0", False),
        ("no", False),
        (0, False),
        ("", False),
        ("Null", False),
        (None, False),
        (float("nan"), False),
    ],
)
def test_a_flag_is_understood_and_a_blank_one_is_its_default(spelling, flag):
    assert GEMM.parse({"M": 1, "N": 1, "K": 1, "bias": spelling})["bias"] is flag


@pytest.mark.parametrize("spelling", ["2", "maybe", "-1", 2])
def test_no_flag_is_guessed(spelling):
    with pytest.raises(KeyFieldError, match=r"bias is .*, expected True or False"):
        GEMM.parse({"M": 1, "N": 1, "K": 1, "bias": spelling})


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("torch.bfloat16", "bf16"),
        ("bfloat16", "bf16"),
        ("BF16", "bf16"),
        (" bf16 ", "bf16"),
        ("torch.float16", "fp16"),
        ("half", "fp16"),
        ("float", "fp32"),
        ("torch.float32", "fp32"),
        ("torch.float8_e4m3fn", "fp8"),
        ("torch.float8_e4m3fnuz", "fp8_e4m3fnuz"),
        ("torch.float8_e5m2", "fp8_e5m2"),
        ("torch.float8_e5m2fnuz", "fp8_e5m2fnuz"),
        ("torch.int8", "int8"),
        ("i8", "int8"),
        ("torch.float4_e2m1fn_x2", "fp4"),
    ],
)
def test_a_dtype_has_one_short_name(spelling, name):
    assert GEMM.parse({"M": 1, "N": 1, "K": 1, "dtype": spelling})["dtype"] == name
    assert normalise_dtype(name) == name


def test_the_8_bit_float_types_stay_apart():
    names = {normalise_dtype(f"torch.float8_{kind}") for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")}
    assert len(names) == 4


def test_an_unknown_dtype_is_refused():
    with pytest.raises(KeyFieldError, match="dtype is 'bf17', expected a dtype such as bf16"):
        GEMM.parse({"M": 1, "N": 1, "K": 1, "dtype": "bf17"})


def test_a_missing_required_field_is_named():
    with pytest.raises(KeyFieldError, match="K is missing"):
        GEMM.parse({"M": 1, "N": 1})
    with pytest.raises(KeyFieldError, match="K is missing"):
        GEMM.parse({"M": 1, "N": 1, "K": " "})


def test_text_and_numbers_have_their_fields_too():
    key = Key(act=str, scale=float, mode="QuantType.No")
    assert key.parse({"act": " Silu ", "scale": "1e-2"}) == {"act": "Silu", "scale": 0.01, "mode": "QuantType.No"}
    for row, column in (({"act": "a\nb", "scale": 1}, "act"), ({"act": "a", "scale": "inf"}, "scale")):
        with pytest.raises(KeyFieldError) as refused:
            key.parse(row)
        assert refused.value.column == column


@pytest.mark.parametrize("declared", [None, [], bytes, b"x", 1j, -1, float("nan"), float("inf"), "a\nb"])
def test_a_key_that_cannot_work_is_refused_where_it_is_declared(declared):
    with pytest.raises(ValueError, match="key field 'x'"):
        Key(x=declared)


@pytest.mark.parametrize("name", ["gfx", "us", "config", "status", "candidate", "detail"])
def test_a_field_may_not_take_a_column_of_the_tables(name):
    with pytest.raises(ValueError, match=name):
        Key(**{name: int})


def test_a_key_needs_a_field():
    with pytest.raises(ValueError, match="at least one field"):
        Key()


def test_the_label_leaves_defaults_out_and_tells_the_dtype():
    assert GEMM.label({"M": 64, "N": 4096, "K": 4096}) == "M=64 N=4096 K=4096 dtype=bf16"
    assert GEMM.label({"M": 1, "N": 2, "K": 3, "dtype": "half", "bias": 1}) == "M=1 N=2 K=3 dtype=fp16 bias=True"


def test_the_full_key_depends_on_the_device_and_the_shape_and_on_nothing_else():
    shape = GEMM.parse({"M": 64, "N": 128, "K": 256})
    turned = dict(reversed(shape.items()))
    assert full_key("sm90", 132, "NVIDIA H200", shape) == full_key(" sm90", 132, "NVIDIA  H200 ", turned)
    for other in (("sm90", 132, "NVIDIA H100"), ("sm100", 132, "NVIDIA H200"), ("sm90", 114, "NVIDIA H200")):
        assert full_key(*other, shape) != full_key("sm90", 132, "NVIDIA H200", shape)
    assert full_key("sm90", 132, "NVIDIA H200", {**shape, "bias": True}) != full_key("sm90", 132, "NVIDIA H200", shape)


def test_a_key_survives_pickling():
    copy = pickle.loads(pickle.dumps(GEMM))
    assert copy == GEMM
    assert copy.fields[0].default is REQUIRED
    error = pickle.loads(pickle.dumps(KeyFieldError("M", "'x'", "a size")))
    assert str(error) == "M is 'x', expected a size"


sizes = st.integers(1, 2**63 - 1)
line = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)


@given(sizes, st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.sampled_from(["bf16", "fp8_e5m2"]))
def test_what_is_formatted_is_parsed_back(size, scale, flag, dtype):
    key = Key(M=int, scale=float, flag=False, dtype="fp32")
    shape = key.parse({"M": size, "scale": scale, "flag": flag, "dtype": dtype})
    cells = key.format(shape)
    assert all(isinstance(cell, str) for cell in cells.values())
    assert key.parse(cells) == shape
    assert key.values(cells) == key.values(shape)
    hash(key.values(shape))


@given(st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.booleans(), st.binary(), st.lists(st.none())))
def test_whatever_is_given_is_a_value_or_one_clear_refusal(value):
    key = Key(M=int, scale=float, flag=False, dtype="fp32", act=str, pad=0)
    row = {"M": 1, "scale": 1.0, "act": "a"}
    for column in key.columns:
        refused = None
        try:
            shape = key.parse({**row, column: value})
        except KeyFieldError as error:
            refused = error
        if refused is None:
            assert key.parse(key.format(shape)) == shape
        else:
            assert refused.column == column
            assert "\n" not in str(refused)


def test_keys_import_nothing_heavy():
    code = "import sys, aiter_tuning.keys; print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("size", [2**63, "9223372036854775808", "+100000000000000000000.0", "9" * 19, "9" * 5000])
def test_a_number_that_no_column_holds_is_called_too_large(size):
    told = r"M is too large \(.*\), expected a whole number up to 9223372036854775807"
    with pytest.raises(KeyFieldError, match=told) as refused:
        Key(M=int).parse({"M": size})
    assert len(str(refused.value)) < 150
    with pytest.raises(KeyFieldError, match="expected a whole number of 1 or more"):
        Key(M=int).parse({"M": f"-{size}"})
    assert Key(M=int).parse({"M": 2**63 - 1}) == {"M": 2**63 - 1}
