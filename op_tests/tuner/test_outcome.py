"""What a run says when it ends."""

import pytest

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tuner.outcome import ExitCode, RunSummary, ShapeOutcome, Verdict, exit_code_of, gather_causes


def shape(verdict, **rest):
    return ShapeOutcome("N=1", {"N": 1}, verdict, "", **rest)


@pytest.mark.parametrize(
    ("verdicts", "circumstances", "code"),
    [
        ([], {}, ExitCode.done),
        ([Verdict.promoted, Verdict.retained], {}, ExitCode.done),
        ([Verdict.promoted, Verdict.failed], {}, ExitCode.no_correct_candidate),
        ([Verdict.failed, Verdict.incomplete], {}, ExitCode.interrupted),
        ([Verdict.promoted], {"stopped": True}, ExitCode.interrupted),
        ([Verdict.failed, Verdict.incomplete], {"no_lanes": True}, ExitCode.no_device),
        ([Verdict.failed], {"no_lanes": True, "write_failed": True}, ExitCode.write_failed),
    ],
)
def test_the_exit_code_says_what_stopped_the_run_before_what_it_found(verdicts, circumstances, code):
    assert exit_code_of([shape(verdict) for verdict in verdicts], **circumstances) is code


def test_failures_that_differ_only_in_figures_are_one_cause_with_its_first_example_and_count():
    failures = [
        ("N=1", "a", Measurement.failed(Status.crash, "KeyError: 'x' at 0x7f01")),
        ("N=1", "b", Measurement.failed(Status.timeout, "no result after 60 s")),
        ("N=2", "a", Measurement.failed(Status.crash, "KeyError: 'x' at 0x7f02")),
        ("N=3", "a", Measurement.failed(Status.crash, "KeyError: 'y' at 0x7f02")),
    ]

    causes = gather_causes(failures)

    assert [(cause.count, cause.status) for cause in causes] == [(2, "crash"), (1, "timeout"), (1, "crash")]
    assert (causes[0].detail, causes[0].shape, causes[0].candidate) == ("KeyError: 'x' at 0x7f01", "N=1", "a")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("worker exited with code 3", "worker exited with code 30"),
        ("worker was killed by signal 6 (SIGABRT)", "worker was killed by signal 11 (SIGSEGV)"),
        ("AssertionError, at my_op.py:12", "AssertionError, at my_op.py:112"),
    ],
)
def test_exit_codes_and_places_tell_causes_apart(one, other):
    failures = [("N=1", name, Measurement.failed(Status.crash, detail)) for name, detail in (("a", one), ("b", other))]
    assert [(cause.count, cause.detail) for cause in gather_causes(failures)] == [(1, one), (1, other)]
    assert [(cause.count, cause.detail) for cause in gather_causes(failures[:1] * 2)] == [(2, one)]


def test_the_gain_is_told_over_the_default_and_only_where_it_was_measured():
    assert shape(Verdict.promoted, us=75.0, default_us=100.0).gain_pct == 25.0
    assert shape(Verdict.promoted, us=75.0).gain_pct is None


def test_candidates_are_counted_over_all_shapes():
    shapes = (
        shape(Verdict.promoted, counts={Status.ok: 2, Status.crash: 1}),
        shape(Verdict.failed, counts={Status.crash: 4}),
    )

    assert RunSummary("f", "d", ExitCode.done, shapes).counts == {Status.ok: 2, Status.crash: 5}
