"""A config's JSON: as it always was for plain configs, and never an error for others."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.triton_autotune.config_json import config_data, config_signature, encode, matches

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text().filter(lambda t: not t.startswith("$")), inner),
    max_leaves=8,
)
ANYTHING = st.recursive(
    PLAIN | st.floats() | st.binary() | st.complex_numbers(),
    lambda inner: st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text(), inner),
    max_leaves=8,
)


@given(PLAIN)
def test_plain_values_are_kept_as_they_are(value):
    assert encode(value) == value


@given(ANYTHING)
def test_every_value_becomes_json_and_always_the_same(value):
    text = json.dumps(encode(value))
    assert json.dumps(encode(value)) == text
    assert json.loads(text) == encode(value)


@given(st.lists(st.integers()))
def test_a_tuple_is_not_a_list(items):
    assert encode(tuple(items)) != encode(items)


class Broken:
    def __repr__(self):
        raise RuntimeError("no")


def test_an_object_is_told_by_its_name_and_never_by_its_address():
    assert encode(object()) == encode(object())
    assert encode(len) == {"$object": "builtins.len"}
    assert "unprintable" in encode(Broken())["repr"]


def test_a_config_with_dtypes_tuples_and_constexprs_has_a_signature(kernels):
    import torch
    import triton
    import triton.language as tl

    config = triton.Config({"T": tl.float16, "P": (1, 2), "C": tl.constexpr(4), "D": torch.bfloat16, "F": len})
    other = triton.Config({"T": tl.bfloat16, "P": (1, 2), "C": tl.constexpr(4), "D": torch.bfloat16, "F": len})
    held = json.loads(config_signature(config))
    assert held["kwargs"] == {
        "T": {"$dtype": "fp16"},
        "P": {"$tuple": [1, 2]},
        "C": {"$constexpr": 4},
        "D": {"$torch.dtype": "torch.bfloat16"},
        "F": {"$object": "builtins.len"},
    }
    assert matches(held, config)
    assert not matches(held, other)


def test_an_old_entry_with_a_tuple_as_a_list_still_stands_for_its_config():
    import triton

    held = {"kwargs": {"P": [1, 2]}, "num_warps": 4, "num_stages": 3}
    assert matches(held, triton.Config({"P": (1, 2)}))
    assert not matches(held, triton.Config({"P": (2, 1)}))


@pytest.mark.parametrize("field", ["num_ctas", "maxnreg", "num_warps", "num_stages"])
def test_every_field_but_the_hooks_tells_configs_apart(field):
    import triton

    plain = triton.Config({"BLOCK": 1})
    hooked = triton.Config({"BLOCK": 1}, pre_hook=lambda args: None)
    changed = triton.Config({"BLOCK": 1}, **{field: 2})
    assert config_signature(plain) == config_signature(hooked) != config_signature(changed)


def test_the_data_of_a_config_is_live_and_a_copy(kernels):
    config = kernels.config(32)
    data = config_data(config)
    data["kwargs"]["BLOCK"] = 0
    assert config.kwargs["BLOCK"] == 32
    assert config_signature(None) == "none"
    assert list(data) == ["kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override"]
