"""Which config is the cheapest."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.triton_autotune.cost import cheapest, cheapest_first, estimate_config_cost


def config(num_warps=4, num_stages=1, **kwargs):
    return SimpleNamespace(kwargs=kwargs, num_warps=num_warps, num_stages=num_stages)


@pytest.mark.parametrize(
    ("kwargs", "cost"),
    [
        ({"BLOCK_M": 64, "BLOCK_N": 32, "GROUP_M": 8}, 2048),
        ({"BLOCK_M": 64, "BM": 2, "TILE_K": 3}, 64),
        ({"BLOCK_FLAG": False, "BLOCK_M": 64}, 0),
        ({"BLOCK": "x"}, 1),
        ({"BM": 64, "BN": 32, "BK": 16, "GROUP": 8}, 32768),
        ({"BT": 64, "BV": 32, "IS_VARLEN": True, "BS": 2}, 4096),
        ({"TILE_M": 4, "Q_BLOCK": 2, "BLK_N": 3}, 24),
        ({"BM": True, "B": 9, "BIAS": 7}, 1),
        ({}, 1),
    ],
)
def test_the_cost_is_the_volume_of_the_tile_under_whatever_name_it_goes(kwargs, cost):
    assert estimate_config_cost(config(**kwargs)) == (cost, 4)


def test_stages_multiply_and_warps_break_ties_and_then_the_first_wins():
    first, second = config(BLOCK=64, num_warps=4), config(BLOCK=64, num_warps=4)
    assert cheapest([config(BLOCK=64, num_stages=2), config(BLOCK=64, num_warps=8), first, second]) is first
    assert estimate_config_cost(config(BLOCK=64, num_stages=None, num_warps=None)) == (64, 1)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)), min_size=1))
def test_the_walk_starts_at_the_cheapest_and_never_gets_cheaper(sizes):
    configs = [config(BLOCK=b, num_stages=s, num_warps=w) for b, s, w in sizes]
    order = cheapest_first(configs)
    assert order[0] is cheapest(configs)
    costs = [estimate_config_cost(c) for c in order]
    assert costs == sorted(costs)
