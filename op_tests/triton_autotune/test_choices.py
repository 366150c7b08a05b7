"""Choice logs: their text, their files, their comparison."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.triton_autotune import compare_choices, read_choices
from aiter_tuning.triton_autotune.choices import ChoiceLog, Place, digest_of, write_choices

LOGS = st.dictionaries(st.text(max_size=3), st.sampled_from("xyz"), max_size=4)


def test_a_log_tells_what_changed_since_a_position():
    log = ChoiceLog()
    log.put(Place("sm90", "k", "t", "a"), "1", "table")
    _, position = log.since(0)
    assert log.since(position)[0] == {}
    log.put(Place("sm90", "k", "t", "a"), "1", "table")
    assert log.since(position)[0] == {}
    log.put(Place("sm90", "k", "t", "a"), "2", "timed")
    assert log.since(position)[0] == {"sm90|k|a": "2"}
    assert log.sources() == {"sm90|k|a": "timed"}


def test_kernels_of_one_name_are_told_apart_in_the_same_way_whichever_came_first():
    texts = []
    for order in ("ab", "ba"):
        log = ChoiceLog()
        for tag in order:
            log.put(Place("sm90", "k", tag, "x"), tag, "timed")
        texts.append(log.choices())
    assert texts[0] == texts[1] == {"sm90|k#a|x": "a", "sm90|k#b|x": "b"}


def test_a_file_is_read_back_and_anything_else_is_refused(tmp_path):
    write_choices(tmp_path / "log.json", {"a": "1"}, {"a": "table"})
    assert read_choices(tmp_path / "log.json") == {"a": "1"}
    for text in ("{", "{}", '{"format": "aiter_tuning.choices/1", "choices": {"a": 1}}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match=r"x\.json"):
            read_choices(tmp_path / "x.json")


@given(LOGS, LOGS)
def test_a_comparison_finds_contradictions_only_and_is_symmetric(left, right):
    found = compare_choices(left, right)
    assert {key for key, _, _ in found} == {key for key in left if key in right and left[key] != right[key]}
    assert [(key, b, a) for key, a, b in found] == compare_choices(right, left)
    assert (digest_of(left) == digest_of(right)) is (left == right)
