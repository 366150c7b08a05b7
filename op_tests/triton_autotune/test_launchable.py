"""The walk to the cheapest config that a device can run."""

from types import SimpleNamespace

import pytest

from aiter_tuning.triton_autotune.launchable import (
    Limits,
    NothingLaunchableError,
    grid_obstacle,
    metadata_obstacle,
    walk,
    what_stands_against,
)
from aiter_tuning.triton_autotune.selection import choose

LIMITS = Limits(shared_bytes=232_448)


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"shared": 232_448, "num_warps": 32, "tmem_size": 512}, None),
        ({"shared": 0, "num_warps": 4, "tmem_size": None}, None),
        ({"shared": 640_000, "num_warps": 4}, "640000 bytes of shared memory, the device has 232448"),
        ({"shared": 1, "num_warps": 4, "tmem_size": 513}, "513 columns"),
        ({"shared": 1, "num_warps": 64}, "2048 threads"),
    ],
)
def test_what_compiled_may_still_not_fit(metadata, said):
    reason = metadata_obstacle(SimpleNamespace(**metadata), LIMITS)
    assert (said in reason) if said else reason is None


@pytest.mark.parametrize(
    ("grid", "fits"), [((1,), True), ((2**31 - 1, 65535, 65535), True), ((2**31,), False), ((1, 65536), False)]
)
def test_a_grid_has_limits_too(grid, fits):
    assert (grid_obstacle(grid) is None) is fits
    assert grid_obstacle(None) is None


class Compiler:
    """A kernel that compiles to what its config says, fails to, or runs (which it must not)."""

    def __init__(self, by_block):
        self.by_block = by_block
        self.asked = []

    def run(self, *args, grid, warmup, BLOCK, **options):
        assert warmup is True
        self.asked.append(BLOCK)
        outcome = self.by_block[BLOCK]
        if isinstance(outcome, Exception):
            raise outcome
        return SimpleNamespace(metadata=SimpleNamespace(shared=outcome, num_warps=4))


def tuner(kernels, by_block):
    compiler = Compiler(by_block)
    return SimpleNamespace(
        fn=compiler, arg_names=["n"], keys=[], configs=kernels.three_configs(), base_fn=None
    ), compiler


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr("aiter_tuning.triton_autotune.launchable.device_limits", lambda: LIMITS)


def test_the_walk_takes_the_cheapest_that_compiles_and_fits_and_says_what_it_passed_over(kernels, caplog):
    fake, compiler = tuner(kernels, {32: ValueError("tl.dot needs 16"), 64: 640_000, 128: 1000})
    found = walk(fake, fake.configs, (5,), {"grid": (1,), "warmup": False})
    assert found.config is fake.configs[0]
    assert compiler.asked == [32, 64, 128]
    assert "tl.dot needs 16" in found.passed_over[0]
    assert "shared memory" in found.passed_over[1]
    assert "passed over 2 cheaper" in caplog.text


def test_what_was_passed_over_is_part_of_the_choice(kernels):
    fake, _ = tuner(kernels, {32: 640_000, 64: 1000, 128: 1000})
    other, _ = tuner(kernels, {32: ValueError("no"), 64: 1000, 128: 1000})
    picks = [
        choose(t, t.configs, (5,), {"grid": (1,), "warmup": False}, on_miss="launchable") for t in (fake, fake, other)
    ]
    assert [pick.config.kwargs["BLOCK"] for pick in picks] == [64, 64, 64]
    assert picks[0].source == "launchable"
    assert picks[0].detail == picks[1].detail != picks[2].detail


def test_where_nothing_fits_the_error_has_every_reason(kernels):
    fake, _ = tuner(kernels, {32: ValueError("one"), 64: 640_000, 128: ValueError("two")})
    with pytest.raises(NothingLaunchableError, match=r"one.*shared memory.*two"):
        walk(fake, fake.configs, (5,), {"grid": (1,), "warmup": False})


def test_a_device_fault_is_not_a_reason_to_go_on(kernels):
    fake, compiler = tuner(kernels, {32: RuntimeError("an illegal memory access"), 64: 1, 128: 1})
    with pytest.raises(RuntimeError, match="illegal"):
        walk(fake, fake.configs, (5,), {"grid": (1,), "warmup": False})
    assert compiler.asked == [32]


def test_a_config_is_checked_with_the_grid_and_the_hook_that_its_launch_would_have(kernels):
    seen = []
    fake, _ = tuner(kernels, {32: 1})
    config = kernels.config(32, pre_hook=lambda args: seen.append(args["BLOCK"]))
    reason = what_stands_against(fake, config, (5,), {"grid": lambda meta: (1, 10**6 * meta["BLOCK"]), "warmup": False})
    assert "grid axis 1" in reason
    assert seen == [32]


def test_under_the_interpreter_the_cheapest_fits(kernels):
    from aiter_tuning.triton_autotune import choice_log, use_policy

    with use_policy({"mode": "pinned", "modules": [kernels.MODULE], "on_miss": "launchable"}):
        assert kernels.launch(kernels.autotuned()) == 32
        assert next(iter(choice_log().values())).endswith(";pinned")
