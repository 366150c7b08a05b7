"""From a screening to the finals, to a decision and its evidence, and what of it survives a run's death."""

import argparse
import errno
import math
import zlib

import pytest

from aiter_tuning.contest import Block
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables import tuned
from aiter_tuning.tables.checkpoint_record import BlockRows
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.evidence import EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tuner import Candidate, TunerCommon
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.finals_rule import FinalsRule
from aiter_tuning.tuner.outcome import ExitCode, Verdict
from aiter_tuning.tuner.race_rule import RaceRule
from aiter_tuning.tuner.reporter import Silent
from aiter_tuning.tuner.shape_contest import recorded_blocks

CLOSE = {"steady": 100.0, "quick": 94.0, "other": 95.0, "slow": 120.0}
"""As the screening has them."""


@pytest.fixture
def family(tiny, monkeypatch):
    """Four candidates that close on each other."""
    names = ("steady", "quick", "other", "slow")
    made = [Candidate(name, {"do": name}) for name in names]
    monkeypatch.setattr(type(tiny()), "candidates", lambda self, shape, device: made)
    return tiny()


@pytest.fixture
def tune(family, out, scripted, shapes):
    def run(finals=None, screening=CLOSE, sizes=(8,), notes=None, **flags):
        class Notes(Silent):
            def note(self, text):
                if notes is not None:
                    notes.append(text)

        def finals_script(shape, name, block):
            answer = finals(name, block) if callable(finals) else (finals or screening)[name]
            return (
                answer * (1 + 0.001 * (zlib.crc32(f"{name}{block}".encode()) % 5))
                if isinstance(answer, float)
                else answer
            )

        pool = scripted(screening, finals_script)
        args = argparse.Namespace(untune_file=str(shapes(*sizes)), tune_file=str(out), **flags)
        return TunerCommon(family).run(args, Notes(), pool=pool), pool

    return run


def records(out):
    return read_evidence(evidence_path(out))


def kernels(out, family):
    return {row.shape["N"]: row.kernelName for row in TunedCsv(out, family.key).rows()}


def test_the_finals_decide_and_not_the_screening(tune, out, family):
    summary, pool = tune({"steady": 100.0, "quick": 99.0, "other": 90.0, "slow": 130.0})

    assert kernels(out, family) == {8: "other"}
    assert [shape.verdict for shape in summary.shapes] == [Verdict.promoted]
    assert pool.finals == [(8, ("steady", "quick", "other", "slow"), 0)]
    assert summary.shapes[0].blocks >= 3
    assert summary.shapes[0].us == pytest.approx(90, rel=0.01)


def test_few_finalists_are_the_best_and_what_runs_today(tune):
    _, pool = tune(finalists=2)

    assert pool.finals == [(8, ("steady", "quick", "other"), 0)]


@pytest.mark.parametrize("finalists", [0, 1])
def test_without_finalists_single_timings_decide(tune, out, family, finalists):
    summary, pool = tune({"steady": 1.0}, finalists=finalists)

    assert pool.contests == []
    assert kernels(out, family) == {8: "quick"}
    assert summary.shapes[0].blocks == 0
    assert records(out)[0].noise_pct == 0


def test_a_lone_correct_candidate_needs_no_finals(tune, out, family):
    crashed = dict.fromkeys(("quick", "other", "slow"), Status.crash)
    _, pool = tune(screening={"steady": 100.0, **crashed})

    assert pool.contests == []
    assert kernels(out, family) == {8: "steady"}


def test_the_evidence_tells_what_was_compared_and_explains_the_row(tune, out, family):
    tune(sizes=(8, 16))
    (row, _) = sorted(TunedCsv(out, family.key).rows(), key=lambda row: row.shape["N"])
    record = EvidenceIndex(records(out)).newest_for(row)

    assert (record.verdict, record.published, record.complete) == ("promoted", True, True)
    assert record.incumbent.name == record.default.name == "steady"
    assert record.winner.name == row.kernelName and record.winner.us == pytest.approx(row.us, abs=1e-3)
    assert record.winner.config == row.config
    assert len(record.winner.samples_us) == len(record.incumbent.samples_us) >= 3
    assert record.margin_pct >= record.bar_pct >= 3.0
    assert record.key == {"gfx": "sm90", "cu_num": 132, "gpu_model": "H200", "N": 8, "dtype": "fp32"}
    assert (record.device_uuid, record.timer) == ("GPU-0", "wall")
    assert set(record.fingerprints) == {"run", "winner", "candidates"}
    assert all(record.fingerprints.values())
    assert record.began <= record.ended


