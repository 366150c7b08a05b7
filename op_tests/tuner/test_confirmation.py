"""What is promoted in one process and looked at again in another: verdicts, evidence, interruptions."""

import argparse
import zlib
from dataclasses import replace

import pytest

from aiter_tuning.status import Status
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.evidence import evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tuner import Candidate, TunerCommon
from aiter_tuning.tuner.outcome import ExitCode, Verdict
from aiter_tuning.tuner.recording import Recorder
from aiter_tuning.tuner.review import Waiting
from op_tests.tuner.conftest import as_measurement

FINALS = {"steady": 100.0, "quick": 94.0, "slow": 120.0}
LESS = FINALS | {"quick": 97.5}
"""A lead of 2.5 %."""


@pytest.fixture
def family(tiny, monkeypatch):
    made = [Candidate(name, {"do": name}) for name in FINALS]
    monkeypatch.setattr(type(tiny()), "candidates", lambda self, shape, device: made)
    return tiny()


@pytest.fixture
def tune(family, out, scripted, shapes):
    """Tunes sizes whose candidates have these latencies in the finals and, in a fresh worker, those of ``again``."""

    def noisy(answers):
        def script(shape, name, block):
            answer = answers(shape["N"], name, block) if callable(answers) else answers[name]
            noise = 1 + 0.001 * (zlib.crc32(f"{name}{block}".encode()) % 5)
            return answer * noise if isinstance(answer, float) else answer

        return script

    def run(again=FINALS, finals=FINALS, sizes=(8,), **flags):
        pool = scripted(finals, noisy(finals), noisy(again))
        args = argparse.Namespace(untune_file=str(shapes(*sizes)), tune_file=str(out), **flags)
        return TunerCommon(family).run(args, pool=pool), pool

    return run


def kernels(out, family):
    return {row.shape["N"]: row.kernelName for row in TunedCsv(out, family.key).rows()}


def newest(out):
    return read_evidence(evidence_path(out))[-1]


def test_a_promotion_is_told_by_the_lesser_of_both_margins(tune, out, family):
    summary, pool = tune(FINALS | {"quick": 95.5})

    assert pool.fresh == [(8, ("steady", "quick"), 0)]
    assert kernels(out, family) == {8: "quick"}
    (shape,) = summary.shapes
    assert shape.verdict is Verdict.promoted
    assert shape.margin_pct == pytest.approx(4.5, abs=0.3)
    assert shape.us == pytest.approx(94, rel=0.01), "of the finals, beside all others"
    assert shape.reason.count("reaches the bar") == 2 and "; in another process faster: 4." in shape.reason


def test_a_lead_that_another_process_does_not_see_promotes_nothing(tune, out, family):
    summary, _ = tune(LESS)

    assert kernels(out, family) == {8: "steady"}, "the shape is tuned: the default's row"
    (shape,) = summary.shapes
    assert shape.verdict is Verdict.ambiguous
    assert shape.margin_pct == pytest.approx(2.5, abs=0.3)
    assert shape.reason.startswith("quick faster: ") and "but in another process below the bar: 2." in shape.reason


def test_a_published_row_is_left_alone_unless_both_processes_agree(tune, out, family):
    tune(finals=FINALS | {"quick": 99.0})
    before = out.read_bytes()

    summary, pool = tune(LESS, all=True)
    assert (summary.shapes[0].verdict, out.read_bytes()) == (Verdict.ambiguous, before)
    assert pool.fresh

    tune(all=True, fresh=True)
    assert kernels(out, family) == {8: "quick"}


def test_the_evidence_has_what_both_processes_saw(tune, out):
    tune(FINALS | {"quick": 95.5})
    record = newest(out)

    before, after = record.confirmed["before"], record.confirmed["after"]
    assert (before["name"], after["name"]) == ("steady", "quick")
    assert after["us"] == pytest.approx(95.5, rel=0.01) and before["failure"] == ""
    assert len(before["samples_us"]) == len(after["samples_us"]) >= 6
    assert record.winner.us == pytest.approx(94, rel=0.01)


