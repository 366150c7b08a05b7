"""What an arch name says to a compiler, and what fits there."""

from types import SimpleNamespace

import pytest

from aiter_tuning.measure.compile_target import SHARED_BYTES, CompileTarget, Limits, limits_of, misfit, target_of


@pytest.mark.parametrize(
    ("gfx", "target"),
    [
        ("sm90", CompileTarget("cuda", 90, 32)),
        ("sm100", CompileTarget("cuda", 100, 32)),
        ("gfx90a", CompileTarget("hip", "gfx90a", 64)),
        ("gfx942", CompileTarget("hip", "gfx942", 64)),
        ("gfx942:sramecc+:xnack-", CompileTarget("hip", "gfx942", 64)),
        ("gfx950", CompileTarget("hip", "gfx950", 64)),
        ("gfx1100", CompileTarget("hip", "gfx1100", 32)),
        ("gfx1250", CompileTarget("hip", "gfx1250", 32)),
        ("x86-64-v4", None),
        ("", None),
        ("smart", None),
        ("sm90x", None),
    ],
)
def test_an_arch_name_is_a_target(gfx, target):
    assert target_of(gfx) == target


def test_every_arch_with_limits_is_one_to_compile_for():
    assert all(target_of(gfx) is not None for gfx in SHARED_BYTES)


def test_what_the_driver_states_wins_over_the_table():
    assert limits_of("sm90").shared_bytes == 232448
    assert limits_of("sm90", {"shared_bytes": "1000"}).shared_bytes == 1000
    assert limits_of("gfx942:xnack-").shared_bytes == 65536


def test_an_unknown_arch_has_no_limit_that_could_be_wrong():
    assert limits_of("sm999").shared_bytes is None
    assert misfit(SimpleNamespace(shared=1 << 30, num_warps=4), limits_of("sm999"), 32) is None


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ({"shared": 100, "num_warps": 4}, None),
        ({"shared": 101, "num_warps": 4}, (101, 100, "shared memory")),
        ({"shared": 0, "num_warps": 32}, None),
        ({"shared": 0, "num_warps": 33}, (33 * 32, 1024, "threads")),
        ({"shared": 0, "num_warps": 4, "tmem_size": 512}, None),
        ({"shared": 0, "num_warps": 4, "tmem_size": 513}, (513, 512, "tensor memory")),
        ({"shared": None, "num_warps": 4, "tmem_size": None}, None),
    ],
)
def test_a_kernel_fits_up_to_each_limit(needs, expected):
    assert misfit(SimpleNamespace(**needs), Limits(100), 32) == expected