def test_a_decision_that_writes_no_row_has_a_record_too(tune, out):
    tune()
    summary, _ = tune({"steady": 100.0, "quick": 94.0, "other": 93.5, "slow": 130.0}, all=True)

    assert [record.verdict for record in records(out)] == ["promoted", "retained"]
    assert [record.published for record in records(out)] == [True, False]
    assert summary.exit_code is ExitCode.done


def test_the_record_is_on_disk_before_the_table_is_replaced(tune, out, monkeypatch):
    def no_room(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tuned, "atomic_write", no_room)

    summary, _ = tune()

    assert summary.exit_code is ExitCode.write_failed
    assert [record.verdict for record in records(out)] == ["promoted"]


def test_a_rerun_at_once_promotes_nothing(tune, out, family):
    tune(sizes=(8, 16))
    before = out.read_bytes()
    for _ in range(3):
        summary, _ = tune(sizes=(8, 16), all=True)
        assert [shape.verdict for shape in summary.shapes] == [Verdict.retained] * 2
        assert out.read_bytes() == before


def test_finals_that_were_interrupted_go_on_after_their_last_block(tune, out, family):
    with pytest.raises(SystemExit):
        tune(lambda name, block: "die" if block == 3 and name == "other" else CLOSE[name])
    assert not out.exists()

    summary, pool = tune()

    assert pool.calls == []
    assert pool.finals == [(8, ("steady", "quick", "other", "slow"), 2)]
    assert kernels(out, family) == {8: "quick"}
    assert len(records(out)[0].winner.samples_us) == summary.shapes[0].blocks >= 3


@pytest.mark.parametrize("dies_in", range(1, 5))
def test_the_decision_is_that_of_an_undisturbed_run_wherever_it_dies(tune, out, family, dies_in):
    tune()
    (undisturbed,) = records(out)
    for path in out.parent.iterdir():
        path.unlink()

    with pytest.raises(SystemExit):
        tune(lambda name, block: "die" if block == dies_in and name == "steady" else CLOSE[name])
    tune()

    (record,) = records(out)
    assert record.winner == undisturbed.winner
    assert record.verdict == undisturbed.verdict
    assert record.margin_pct == pytest.approx(undisturbed.margin_pct)
    assert record.noise_pct == pytest.approx(undisturbed.noise_pct)


def test_a_stopped_run_publishes_nothing_that_its_finals_have_not_decided(tune, out, family):
    summary, _ = tune(lambda name, block: "stop" if block == 2 else CLOSE[name])

    assert summary.exit_code is ExitCode.interrupted
    assert summary.shapes[0].verdict is Verdict.incomplete
    assert "finals of 4 are not over, after 1 blocks" in summary.shapes[0].reason
    assert not out.exists()

    tune()
    assert kernels(out, family) == {8: "quick"}


def test_a_used_up_budget_publishes_the_best_so_far_and_a_later_run_goes_on(tune, out, family):
    summary, _ = tune(lambda name, block: "budget" if block == 5 else CLOSE[name], budget=100, rounds=20)

    assert summary.exit_code is ExitCode.interrupted
    assert kernels(out, family) == {8: "quick"}
    (record,) = records(out)
    assert (record.published, record.complete) == (True, False)

    summary, pool = tune(rounds=20)
    assert pool.finals == [(8, ("steady", "quick", "other", "slow"), 4)]
    assert summary.exit_code is ExitCode.done
    assert records(out)[-1].complete


def test_a_decided_shape_is_not_decided_again_when_its_run_goes_on(tune, out, family):
    tune(sizes=(8, 16))
    before = len(records(out))

    def dies_in_the_second(shape, name):
        return "die" if shape["N"] == 8 and name == "slow" else CLOSE[name]

    with pytest.raises(SystemExit):
        tune(CLOSE | {"other": 80.0}, dies_in_the_second, sizes=(8, 16), all=True, batch=1, confirm=False)
    assert kernels(out, family)[16] == "other"

    summary, pool = tune(CLOSE | {"other": 80.0}, sizes=(8, 16), all=True, confirm=False)

    assert {size for size, _ in pool.calls} == {8}
    assert [shape.label for shape in summary.shapes] == ["N=8 dtype=fp32"]
    assert [record.key["N"] for record in records(out)[before:]] == [16, 8]


def test_a_decision_whose_row_was_not_written_is_made_again_and_the_same(tune, out, family):
    tune()
    text = out.read_text()
    checkpoint = next(out.parent.glob("tuned.profile.*"))
    checkpoint.rename(out.with_name("tuned.checkpoint.csv"))
    out.unlink()

    _, pool = tune()

    assert (pool.calls, pool.contests) == ([], [])
    assert out.read_text() == text
    assert records(out)[0].winner == records(out)[1].winner


