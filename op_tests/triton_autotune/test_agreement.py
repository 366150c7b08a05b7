"""Whether ranks chose alike: two real processes with gloo, and the comparison as a function."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.triton_autotune.agreement import Agreement, compare, describe_offenders
from aiter_tuning.triton_autotune.choices import ChoiceLog


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the two ranks saw in each situation."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "op_tests.triton_autotune.rank_process", str(folder)]
    processes = [subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
    seen = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    return {name: (seen[0][name], seen[1][name]) for name in seen[0]}


def test_ranks_that_agree_exchange_no_more_than_a_digest_and_only_when_it_is_due(ranks):
    for seen in ranks["agree"]:
        assert seen == {"first": [True, 0], "again": [None, True, 0], "said": []}


def test_chaos_makes_ranks_differ_and_the_first_one_warns(ranks):
    first, second = ranks["chaos"]
    assert first["result"] is second["result"] is False
    assert second["said"] == []
    (text,) = first["said"]
    assert text.startswith("Ranks disagree on 1 autotune choice(s)")
    assert "add_kernel" in text
    assert text.count(";pinned") == 2


def test_a_disagreement_is_told_once(ranks):
    assert [seen["again"] for seen in ranks["chaos"]] == [True, True]


def test_strict_raises_on_every_rank_with_the_same_text(ranks):
    first, second = ranks["strict"]
    assert first == second
    assert "Ranks disagree on 1" in first


def test_what_one_rank_alone_has_chosen_is_no_disagreement(ranks):
    for seen in ranks["one rank only"]:
        assert seen == {"result": True, "exchanges": 1, "said": []}


def test_a_choice_that_contradicts_an_earlier_check_is_caught(ranks):
    for seen in ranks["contradicted later"]:
        assert seen == {"before": True, "after": False}


def test_a_collective_that_fails_loses_nothing(ranks):
    for seen in ranks["failed collective"]:
        assert seen == {"failed": "the network went away", "next": False}


def test_each_group_has_a_memory_of_its_own_and_an_exchange_of_its_size(ranks):
    for seen in ranks["groups"]:
        assert (seen["alone"], seen["together"], seen["all"]) == (True, False, 2)


def test_without_a_process_group_there_is_nothing_to_check():
    assert Agreement(ChoiceLog()).verify(None, strict=True)


@pytest.mark.parametrize(
    ("everyones", "agreed", "offenders"),
    [
        ([{"a": "1"}, {"a": "1"}], {}, set()),
        ([{"a": "1"}, {"a": "2"}], {}, {"a"}),
        ([{"a": "1"}, {}], {"a": "2"}, {"a"}),
        ([{"a": "1"}, {"b": "2"}], {"a": "1"}, set()),
    ],
)
def test_only_what_was_chosen_is_compared_with_others_and_with_what_was_agreed(everyones, agreed, offenders):
    assert set(compare(everyones, agreed)[0]) == offenders


CHOICES = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("12"), max_size=4)


@given(st.lists(CHOICES, min_size=1, max_size=4), CHOICES)
def test_the_ranks_order_does_not_count_and_what_is_agreed_has_one_value(everyones, agreed):
    offenders, settled = compare(everyones, agreed)
    assert (offenders, settled) == compare(everyones[::-1], agreed)
    assert offenders.keys().isdisjoint(settled)
    for key, value in settled.items():
        assert {choices[key] for choices in everyones if key in choices} == {value}


def test_a_person_is_shown_ten_at_most():
    text = describe_offenders({f"k{number:02}": ["1", "2"] for number in range(13)})
    assert len(text.splitlines()) == 12
    assert "and 3 more" in text
