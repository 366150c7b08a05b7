"""What worker and parent leave for each other in shared memory."""

import os
import subprocess
import sys
import time

from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.pool.board import COMPILING, IDLE, INPUTS, MEASURING, OPENING, PHASES, STANDBY, Board, flags_between


def boards():
    """Both ends of one board."""
    ours, fd = Board.create()
    return ours, Board.inherit(fd)


def test_a_new_board_says_nothing():
    ours, theirs = boards()
    assert ours.read().posts == 0
    assert ours.read().phase == "idle"
    assert theirs.circumstances()[0] == 0


@given(
    st.lists(
        st.tuples(st.sampled_from([IDLE, OPENING, INPUTS, COMPILING, MEASURING]), st.integers(-1, 10**6)), min_size=1
    )
)
def test_the_last_post_is_read_as_it_was_made(posts):
    ours, theirs = boards()
    for phase, candidate in posts:
        theirs.post(phase, candidate)
    posted = ours.read()
    assert (posted.posts, posted.phase, posted.candidate) == (len(posts), PHASES[posts[-1][0]], posts[-1][1])


def test_a_candidate_that_replaces_the_clock_does_not_change_when_others_began(monkeypatch):
    ours, theirs = boards()
    before = time.monotonic()
    monkeypatch.setattr(time, "monotonic", float)
    theirs.post(COMPILING, 1)
    assert ours.read().since >= before


def test_the_beginnings_of_the_group_and_of_the_candidate_are_kept():
    ours, theirs = boards()
    theirs.post(OPENING)
    opened = ours.read().since
    theirs.post(INPUTS, 3)
    theirs.post(COMPILING, 3)
    started = ours.read().since
    theirs.post(MEASURING, 3)
    posted = ours.read()
    assert posted.opened == opened
    assert posted.started == started
    assert opened < started < posted.since


def test_a_post_outlives_the_process_that_made_it():
    ours, fd = Board.create()
    code = (
        "import os, sys; from aiter_tuning.pool.board import Board, MEASURING;"
        "Board.inherit(int(sys.argv[1])).post(MEASURING, 7); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(fd)], pass_fds=(fd,), check=False)
    os.close(fd)
    assert (ours.read().phase, ours.read().candidate) == ("measuring", 7)


def test_a_post_cut_short_by_death_is_not_believed():
    ours, theirs = boards()
    theirs.post(MEASURING, 7)
    theirs._memory[0] ^= 1  # the first counter is written, the last is not
    assert ours.read().posts == 0


def test_circumstances_that_came_and_went_between_two_looks_are_seen():
    ours, theirs = boards()
    before = theirs.circumstances()
    assert flags_between(before, theirs.circumstances()) == ()
    ours.surround(STANDBY)
    ours.surround(0)
    assert flags_between(before, theirs.circumstances()) == ("standby",)
    now = theirs.circumstances()
    assert flags_between(now, theirs.circumstances()) == ()


def test_circumstances_that_hold_all_the_time_are_seen():
    ours, theirs = boards()
    ours.surround(STANDBY)
    look = theirs.circumstances()
    assert flags_between(look, look) == ("standby",)