def test_a_finalist_that_fails_in_its_finals_is_out_and_its_failure_is_told(tune, out, family):
    summary, _ = tune(lambda name, block: Status.crash if (name, block) == ("quick", 2) else CLOSE[name])

    assert kernels(out, family) == {8: "other"}
    assert summary.shapes[0].counts == {Status.ok: 3, Status.crash: 1}
    assert summary.causes[0].candidate == "quick"


def test_who_ran_twice_when_the_run_died_in_its_finals_is_a_crash(tune, out, family):
    for _ in range(2):
        with pytest.raises(SystemExit):
            tune(lambda name, block: "die" if name == "quick" else CLOSE[name])

    summary, pool = tune()

    assert pool.finals == [(8, ("steady", "other", "slow"), 0)]
    assert kernels(out, family) == {8: "other"}
    assert "the run died 2 times while it was timed in turns" in summary.causes[0].detail


def test_a_race_takes_the_same_way(tune, out, family):
    _, pool = tune({"steady": 100.0, "quick": 90.0, "other": 99.0, "slow": 130.0}, strategy="race", delta=2.0)

    assert kernels(out, family) == {8: "quick"}
    assert "sole survivor" in records(out)[0].reason
    assert len(pool.finals) == 1


def test_the_bar_is_what_was_asked_for(tune, out, family):
    summary, _ = tune(min_improvement_pct=20.0)

    assert kernels(out, family) == {8: "steady"}
    assert summary.shapes[0].verdict is Verdict.first_row
    assert records(out)[0].bar_pct == 20.0


def test_a_row_whose_kernel_is_gone_is_replaced(tune, out, family, monkeypatch):
    tune()
    left = [Candidate(name, {"do": name}) for name in ("steady", "slow")]
    monkeypatch.setattr(type(family), "candidates", lambda self, shape, device: left)

    notes = []
    summary, _ = tune(all=True, notes=notes)

    assert kernels(out, family) == {8: "steady"}
    assert summary.shapes[0].verdict is Verdict.default_reclaimed
    assert "the row named quick" in summary.shapes[0].reason
    assert [note for note in notes if note.startswith("1 row names a kernel that tiny does not know")]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"finalists": -1}, "--finalists is -1; expected 0 or more"),
        ({"rounds": 0}, "--rounds is 0; expected 1 or more"),
        ({"delta": 2.0}, "--delta says what a race takes for equal; add --strategy race"),
        ({"strategy": "luck"}, "--strategy is 'luck'; expected finals or race"),
        ({"strategy": "race", "min_improvement_pct": 0.0}, "with --min_improvement_pct 0 a race needs one"),
        ({"min_improvement_pct": 100.0}, "min_improvement_pct must be at least 0 and under 100"),
        ({"candidate_sample": -2}, "--candidate_sample is -2"),
        ({"compile_timeout": 0.0}, "--compile_timeout is 0.0; expected seconds above 0"),
        ({"timer": "sundial"}, "--timer sundial: there is no timer 'sundial'"),
    ],
)
def test_flags_that_mean_nothing_are_usage_errors(tune, flags, says):
    with pytest.raises(UsageError) as caught:
        tune(**flags)

    assert says in str(caught.value)


def test_a_sample_of_the_candidates_is_tried_with_what_runs_today(tune):
    _, pool = tune(candidate_sample=1)

    assert len(pool.calls) == 2
    assert (8, "steady") in pool.calls


def test_full_iters_stops_nothing_early_and_does_not_take_over_what_was(tune, out):
    with pytest.raises(SystemExit):
        tune(lambda name, block: "die")
    _, pool = tune(full_iters=True)

    assert pool.seen["plan"].early_stop is None
    assert len(pool.calls) == 4, "what was measured with early stop is set aside"
    assert list(out.parent.glob("tuned.checkpoint.*.csv")) != []


def test_the_compile_clock_is_what_was_asked_for(tune):
    _, pool = tune(compile_timeout=7.0)

    assert pool.seen["clocks"].compile_s == 7.0


def test_blocks_and_decisions_stand_in_the_profile(tune, out):
    tune()
    (profile,) = out.parent.glob("tuned.profile.*")
    phases = [row.cells["phase"] for row in read_rows(profile).rows if row.cells["event"] == "finished"]

    assert phases[:4] == ["screen"] * 4
    assert "finalist:1" in phases and "finals" in phases
    assert phases[-1] == "decision"


# Which blocks on record count.

NAMES = ("a", "b", "c")
RULE = FinalsRule(0, frozenset({0}))


def rows(*blocks, device="GPU-0"):
    return [BlockRows(number, dict(us), device) for number, us in enumerate(blocks, start=1)]