def test_what_changes_nothing_is_not_looked_at_again(tune):
    _, pool = tune(finals=FINALS | {"quick": 99.0})
    assert pool.fresh == []

    _, pool = tune(finals=FINALS | {"quick": 98.0}, all=True)
    assert pool.fresh == []


def test_it_can_be_switched_off_and_single_timings_are_what_was_asked_for(tune, out, family):
    for flags in ({"confirm": False}, {"finalists": 0, "all": True, "fresh": True}):
        _, pool = tune(LESS, **flags)
        assert pool.fresh == [] and kernels(out, family) == {8: "quick"}
        assert newest(out).confirmed == {}


def test_a_race_is_confirmed_too(tune, out, family):
    summary, pool = tune(LESS, finals=FINALS | {"quick": 90.0}, strategy="race", delta=2.0)

    assert pool.fresh == [(8, ("steady", "quick"), 0)]
    assert summary.shapes[0].verdict is Verdict.ambiguous


@pytest.mark.parametrize("failure", [Status.crash, Status.mismatch])
def test_a_challenger_that_fails_in_another_process_is_not_promoted(tune, out, family, failure):
    summary, _ = tune(lambda size, name, block: failure if name == "quick" else FINALS[name])

    assert kernels(out, family) == {8: "steady"}
    assert f"quick failed in another process, {failure}: scripted {failure}" in summary.shapes[0].reason


@pytest.mark.parametrize(
    ("failure", "verdict"), [(Status.mismatch, Verdict.correctness_fix), (Status.crash, Verdict.incumbent_absent)]
)
def test_what_runs_today_protects_nothing_if_it_fails_in_another_process(tune, out, family, failure, verdict):
    summary, _ = tune(lambda size, name, block: failure if name == "steady" else FINALS[name])

    assert kernels(out, family) == {8: "quick"}
    assert summary.shapes[0].verdict is verdict


def test_an_interruption_leaves_the_shape_open_and_the_next_run_goes_on_after_the_last_block(tune, out, family):
    summary, _ = tune(lambda size, name, block: "stop" if block == 4 else FINALS[name])
    assert summary.exit_code is ExitCode.interrupted
    assert "not confirmed in another process yet, after 3 blocks" in summary.shapes[0].reason
    assert not out.exists()

    summary, pool = tune()
    assert (pool.calls, pool.contests) == ([], [(8, ("steady", "quick"), 3)])
    assert pool.fresh == pool.contests
    assert kernels(out, family) == {8: "quick"}
    assert summary.exit_code is ExitCode.done


@pytest.mark.parametrize("dies_in", [1, 2, 5])
def test_the_decision_is_that_of_an_undisturbed_run_wherever_it_dies(tune, out, dies_in):
    tune(LESS)
    undisturbed = newest(out)
    for path in out.parent.iterdir():
        path.unlink()

    with pytest.raises(SystemExit):
        tune(lambda size, name, block: "die" if block == dies_in else LESS[name])
    tune(LESS)

    record = newest(out)
    assert (record.verdict, record.reason, record.confirmed) == (
        undisturbed.verdict,
        undisturbed.reason,
        undisturbed.confirmed,
    )


def test_who_ran_twice_when_the_run_died_there_is_a_crash(tune, out, family):
    for _ in range(2):
        with pytest.raises(SystemExit):
            tune(lambda size, name, block: "die" if name == "quick" else FINALS[name])

    summary, _ = tune()

    assert kernels(out, family) == {8: "steady"}
    assert "quick failed in another process, crash: the run died 2 times" in summary.shapes[0].reason


def test_shapes_wait_for_each_other_so_that_they_share_one_worker(tune, out, family):
    _, pool = tune(sizes=(8, 16, 32))

    assert [size for size, _, _ in pool.contests] == [32, 16, 8, 32, 16, 8]
    assert pool.fresh == pool.contests[3:]
    assert set(kernels(out, family).values()) == {"quick"}


def test_shapes_that_only_have_to_be_confirmed_come_first_in_the_next_run(tune, out, family):
    with pytest.raises(SystemExit):
        tune(lambda size, name, block: "die" if size == 16 else FINALS[name], sizes=(8, 16, 32))

    _, pool = tune(sizes=(8, 16, 32, 64))

    assert [size for size, _, _ in pool.contests] == [8, 16, 64, 64]
    assert pool.fresh == [pool.contests[0], pool.contests[1], pool.contests[3]]
    assert set(kernels(out, family)) == {8, 16, 32, 64}


