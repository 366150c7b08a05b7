"""Configs that must not be chosen."""

import json

import pytest

from aiter_tuning.triton_autotune.deny import allowed, parse_rules, read_rules


def blocks(kernels, *rules, names=("m.k", "k"), arch="sm90", triton="3.9.0"):
    left = allowed(parse_rules(list(rules), "here"), names, arch, triton, kernels.three_configs())
    return [config.kwargs["BLOCK"] for config in left]


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ({"kernel": "m.*", "config": {"kwargs": {"BLOCK": 64}}}, [128, 32]),
        ({"kernel": "k", "config": {"kwargs": {"BLOCK": 64}, "num_warps": 8}}, [128, 64, 32]),
        ({"kernel": "m.k", "config": {"num_warps": 4}}, []),
        ({"kernel": "m.k"}, []),
        ({"kernel": "m.k", "arch": "sm10?"}, [128, 64, 32]),
        ({"kernel": "m.k", "arch": "sm9*", "triton": "3.6*"}, [128, 64, 32]),
        ({"kernel": "other"}, [128, 64, 32]),
        ({"kernel": "m.k", "config": {"kwargs": {"GROUP": 1}}}, [128, 64, 32]),
    ],
)
def test_a_rule_denies_the_configs_that_agree_with_all_it_names(kernels, rule, left):
    assert blocks(kernels, rule) == left


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("{}", "a list"),
        ('[{"arch": "sm90"}]', "deny rule 0: expected an object that names a 'kernel'"),
        ('[{"kernel": "k", "warps": 1}]', "unknown field.s. warps"),
        ('[{"kernel": "k", "config": {"BLOCK": 1}}]', "unknown field.s. BLOCK"),
        ('[{"kernel": "k", "config": []}]', "'config' is an object"),
        ('[{"kernel": "k", "arch": 90}]', "are strings"),
    ],
)
def test_a_rule_that_could_mean_nothing_is_refused_with_its_file(tmp_path, text, said):
    path = tmp_path / "deny.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"deny.json.*{said}"):
        read_rules(path)


def test_without_a_file_there_are_no_rules(tmp_path):
    assert read_rules(tmp_path / "deny.json") == ()


def test_a_pinned_kernel_and_a_recorded_one_pass_over_denied_configs(kernels, tmp_path, table_dir):
    from aiter_tuning.triton_autotune import use_policy

    folder = table_dir({f"{kernels.MODULE}.add_kernel": {"*": kernels.entry(64)}})
    rules = [{"kernel": "*.add_kernel", "config": {"kwargs": {"BLOCK": size}}, "reason": "racy"} for size in (64, 32)]
    (tmp_path / "tables" / "deny.json").write_text(json.dumps(rules))
    policy = {"modules": [kernels.MODULE], "table_path": [folder], "arch": "sm90"}
    tuner = kernels.autotuned()
    with use_policy(policy | {"mode": "pinned"}):
        assert kernels.launch(tuner) == 128
    with use_policy(policy | {"record_path": str(tmp_path / "r")}):
        assert kernels.launch(tuner) == 128


def test_a_kernel_with_every_config_denied_cannot_be_launched(kernels, tmp_path, table_dir):
    from aiter_tuning.triton_autotune import use_policy

    folder = table_dir({}, deny=[{"kernel": "*"}])
    with (
        use_policy({"modules": [kernels.MODULE], "table_path": [folder], "arch": "sm90", "mode": "pinned"}),
        pytest.raises(RuntimeError, match=r"No valid configs for .*add_kernel on sm90"),
    ):
        kernels.launch(kernels.autotuned())