def test_blocks_count_as_far_as_the_rule_would_have_had_them_measured():
    same = {"a": 10.0, "c": 11.0, "b": 12.0}
    lacks = {"a": 10.0, "b": 12.0}

    blocks, device = recorded_blocks(NAMES, 3, rows(same, same, lacks), RULE)

    assert blocks == (Block(1, (0, 2, 1), (10.0, 11.0, 12.0)), Block(2, (0, 2, 1), (10.0, 11.0, 12.0)))
    assert device == "GPU-0"


def test_blocks_of_other_finalists_do_not_count():
    assert recorded_blocks(NAMES, 3, rows({"a": 10.0, "b": 11.0}), RULE) == ((), "")
    assert recorded_blocks(NAMES, 3, rows({"a": 10.0, "b": 11.0, "c": 9.0, "d": 8.0}), RULE) == ((), "")
    assert recorded_blocks(NAMES, 3, [], RULE) == ((), "")


def test_blocks_of_another_device_end_the_row():
    same = {"a": 10.0, "b": 11.0, "c": 12.0}
    mixed = [*rows(same), BlockRows(2, same, "GPU-1")]

    assert len(recorded_blocks(NAMES, 3, mixed, RULE)[0]) == 1


def test_one_that_failed_may_be_missing_from_where_it_failed():
    same = {"a": 10.0, "b": 11.0, "c": 12.0}
    without = {"a": 10.0, "b": 11.0}
    failed = {"a": 10.0, "b": 11.0, "c": math.nan}

    assert len(recorded_blocks(NAMES, 2, rows(same, without, without), RULE)[0]) == 3
    assert len(recorded_blocks(NAMES, 2, rows(failed, without), RULE)[0]) == 2


def test_a_race_that_would_have_eliminated_somebody_else_diverges():
    slow = {"a": 10.0, "b": 10.01, "c": 20.0}
    steady = [{"a": 10.0 + n / 1000, "b": 10.01, "c": 20.0} for n in range(3)]

    assert len(recorded_blocks(NAMES, 3, rows(*steady, slow), RaceRule())[0]) == 3


def test_a_kernel_that_writes_its_inputs_is_told_where_a_row_names_it(tune):
    def finals(name, block):
        return Measurement(Status.ok, CLOSE[name], 0.0, flags=("writes_inputs",)) if name == "quick" else CLOSE[name]

    notes = []
    tune(finals, notes=notes, sizes=(8, 16), screening=CLOSE)

    assert [note for note in notes if "writes its inputs" in note] == [
        "the new row of N=16 dtype=fp32 and 1 more shape names quick, which writes its inputs"
    ]
    tune(finals, notes=(again := []), sizes=(8, 16), screening=CLOSE, all=True)
    assert not [note for note in again if "writes its inputs" in note], "the rows stay as they are"


@pytest.fixture
def gone_leader():
    """Beside ``quick`` the others were given up; in the finals it turns out to be wrong."""

    def given_up(us):
        return Measurement(status=Status.ok, us=us, err_ratio=0.0, censored=True, samples=3, device="GPU-0")

    screening = {"steady": 100.0, "quick": 30.0, "other": given_up(50.0), "slow": given_up(150.0)}
    now = {"steady": 100.0, "quick": Status.mismatch, "other": 60.0, "slow": 160.0}
    return lambda shape, name: screening[name], lambda name, block: now[name]


def test_those_given_up_beside_a_leader_take_part_once_it_fails(tune, out, family, gone_leader):
    screening, finals = gone_leader
    summary, pool = tune(finals, screening)

    again = (8, ("steady", "other"), 0)
    assert pool.contests == [(8, ("steady", "quick"), 0), again, again] and pool.fresh == [again], "then confirmed"
    assert kernels(out, family) == {8: "other"} and summary.shapes[0].verdict is Verdict.promoted
    assert summary.counts == {Status.ok: 3, Status.mismatch: 1}
    (record,) = records(out)
    assert (record.winner.name, record.incumbent.name) == ("other", "steady")

    summary, pool = tune(finals, screening, sizes=(8, 16))
    assert [size for size, *_ in pool.contests if size == 8] == [], "it is decided"


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_finals_that_were_planned_anew_are_gone_on_with(tune, out, family, gone_leader, stop_at):
    screening, finals = gone_leader
    tune(lambda name, block: "stop" if name == "other" and block == stop_at else finals(name, block), screening)
    assert kernels(out, family) == {}

    summary, pool = tune(finals, screening)

    assert pool.calls == [] and len(pool.contests) == 2 and len(pool.fresh) == 1
    assert pool.contests[0] == (8, ("steady", "other"), stop_at - 1)
    assert kernels(out, family) == {8: "other"} and summary.exit_code is ExitCode.done


def test_a_finalist_that_fails_costs_no_new_finals_where_nobody_was_given_up(tune):
    _, pool = tune(lambda name, block: Status.crash if name == "quick" else CLOSE[name])
    assert len(pool.finals) == 1
