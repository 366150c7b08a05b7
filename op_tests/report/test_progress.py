"""What a person sees while a run goes on."""

import io

import pytest

from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import LaneView
from aiter_tuning.quantities import format_s, format_us
from aiter_tuning.report.progress import LiveProgress, PlainProgress, progress_on
from aiter_tuning.report.run_state import RunState
from aiter_tuning.status import Status
from aiter_tuning.tuner.outcome import ShapeOutcome, Verdict
from aiter_tuning.tuner.reporter import PlannedShape, RunOverview

OVERVIEW = RunOverview(
    family="tiny",
    device="H200 (sm90, 132 CUs)",
    lanes=1,
    shapes=(
        PlannedShape("N=8", ("steady", "quick", "odd"), resumed=2, incumbent="steady"),
        PlannedShape("N=16", ("steady", "quick"), resumed=0, incumbent="steady"),
    ),
    already_tuned=3,
)
OUTCOME = ShapeOutcome("N=8", {"N": 8}, Verdict.promoted, "faster", "quick", 50.0, "steady", 100.0)


def ok(us):
    return Measurement(Status.ok, us, 0.0)


def lane(state="measuring", group=0, index=1, since_s=61.0):
    return LaneView("gpu0", state, group, index, since_s, {})


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plain(clock):
    def make(**options):
        stream = io.StringIO()
        progress = PlainProgress(stream, clock=clock, **options)
        progress.stream = stream
        progress.run_started(OVERVIEW)
        return progress

    return make


def lines(progress):
    return progress.stream.getvalue().splitlines()


def test_the_first_line_says_what_is_about_to_be_done_and_what_is_resumed(plain):
    (line,) = lines(plain())

    assert "tiny on H200 (sm90, 132 CUs), 1 lane: 2 shapes, 5 candidates, 3 shapes have a row already" in line
    assert "resuming, 2 candidates are on record" in line


def test_away_from_a_terminal_a_line_comes_every_few_seconds_and_not_for_every_candidate(plain, clock):
    progress = plain()
    for second in range(1, 11):
        clock.now = float(second)
        progress.candidate_measured(0, 1, ok(50.0))
        progress.tick([lane(since_s=1.0)])

    assert len(lines(progress)) == 3
    assert "candidates 10/5: 10 ok" in lines(progress)[-1]


def test_a_minute_without_a_result_names_what_runs_where_and_for_how_long(plain, clock):
    progress = plain(every_s=1000)
    clock.now = 59.0
    progress.tick([lane(since_s=59.0)])
    assert len(lines(progress)) == 1

    clock.now = 61.0
    progress.tick([lane(since_s=61.0), LaneView("gpu1", "starting", None, None, 61.0, {})])

    assert "no progress for 61 s: gpu0 measuring N=8 quick for 61 s; gpu1 starting for 61 s" in lines(progress)[-1]

    clock.now = 62.0
    progress.tick([lane(since_s=62.0)])
    assert len(lines(progress)) == 2, "it is not said again every second"


def test_failures_and_prints_of_candidates_are_shown_when_asked_for(plain):
    quiet, verbose = plain(), plain(verbose=True)
    for progress in (quiet, verbose):
        progress.candidate_measured(0, 2, Measurement.failed(Status.crash, "worker exited with code 7"))
        progress.candidate_printed(0, 2, "so\nlong")
        progress.shape_ended(0, OUTCOME)

    assert len(lines(quiet)) == 1
    text = verbose.stream.getvalue()
    assert "N=8 odd: crash worker exited with code 7" in text
    assert "N=8 odd | long" in text
    assert "N=8: quick 50 us, steady 100 us (+50.0 %)" in text


def test_the_time_left_follows_the_pace_since_the_first_result(clock):
    state = RunState(clock)
    state.run_started(OVERVIEW)
    clock.now = 30.0  # workers start: no pace yet
    state.candidate_measured(0, 0, ok(100))
    assert state.eta_s() is None

    clock.now = 32.0
    state.candidate_measured(0, 1, ok(50))

    assert state.eta_s() == pytest.approx(6.0)


def test_the_best_of_a_shape_is_told_beside_the_incumbent_once_both_are_known(clock):
    state = RunState(clock)
    state.run_started(OVERVIEW)
    assert state.best_text(0) == ""

    state.candidate_measured(0, 1, ok(75.0))
    assert state.best_text(0) == "quick 75 us"

    state.candidate_measured(0, 0, ok(100.0))
    state.candidate_measured(0, 2, Measurement(Status.ok, 10.0, 0.0, censored=True))
    state.candidate_measured(0, 2, Measurement(Status.mismatch, 10.0, 0.9))
    assert state.best_text(0) == "quick 75 us, 25.0 % under steady"


def test_a_terminal_gets_a_live_display_with_a_line_for_each_lane():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with progress_on(stream) as progress:
        assert isinstance(progress, LiveProgress)
        progress.run_started(OVERVIEW)
        progress.candidate_measured(0, 0, ok(100.0))
        progress.tick([lane(since_s=3.0)])
        progress.note("gpu0: the idle worker exited with code 1")

    assert "shapes 0/2, candidates 1/5: 1 ok" in stream.getvalue()
    assert "gpu0    measuring N=8 quick for 3 s" in stream.getvalue()
    assert "the idle worker exited with code 1" in stream.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations_read_well(seconds, text):
    assert format_s(seconds) == text


@pytest.mark.parametrize(("us", "text"), [(7.3125, "7.312 us"), (123.456, "123.5 us"), (1234.5, "1234 us")])
def test_latencies_show_the_digits_that_matter(us, text):
    assert format_us(us) == text


def test_finals_tell_who_is_timed_against_whom_and_how_often(plain, clock):
    progress = plain(verbose=True)
    progress.finals_began(0, ("steady", "odd", "best"), 0)
    clock.now = 70.0
    progress.block_done(0, 4, 3)
    progress.tick([lane("finals", index=2, since_s=1.0)])
    clock.now = 140.0
    progress.tick([lane("finals", index=2, since_s=71.0)])

    assert any("N=8: finals of steady, odd, best" in line for line in lines(progress))
    assert "no progress for 70 s: gpu0 finals N=8, block 5 of 3 finalists, best for 71 s" in lines(progress)[-1]
