"""Imports without the garbage collector."""

import gc

import pytest

from aiter_tuning import mp_tuner
from aiter_tuning.pool.uncollected import uncollected
from op_tests.pool.fault_candidates import task, write_result

MADE = 100_000
kept = []


def fails_after_much():
    with uncollected():
        kept.extend([number] for number in range(MADE))
        raise ImportError


@pytest.fixture
def collector():
    """As it is, and afterwards again."""
    enabled = gc.isenabled()
    yield
    gc.enable() if enabled else gc.disable()
    kept.clear()


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_meanwhile_and_what_was_made_is_not_looked_at_again(collector, enabled):
    gc.enable() if enabled else gc.disable()
    collections = [generation["collections"] for generation in gc.get_stats()]
    frozen = gc.get_freeze_count()
    with pytest.raises(ImportError):
        fails_after_much()
    assert [generation["collections"] for generation in gc.get_stats()] == collections
    assert gc.get_freeze_count() >= frozen + MADE
    assert gc.isenabled() is enabled


def is_frozen(x, y):
    assert gc.get_freeze_count() > 100_000, "what torch brought"
    assert gc.isenabled()
    return write_result(x, y)


def test_what_a_worker_imports_is_frozen_and_its_candidates_are_collected_as_ever(one_lane):
    (result,) = mp_tuner([task(("s", 0), is_frozen)], [(1, ())], pool=one_lane, return_status=True)
    assert result.status == "ok", result.detail
