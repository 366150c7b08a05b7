"""From the record's marks to what each device was at."""

from datetime import datetime

from aiter_tuning.report.page.timeline import Moment, Span, spans_of


def at(second):
    return f"2026-01-31T12:00:{second:06.3f}Z"


def span(device, label, stage, began, ended):
    return Span(device, label, stage, datetime.fromisoformat(at(began)), datetime.fromisoformat(at(ended)))


def marks(label, phase, device, *pairs):
    """A candidate that starts and ends at each pair of seconds."""
    return [
        moment
        for began, ended in pairs
        for moment in (
            Moment(label, phase, "started", "", at(began)),
            Moment(label, phase, "finished", device, at(ended)),
        )
    ]


def test_candidates_one_after_another_are_one_span_on_the_device_that_their_results_name():
    assert spans_of(marks("a", "screen", "GPU-1", (1, 2), (2.5, 3), (5, 6))) == [span("GPU-1", "a", "screening", 1, 6)]


def test_a_candidate_that_takes_long_is_no_pause_and_one_between_candidates_is():
    found = spans_of(marks("a", "screen", "GPU-1", (1, 20), (30, 31)))
    assert found == [span("GPU-1", "a", "screening", 1, 20), span("GPU-1", "a", "screening", 30, 31)]


def test_a_shape_that_went_on_elsewhere_has_a_span_on_each_device():
    found = spans_of(marks("a", "screen", "GPU-1", (1, 2)) + marks("a", "screen", "GPU-2", (3, 4)))
    assert found == [span("GPU-1", "a", "screening", 1, 2), span("GPU-2", "a", "screening", 3, 4)]


def test_turns_belong_to_the_finals_and_those_of_the_second_process_to_that():
    turn = [
        Moment("a", "finals", "started", "", at(1)),
        Moment("a", "finals", "stopped", "", at(2)),
        Moment("a", "finalist:1", "finished", "GPU-1", at(3)),
        Moment("a", "finals", "finished", "GPU-1", at(4)),
        *marks("a", "confirmed:1", "GPU-2", (6, 7)),
        Moment("a", "decision", "finished", "GPU-2", at(8)),
    ]
    assert spans_of(turn) == [span("GPU-1", "a", "finals", 1, 4), span("GPU-2", "a", "second process", 6, 7)]


def test_what_never_had_a_result_and_a_time_that_is_none_are_left_out():
    started = Moment("a", "screen", "started", "", at(1))
    torn = Moment("b", "screen", "finished", "GPU-1", "yesterday")
    assert spans_of([started, torn]) == []
