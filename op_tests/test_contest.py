"""Contests as values: who comes when, and what counts."""

import math

from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.contest import Block, Contest, block_order, untimed
from op_tests.pool.contest_rules import Rounds

CONTEST = Contest(Rounds(), seed=1)


def block(number: int, us: float = 1.0) -> Block:
    return Block(number, (0,), (us,))


@given(st.lists(st.integers(0, 100), unique=True, max_size=12), st.integers(), st.integers(1, 50))
def test_an_order_is_a_shuffle_that_seed_and_number_alone_decide(active: list[int], seed: int, number: int) -> None:
    order = block_order(active, seed, number)
    assert sorted(order) == sorted(active) and order == block_order(active, seed, number)


def test_orders_differ_between_blocks_and_between_seeds() -> None:
    orders = {block_order(range(6), seed, number) for seed in range(10) for number in range(10)}
    assert len(orders) > 80


def test_everyone_comes_first_about_equally_often() -> None:
    first = [block_order(range(4), 20240917, number)[0] for number in range(400)]
    assert all(60 < first.count(index) < 140 for index in range(4))


@given(st.lists(st.integers(1, 6), max_size=20))
def test_a_block_replaces_that_of_its_number_and_voids_later_ones(numbers: list[int]) -> None:
    contest = CONTEST
    for us, number in enumerate(numbers):
        contest = contest.after(block(number, us), "here")
        assert contest.blocks[-1] == block(number, us) and contest.device == "here"
    kept = [known.number for known in contest.blocks]
    assert kept == sorted(set(kept))


def test_blocks_count_on_the_device_that_they_were_measured_on() -> None:
    contest = CONTEST.after(block(1), "GPU-a").after(block(2), "GPU-a")
    assert contest.on("GPU-a") is contest
    assert contest.on("GPU-b").blocks == () and contest.on("GPU-b").device == "GPU-b"
    assert CONTEST.on("GPU-b") is CONTEST


def test_whoever_has_no_time_in_a_block_is_told() -> None:
    assert untimed(Block(3, (2, 0, 1), (math.nan, 5.0, math.nan))) == (2, 1) and untimed(block(1)) == ()