def test_a_used_up_budget_publishes_the_unconfirmed_as_incomplete(tune, out, family):
    summary, _ = tune(lambda size, name, block: "budget" if block == 2 else FINALS[name], budget=100)

    assert summary.exit_code is ExitCode.interrupted
    assert kernels(out, family) == {8: "quick"}
    assert (newest(out).complete, newest(out).confirmed) == (False, {})

    tune()
    assert newest(out).complete


def test_what_a_budget_left_unconfirmed_is_held_against_what_ran_before_it(tune, out, family):
    tune(lambda size, name, block: "budget" if block == 2 else FINALS[name], budget=100)

    summary, pool = tune(LESS)

    assert pool.calls == [] and pool.fresh == [(8, ("steady", "quick"), 1)]
    assert summary.shapes[0].verdict is Verdict.ambiguous
    assert kernels(out, family) == {8: "steady"}


def test_a_row_is_not_replaced_by_what_a_budget_left_unconfirmed(tune, out, family):
    tune(finals=FINALS | {"quick": 110.0}, again=FINALS | {"quick": 110.0})
    args = {"all": True, "warmup": 4}
    summary, _ = tune(lambda size, name, block: "budget" if block == 2 else FINALS[name], budget=100, **args)

    assert summary.exit_code is ExitCode.interrupted and summary.shapes[0].verdict is Verdict.incomplete
    assert (newest(out).complete, newest(out).winner.name) == (True, "steady")
    assert kernels(out, family) == {8: "steady"}

    tune(**args)
    assert kernels(out, family) == {8: "quick"}


def test_rows_that_are_only_the_best_so_far_count_as_untuned(tune, out, family, scripted, shapes, monkeypatch):
    tune(sizes=(16,))
    tune(lambda size, name, block: "budget" if block == 2 else FINALS[name], sizes=(16, 8), budget=100)
    monkeypatch.setattr("aiter_tuning.tuner.request.devices_for", lambda *_: scripted(FINALS).devices)
    asked = {"untune_file": str(shapes(16, 8)), "tune_file": str(out)}

    overview = TunerCommon(family).overview(asked)

    assert [shape.label for shape in overview.shapes] == ["N=8 dtype=fp32"] and overview.already_tuned == 1
    assert "1 row is the best so far of a run whose --budget ended; tuned to the end now" in overview.notes
    monkeypatch.setattr(type(family), "serve", lambda self, inputs: None)
    compared = TunerCommon(family).overview(asked | {"compare": True})
    assert len(compared.shapes) == 2 and not any("best so far" in note for note in compared.notes)


def test_the_profile_has_every_candidate_once_although_the_run_was_interrupted_before_it_was_confirmed(tune, out):
    profile = out.with_name("profile.csv")
    tune(lambda size, name, block: "stop", profile_file=str(profile))
    tune(profile_file=str(profile))

    assert sorted(row.cells["kernelName"] for row in read_rows(profile).rows) == sorted(FINALS)


@pytest.fixture
def three(tiny, monkeypatch):
    """Two are better than the default; the better of them is wrong in another process."""
    us = {"steady": 100.0, "quick": 80.0, "other": 90.0}
    made = [Candidate(name, {"do": name}) for name in us]
    monkeypatch.setattr(type(tiny()), "candidates", lambda self, shape, device: made)
    return us, lambda size, name, block: Status.mismatch if name == "quick" else us[name]


def test_the_next_best_is_promoted_where_the_best_fails_in_another_process(tune, three, out, family):
    us, again = three
    summary, pool = tune(again, us)

    first, second = (8, ("steady", "quick"), 0), (8, ("steady", "other"), 0)
    assert pool.fresh == [first, second]
    assert pool.contests == [(8, ("steady", "quick", "other"), 0), first, second, second]
    assert kernels(out, family) == {8: "other"}
    (shape,) = summary.shapes
    assert shape.verdict is Verdict.promoted and summary.counts == {Status.ok: 2, Status.mismatch: 1}
    assert "quick failed in another process, mismatch" in shape.reason
    assert newest(out).reason == shape.reason and newest(out).confirmed["after"]["name"] == "other"


