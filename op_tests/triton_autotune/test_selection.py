"""Which candidate a launch gets; no clock, no launch."""

import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.triton_autotune import TunedTable, autotune_configs, set_deterministic_mode
from aiter_tuning.triton_autotune.arch import arch_tag
from aiter_tuning.triton_autotune.interception import install
from aiter_tuning.triton_autotune.policy import AutotunePolicy
from aiter_tuning.triton_autotune.selection import (
    chaos_choice,
    choose,
    deterministic_choice,
    filter_configs_by_block_sizes,
    warn_if_mamba_env_ignored,
)

ARGS, KWARGS = (None, None, None, 7), {}


@pytest.fixture
def tuner(kernels):
    return kernels.autotuned()


@pytest.fixture
def name(kernels):
    return f"{kernels.MODULE}.add_kernel"


def pick(tuner, entries=None, **options):
    table = TunedTable("sm90", entries) if entries is not None else None
    return choose(tuner, tuner.configs, ARGS, KWARGS, table=table, **options)


def test_an_untuned_kernel_gets_the_cheapest_config_and_one_warning(tuner, caplog):
    for _ in range(3):
        assert pick(tuner).config is tuner.configs[2]
    assert caplog.text.count("No pre-tuned config") == 1


def test_the_order_is_exact_key_then_any_key_then_block_sizes_then_the_miss(tuner, name, kernels):
    exact, star = {"n=7": kernels.entry(128)}, {"*": kernels.entry(64)}
    forced = {"block_sizes": (("BLOCK", 32),), "on_miss": "error"}
    assert pick(tuner, {name: exact | star}, **forced)[1:] == ("table", "")
    assert pick(tuner, {name: exact | star}).config.kwargs["BLOCK"] == 128
    assert pick(tuner, {name: star}, **forced).config.kwargs["BLOCK"] == 64
    assert pick(tuner, {name: star}).source == "table*"
    assert pick(tuner, {}, **forced) == (tuner.configs[2], "block_sizes", "")
    with pytest.raises(RuntimeError, match=rf"{name} on .*n=7"):
        pick(tuner, {}, on_miss="error")


def test_a_table_may_name_a_kernel_without_its_module_but_the_full_name_comes_first(tuner, name, kernels):
    bare = {"add_kernel": {"n=7": kernels.entry(128)}}
    assert pick(tuner, bare).config.kwargs["BLOCK"] == 128
    assert pick(tuner, bare | {name: {"*": kernels.entry(64)}}).config.kwargs["BLOCK"] == 64


def test_the_choice_is_the_live_config_with_its_hook(kernels, name):
    hooked = kernels.config(64, pre_hook=lambda args: None)
    tuner = kernels.autotuned(configs=[kernels.config(128), hooked])
    table = TunedTable("sm90", {name: {"*": kernels.entry(64)}})
    assert deterministic_choice(tuner, tuner.configs, ARGS, KWARGS, table=table) is hooked


def test_a_stale_exact_entry_falls_to_the_entry_for_any_key(tuner, name, kernels, caplog):
    entries = {name: {"n=7": kernels.entry(999), "*": kernels.entry(64)}}
    assert pick(tuner, entries).config.kwargs["BLOCK"] == 64
    assert "n=7] names no candidate" in caplog.text
    assert TunedTable("sm90", entries).lookup(name, "n=7", tuner.configs) is None


def test_block_sizes_must_all_agree_and_a_kernel_without_the_name_never_matches(kernels):
    configs = kernels.three_configs()
    assert filter_configs_by_block_sizes(configs, ()) is None
    assert filter_configs_by_block_sizes(configs, (("BLOCK", 64),)) == [configs[1]]
    assert filter_configs_by_block_sizes(configs, (("BLOCK", 64), ("BLOCK_N", 1))) is None


