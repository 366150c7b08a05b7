"""Recordings into a table: by vote as ever, or by the time that a choice costs."""

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.triton_autotune import count_votes, disagreement_report, disagreements, merge_records, merge_votes
from aiter_tuning.triton_autotune.identity import Fingerprint
from aiter_tuning.triton_autotune.merge import any_key_configs, judge, judge_all, provenance
from aiter_tuning.triton_autotune.recording import Recording, Tuning


@pytest.fixture
def write(tmp_path, kernels):
    def files(*blocks, arch="sm90"):
        paths = []
        for rank, block in enumerate(blocks):
            path = tmp_path / f"{arch}.rank{rank}.json"
            path.write_text(json.dumps({arch: {"k": {"a": kernels.entry(block), "same": kernels.entry(1)}}}))
            paths.append(path)
        return paths

    return files


def test_most_votes_win_and_the_disagreement_is_reported(write, kernels):
    paths = write(64, 128, 64)
    assert merge_records(paths)["sm90"]["k"] == {"a": kernels.entry(64), "same": kernels.entry(1)}
    report = disagreement_report(paths)
    assert list(report) == [("sm90", "k", "a")]
    assert sorted(report["sm90", "k", "a"].values()) == [1, 2]


def test_a_tie_goes_to_the_first_json_text_where_128_comes_before_32(write, kernels):
    assert merge_records(write(32, 128))["sm90"]["k"]["a"] == kernels.entry(128)


def test_the_order_of_files_does_not_count(write):
    paths = write(32, 128, 64, 64)
    assert merge_records(paths) == merge_records(reversed(paths))
    assert count_votes(map(str, paths)) == count_votes(paths)


VOTES = st.dictionaries(
    st.tuples(*[st.sampled_from("ab")] * 3),
    st.dictionaries(st.sampled_from(["1", "2", "3"]), st.integers(1, 5), min_size=1),
)


@given(VOTES)
def test_no_config_without_a_vote_wins_and_none_with_fewer(votes):
    counted = {key: Counter(counts) for key, counts in votes.items()}
    merged = merge_votes(counted)
    for (arch, kernel, key), counts in counted.items():
        winner = json.dumps(merged[arch][kernel][key])
        assert counts[winner] == max(counts.values())
    assert set(disagreements(counted)) == {key for key, counts in counted.items() if len(counts) > 1}


def times(**medians):
    return {config: (ms, ms * 0.995, ms * 1.005) for config, ms in medians.items()}


def test_by_regret_the_config_that_is_never_bad_wins_over_the_one_that_wins_more_often():
    verdict = judge([times(a=1.0, b=1.01), times(a=1.0, b=1.02), times(a=9.0, b=1.0)])
    assert verdict.config == "b"
    assert verdict.regret == pytest.approx((1.01 * 1.02) ** (1 / 3))
    assert verdict.worst_regret == pytest.approx(1.02)


def test_a_clear_winner_is_no_tie_and_a_margin_within_the_noise_is():
    clear = judge([times(a=1.0, b=1.5), times(a=1.0, b=1.52)])
    assert clear.config == "a"
    assert clear.margin_pct == pytest.approx(51.0, abs=0.1)
    assert not clear.near_tie
    assert judge([times(a=1.0, b=1.002)]).near_tie
    assert judge([times(a=1.0, b=1.3), times(a=1.3, b=1.0), times(a=1.0, b=1.1)]).near_tie


def test_a_config_that_did_not_run_everywhere_is_not_chosen():
    assert judge([times(a=1.0, b=2.0), {"b": (2.0,), "a": (math.inf,)}]).config == "b"
    assert judge([times(a=1.0), times(b=1.0)]) is None
    alone = judge([times(a=1.0)])
    assert alone.config == "a"
    assert alone.margin_pct == math.inf
    assert not alone.near_tie


MEDIANS = st.fixed_dictionaries({name: st.floats(0.001, 1000) for name in "abc"})


@given(st.lists(MEDIANS, min_size=1, max_size=5))
def test_the_verdict_is_no_worse_than_any_other_and_the_order_of_recordings_does_not_count(recordings):
    tunings = [times(**medians) for medians in recordings]
    verdict = judge(tunings)
    assert judge(tunings[::-1]).config == verdict.config
    assert verdict.regret >= 0.999999
    assert verdict.worst_regret >= verdict.regret * 0.999999
    for other in "abc":
        product = math.prod(t[other][0] / min(v[0] for v in t.values()) for t in tunings) ** (1 / len(tunings))
        assert verdict.regret <= product * 1.000001


def recording(path, tunings, source="s", candidates="c", **machine):
    held = {key: Tuning(times(**medians), Fingerprint(source, candidates), False) for key, medians in tunings.items()}
    return Recording(path, {}, held, machine)


def test_only_this_architectures_times_count():
    held = recording("r", {("sm90", "k", "a"): {"x": 1.0}, ("sm80", "k", "a"): {"y": 1.0}})
    assert list(judge_all([held], "sm90")) == [("k", "a")]
    assert judge_all([held], "sm90")["k", "a"].config == "x"


def test_any_key_gets_the_config_with_the_least_worst_case():
    held = recording(
        "r", {("sm90", "k", "a"): {"x": 1.0, "y": 1.2, "z": 5.0}, ("sm90", "k", "b"): {"x": 3.0, "y": 1.2, "z": 1.0}}
    )
    assert any_key_configs([held], "sm90") == {"k": "y"}


def test_a_table_says_what_its_recordings_agree_on_and_nothing_else():
    one = recording("1", {("sm90", "k", "a"): {"x": 1.0}}, triton="3.9", device="H100")
    two = recording("2", {("sm90", "k", "a"): {"x": 1.0}}, triton="3.9", device="H200")
    assert provenance([one, two], "sm90", {}) == {
        "environment": {"triton": "3.9"},
        "kernels": {"k": {"source": "s", "candidates": "c"}},
        "evidence": {},
    }
    other = recording("3", {("sm90", "k", "b"): {"x": 1.0}}, source="changed", triton="3.9")
    assert provenance([one, other], "sm90", {})["kernels"] == {}