@pytest.mark.parametrize("stop_at", [1, 2, 4])
def test_a_run_that_stops_while_the_next_best_is_confirmed_is_gone_on_with(tune, three, out, family, stop_at):
    us, again = three
    tune(lambda size, name, block: "stop" if (name, block) == ("other", stop_at) else again(size, name, block), us)
    assert kernels(out, family) == {}

    summary, pool = tune(again, us)

    assert pool.calls == [] and [blocks for _, _, blocks in pool.contests] == [stop_at - 1]
    assert kernels(out, family) == {8: "other"} and summary.exit_code is ExitCode.done
    assert "quick failed in another process" in newest(out).reason


def test_those_given_up_beside_the_best_take_part_once_it_fails_in_another_process(tune, three, out, family):
    us, again = three
    given_up = as_measurement(85.0)
    finals = {**us, "other": replace(given_up, censored=True)}
    _, pool = tune(again, lambda shape, name, block=None: finals[name] if block is None else us[name])

    assert pool.contests[0] == (8, ("steady", "quick"), 0) and pool.contests[2] == (8, ("steady", "other"), 0)
    assert pool.fresh == [pool.contests[1], pool.contests[3]]
    assert kernels(out, family) == {8: "other"}


def test_all_who_were_given_up_take_part_where_the_best_fails_in_another_process(tune, three, out, family):
    """Also the default: it was measured last, since the run had died in it before."""
    us, again = three
    given_up = {name: replace(as_measurement(value), censored=name != "quick") for name, value in us.items()}
    summary, _ = tune(again, lambda shape, name, block=None: given_up[name] if block is None else us[name])

    assert kernels(out, family) == {8: "other"} and summary.exit_code is ExitCode.done
    assert newest(out).default.us == pytest.approx(100, rel=0.01)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_who_waits_is_taken_by_an_idle_lane_or_a_fresh_worker_or_when_it_has_waited_long_enough():
    clock = Clock()
    waiting = Waiting(clock)
    for one in range(3):
        waiting.add(one)
    assert waiting.take(idle=False, is_fresh=False) is None
    assert waiting.take(idle=True, is_fresh=False) == 0
    waiting.ended()
    assert waiting.take(idle=False, is_fresh=True) == 1
    clock.now = 59.0
    assert waiting.take(idle=False, is_fresh=False) is None
    clock.now = 60.0
    assert waiting.take(idle=False, is_fresh=False) == 2
    assert waiting.take(idle=True, is_fresh=True) is None
    for one in range(32):
        waiting.add(one)
    assert waiting.take(idle=False, is_fresh=False) == 0
    assert waiting.take(idle=False, is_fresh=False) is None and len(waiting) == 31


def test_an_idle_lane_leaves_to_one_with_a_fresh_worker_what_takes_less_than_starting_another():
    waiting = Waiting()
    for one in range(5):
        waiting.add(one, expected_s=0.6)
    assert waiting.take(idle=True, is_fresh=False) == 0
    assert waiting.take(idle=True, is_fresh=False) == 1, "four of 0.6 s are worth another worker"
    assert waiting.take(idle=True, is_fresh=False) is None, "three are not"
    waiting.ended()
    assert waiting.take(idle=True, is_fresh=False) is None, "the other one is still at it"
    assert waiting.take(idle=False, is_fresh=True) == 2
    waiting.ended()
    waiting.ended()
    assert waiting.take(idle=True, is_fresh=False) == 3, "nobody else would come"


def test_a_shape_that_is_decided_keeps_none_of_its_measurements(tune, monkeypatch):
    runs = []

    class Kept(Recorder):
        def __init__(self, all_runs, **rest):
            runs.extend(all_runs)
            super().__init__(all_runs, **rest)

    monkeypatch.setattr("aiter_tuning.tuner.tuner.Recorder", Kept)
    tune(sizes=(8, 16))
    assert len(runs) == 2
    for run in runs:
        assert (run.results, run.finals, run.review, run.decision) == ({}, None, None, None)