@given(st.integers(2, 40), st.integers(0, 1000))
def test_chaos_differs_between_neighbouring_ranks_for_certain(count, rank):
    from types import SimpleNamespace

    tuner = SimpleNamespace(arg_names=["n"], keys=["n"])
    before = os.environ["RANK"]
    try:
        os.environ["RANK"] = str(rank)
        first, again = (chaos_choice(tuner, range(count), (5,), {}) for _ in range(2))
        os.environ["RANK"] = str(rank + 1)
        second = chaos_choice(tuner, range(count), (5,), {})
    finally:
        os.environ["RANK"] = before
    assert first == again != second


def test_the_rank_comes_from_slurm_without_torchrun_and_is_zero_without_either(monkeypatch, tuner, caplog):
    picks = []
    for name, value in (("RANK", "1"), ("SLURM_PROCID", "1"), ("SLURM_PROCID", "2")):
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.delenv("SLURM_PROCID", raising=False)
        monkeypatch.setenv(name, value)
        picks.append(chaos_choice(tuner, tuner.configs, ARGS, KWARGS))
    assert picks[0] is picks[1] is not picks[2]
    monkeypatch.delenv("SLURM_PROCID")
    chaos_choice(tuner, tuner.configs, ARGS, KWARGS)
    assert "counts as rank 0" in caplog.text


def test_a_decorator_gets_one_config_in_deterministic_mode_and_the_list_otherwise(kernels):
    configs = kernels.three_configs()
    assert autotune_configs(configs) is configs
    set_deterministic_mode(True)
    assert autotune_configs(configs) == [configs[2]]
    assert autotune_configs([]) == []


def test_the_active_policys_block_sizes_decide_at_the_decorator_and_the_environments_do_not(kernels, monkeypatch):
    configs = kernels.three_configs()
    set_deterministic_mode(True)
    monkeypatch.setenv("TRITON_AUTOTUNE_BLOCK_BLOCK", "garbage")
    install(AutotunePolicy(mode="auto", block_sizes={"BLOCK": 128}))
    assert autotune_configs(configs) == [configs[0]]


def test_the_ignored_mamba_variable_is_mentioned_once_and_in_auto_mode_only(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("MAMBA_DETERMINISTIC", "1")
    warn_if_mamba_env_ignored(AutotunePolicy(mode="pinned"))
    assert not caplog.records
    install({"mode": "auto"})
    install({"mode": "auto", "chaos": True})
    assert caplog.text.count("MAMBA_DETERMINISTIC") == 1


class FakeCuda:
    def __init__(self, capabilities, hip=None):
        self.capabilities, self.hip = capabilities, hip
        self.current = 0

    def current_device(self):
        return self.current

    def device_count(self):
        return len(self.capabilities)

    def get_device_capability(self, index):
        return self.capabilities[index]

    def get_device_properties(self, index):
        from types import SimpleNamespace

        return SimpleNamespace(gcnArchName=self.hip)


@pytest.mark.parametrize(
    ("capability", "hip", "tag"),
    [((9, 0), None, "sm90"), ((10, 3), None, "sm103"), ((12, 0), None, "sm120"), ((9, 0), "gfx90a:sramecc+", "gfx90a")],
)
def test_the_architecture_is_the_drivers_name_for_it(monkeypatch, capability, hip, tag):
    import torch

    from aiter_tuning.triton_autotune import arch

    arch._tag_of.cache_clear()
    monkeypatch.setattr(torch, "cuda", FakeCuda([capability], hip))
    monkeypatch.setattr(torch.version, "hip", "6.4" if hip else None)
    assert arch_tag() == tag
    assert not arch.has_mixed_archs()
    arch._tag_of.cache_clear()


def test_without_a_device_the_architecture_is_unknown_and_asked_for_again(monkeypatch):
    import torch

    from aiter_tuning.triton_autotune import arch

    def no_driver():
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "current_device", no_driver)
    assert arch_tag() == "unknown"
    arch._tag_of.cache_clear()
    monkeypatch.setattr(torch, "cuda", FakeCuda([(9, 0), (10, 0)]))
    assert arch_tag() == "sm90"
    assert arch.has_mixed_archs()
    arch._tag_of.cache_clear()
