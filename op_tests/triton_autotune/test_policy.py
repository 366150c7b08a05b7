"""A policy is a value: checked where it is made, and the same whatever the environment holds."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.triton_autotune import (
    DEFAULT_CONFIG_INVARIANT,
    DEFAULT_MODULES,
    AutotunePolicy,
    active_policy,
    coerce_policy,
    set_deterministic_mode,
    use_deterministic_mode,
)

FORMER_VARIABLES = [
    *(f"MCORE_AUTOTUNE_{name}" for name in ("MODE", "RECORD", "MODULES", "TABLE_PATH", "ON_MISS", "VERIFY", "CHAOS")),
    *("MCORE_DET_TUNE_RECORD", "DET_AUTOTUNE_PIN_MODULES", "DET_AUTOTUNE_VERIFY", "TRITON_AUTOTUNE_BLOCK_SIZE_M"),
]


def test_the_defaults_are_those_that_existing_users_rely_on():
    policy = AutotunePolicy()
    assert policy.modules == DEFAULT_MODULES == ("mamba_ssm", "transformer_engine", "megatron.core")
    assert len(policy.config_invariant) == len(set(DEFAULT_CONFIG_INVARIANT)) == 6
    assert not any("bwd" in name for name in DEFAULT_CONFIG_INVARIANT)
    assert (policy.mode, policy.on_miss, policy.verify_every, policy.chaos) == (None, "min_cost", 0, False)


@pytest.mark.parametrize(
    ("policy", "deterministic", "mode"),
    [
        ({}, False, "auto"),
        ({}, True, "pinned"),
        ({"record_path": "r"}, False, "record"),
        ({"record_path": "r"}, True, "record"),
        ({"mode": "pinned", "record_path": "r"}, False, "pinned"),
        ({"mode": "auto"}, True, "auto"),
    ],
)
def test_an_explicit_mode_wins_over_recording_and_recording_over_determinism(policy, deterministic, mode):
    given_policy = AutotunePolicy(**policy)
    assert given_policy.resolve(deterministic=deterministic).mode == mode
    assert given_policy == AutotunePolicy(**policy)


def test_the_override_decides_and_none_follows_torch_again(monkeypatch):
    import torch

    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert use_deterministic_mode()
    set_deterministic_mode(False)
    assert not use_deterministic_mode()
    assert AutotunePolicy().resolve().mode == "auto"
    set_deterministic_mode(None)
    assert AutotunePolicy().resolve().mode == "pinned"


def test_mamba_deterministic_makes_nothing_deterministic(monkeypatch):
    monkeypatch.setenv("MAMBA_DETERMINISTIC", "1")
    assert not use_deterministic_mode()
    set_deterministic_mode(True)
    assert use_deterministic_mode()


@pytest.mark.parametrize("name", FORMER_VARIABLES)
def test_no_environment_variable_changes_a_policy(monkeypatch, name):
    monkeypatch.setenv(name, "pinned")
    assert AutotunePolicy().resolve() == AutotunePolicy(mode="auto")


def test_values_are_normalised_and_the_callers_lists_are_not_kept():
    modules, sizes = ["a"], {"BLOCK_N": 2, "BLOCK_M": 1}
    policy = AutotunePolicy(
        modules=modules, table_path=[Path("~/t"), "u"], record_path=Path("~/r"), block_sizes=sizes, extra_modules=["b"]
    )
    modules.append("c")
    sizes["BLOCK_K"] = 3
    assert policy.modules == ("a",)
    assert policy.block_sizes == (("BLOCK_M", 1), ("BLOCK_N", 2))
    assert policy.table_path == (str(Path("~/t").expanduser()), "u")
    assert policy.record_path == str(Path("~/r").expanduser())
    assert hash(policy) == hash(dataclasses.replace(policy))
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.mode = "auto"


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "fast"},
        {"mode": "record"},
        {"on_miss": "guess"},
        {"on_stale": "maybe"},
        {"verify_every": -1},
        {"record_path": "dir/"},
        {"block_sizes": {"GROUP": 1}},
        {"block_sizes": {"BLOCK-M": 1}},
        {"block_sizes": {"BLOCK": 0}},
        {"block_sizes": {"BLOCK": True}},
        {"block_sizes": [("BLOCK", 1), ("BLOCK", 2)]},
        {"block_sizes": [("BLOCK",)]},
    ],
)
def test_a_value_that_means_nothing_is_a_value_error(options):
    with pytest.raises(ValueError):
        AutotunePolicy(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"modules": "mamba_ssm"},
        {"modules": [""]},
        {"modules": [1]},
        {"config_invariant": None},
        {"table_path": b"t"},
        {"record_path": ""},
        {"record_path": 3},
        {"block_sizes": None},
        {"verify_every": True},
        {"verify_every": 1.0},
        {"verify_strict": "false"},
        {"chaos": 1},
        {"enumerate_autotuners": None},
        {"arch": ""},
        {"arch": 90},
    ],
)
def test_a_value_of_the_wrong_type_is_a_type_error(options):
    with pytest.raises(TypeError):
        AutotunePolicy(**options)


def test_a_mapping_may_leave_fields_null_and_may_not_invent_any():
    assert AutotunePolicy.from_mapping({"mode": "pinned", "modules": None}) == AutotunePolicy(mode="pinned")
    with pytest.raises(TypeError, match="another, moed"):
        AutotunePolicy.from_mapping({"moed": "pinned", "another": 1})


def test_policies_come_from_policies_mappings_and_none_only():
    policy = AutotunePolicy(mode="pinned")
    assert coerce_policy(None) is None
    assert coerce_policy(policy) is policy
    assert coerce_policy({"mode": "pinned"}) == policy
    with pytest.raises(TypeError, match="list"):
        coerce_policy(["pinned"])


@pytest.mark.parametrize(
    ("options", "intercepts"),
    [
        ({"mode": "auto"}, False),
        ({}, False),
        ({"mode": "auto", "chaos": True}, False),
        ({"mode": "auto", "verify_every": 1}, True),
        ({"mode": "auto", "enumerate_autotuners": True}, True),
        ({"mode": "pinned"}, True),
        ({"mode": "record", "record_path": "r"}, True),
    ],
)
def test_triton_is_left_alone_unless_something_has_to_be_seen(options, intercepts):
    assert AutotunePolicy(**options).intercepts is intercepts


@pytest.mark.parametrize(
    ("patterns", "module", "covered"),
    [
        (["mamba_ssm"], "mamba_ssm", True),
        (["mamba_ssm"], "mamba_ssm.ops.triton", True),
        (["mamba_ssm"], "mamba_ssm_extra", False),
        (["fla.*"], "fla.ops.kda", True),
        (["fla.*.gla"], "fla.ops.gla.chunk", True),
        (["fla.*"], "flash", False),
        (["*"], "anything.at.all", True),
        ([], "mamba_ssm", False),
    ],
)
def test_scope_ends_at_a_dot_and_takes_globs(patterns, module, covered):
    assert AutotunePolicy(modules=patterns).in_scope(module) is covered


def test_extra_modules_are_added_to_the_default_scope():
    policy = AutotunePolicy(extra_modules=("fla", "vllm.*"))
    assert policy.in_scope("fla.ops")
    assert policy.in_scope("mamba_ssm.ops")
    assert not AutotunePolicy().in_scope("fla.ops")


def test_an_empty_list_of_invariant_kernels_pins_them_too():
    name = DEFAULT_CONFIG_INVARIANT[0]
    assert AutotunePolicy().is_invariant(name)
    assert not AutotunePolicy(config_invariant=()).is_invariant(name)


def test_no_policy_is_active_before_an_install():
    assert active_policy() is None


@given(st.dictionaries(st.from_regex(r"BLOCK[A-Z_]{0,4}", fullmatch=True), st.integers(1, 2**31)))
def test_block_sizes_mean_the_same_as_a_mapping_and_as_pairs_in_any_order(sizes):
    pairs = list(reversed(sizes.items()))
    assert AutotunePolicy(block_sizes=sizes) == AutotunePolicy(block_sizes=pairs)
    assert dict(AutotunePolicy(block_sizes=pairs).block_sizes) == sizes


def test_importing_it_loads_neither_torch_nor_triton_nor_the_rest_of_the_package():
    code = (
        "import sys, aiter_tuning.triton_autotune as a; a.AutotunePolicy; a.install(); a.load; a.merge_records\n"
        "print([m for m in ('torch','triton','pandas','numpy','rich','scipy') if m in sys.modules],"
        " [m for m in sys.modules if m.startswith('aiter_tuning.') and 'triton_autotune' not in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] ['aiter_tuning.lazy_names', 'aiter_tuning.status']"
