"""What is left to measure, given what is on record."""

from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.family import Candidate
from aiter_tuning.tuner.resume import remaining_work

NAMES = ("a", "b", "c", "d")
ORDER = tuple(Candidate(name) for name in NAMES)
OK = Measurement(Status.ok, 10.0, 0.0)
CRASH = Measurement.failed(Status.crash, "boom")


def left(finished, suspicions=None, attempts=None, retry=frozenset()):
    return remaining_work(ORDER, finished, suspicions or {}, attempts or {}, retry)


def names(candidates):
    return tuple(candidate.name for candidate in candidates)


def test_without_a_record_everything_is_left_in_order():
    assert names(left({}).todo) == NAMES


def test_finished_candidates_are_not_measured_again_whatever_they_came_to():
    remaining = left({"a": OK, "c": CRASH})

    assert names(remaining.todo) == ("b", "d")
    assert remaining.done == {"a": OK, "c": CRASH}


def test_a_suspect_runs_last():
    assert names(left({"b": OK}, {"a": 1}).todo) == ("c", "d", "a")


def test_a_suspect_that_was_running_at_two_deaths_is_a_crash_and_not_run_again():
    remaining = left({}, {"a": 2}, {"a": 2})

    assert names(remaining.todo) == ("b", "c", "d")
    assert remaining.convicted["a"].status is Status.crash
    assert remaining.convicted["a"].attempt == 2
    assert "2 times" in remaining.convicted["a"].detail


def test_retry_takes_back_the_statuses_it_names_and_no_others():
    timeout = Measurement.failed(Status.timeout, "slow")
    remaining = left({"a": OK, "b": CRASH, "c": timeout}, retry=frozenset({Status.crash}))

    assert names(remaining.todo) == ("b", "d")
    assert remaining.done == {"a": OK, "c": timeout}


def test_retry_crash_gives_a_convicted_suspect_another_chance():
    assert names(left({}, {"a": 3}, retry=frozenset({Status.crash})).todo) == ("b", "c", "d", "a")


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([OK, CRASH])),
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4)),
    st.frozensets(st.sampled_from([Status.crash, Status.ok])),
)
def test_every_candidate_is_done_convicted_or_left_and_only_one_of_them(finished, suspicions, retry):
    remaining = remaining_work(ORDER, finished, suspicions, {}, retry)

    assert sorted([*remaining.done, *remaining.convicted, *names(remaining.todo)]) == sorted(NAMES)
