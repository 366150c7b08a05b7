"""The blocks of a contest on file: which of them a rerun may count."""

from __future__ import annotations

import errno
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiter_tuning.contest import Block
from aiter_tuning.keys import Key
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.tables.checkpoint_row import FINALS, block_number, block_phase, turn_place, turn_text
from op_tests.tables.conftest import fill

KEY = Key(N=int)
RUN = RunFingerprint({"device": "a"})
SHAPE, OTHER = {"N": 8}, {"N": 16}
NAMES = ("a", "b", "c")
PRINTS = {"a": "a" * 12, "b": "b" * 12, "c": "c" * 12}
RAISED = Measurement.failed(Status.crash, "RuntimeError: no, no")


def begin(path, run=RUN):
    return Checkpoint.open(path, KEY, run)


def turn(us, device="GPU-1"):
    if math.isnan(us):
        return Measurement(Status.crash, -1.0, detail=RAISED.detail, device=device)
    return Measurement(Status.ok, us, 0.0, samples=16, timer="kernel", flags=("throttled",), device=device)


def write(checkpoint, *blocks, shape=SHAPE, prints=PRINTS, device="GPU-1"):
    logbook = checkpoint.logbook(shape, NAMES, prints, {}, phase=FINALS)
    for block in blocks:
        logbook.block(block, [turn(us, device) for us in block.us])


def on_record(path, prints=PRINTS, shape=SHAPE):
    with begin(path) as checkpoint:
        return [(block.number, dict(block.us), block.device_uuid) for block in checkpoint.blocks(shape, prints)]


FIRST, SECOND = Block(1, (2, 0, 1), (3.0, 1.5, 2.25)), Block(2, (0, 1), (1.25, 2.5))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.csv"


def test_blocks_come_back_as_they_were_written_in_the_order_of_the_turns(out):
    with begin(out) as checkpoint:
        write(checkpoint, FIRST, SECOND)
        write(checkpoint, Block(1, (1,), (9.0,)), shape=OTHER)
        assert checkpoint.blocks(SHAPE, PRINTS) == [], "this run's own are not asked for"
    assert on_record(out) == [(1, {"c": 3.0, "a": 1.5, "b": 2.25}, "GPU-1"), (2, {"a": 1.25, "b": 2.5}, "GPU-1")]
    with begin(out) as checkpoint:
        assert [list(block.us) for block in checkpoint.blocks(SHAPE, PRINTS)] == [["c", "a", "b"], ["a", "b"]]
    assert on_record(out, shape=OTHER) == [(1, {"b": 9.0}, "GPU-1")]


def test_a_turn_without_a_time_has_the_reason_on_file_and_comes_back_as_nan(out):
    with begin(out) as checkpoint:
        write(checkpoint, Block(1, (0, 1), (1.0, math.nan)))
        text = checkpoint.path.read_text()
    [(_, us, _)] = on_record(out)
    assert us["a"] == 1.0 and math.isnan(us["b"])
    assert "turn 2 of 2: RuntimeError: no, no" in text and "nan" not in text
    assert ",finalist:1,1,ok,1.0," in text and ",kernel,throttled,GPU-1,turn 1 of 2," in text


def test_turns_do_not_count_as_results_of_the_screening_or_of_the_contest(out):
    with begin(out) as checkpoint:
        write(checkpoint, FIRST)
    with begin(out) as checkpoint:
        assert checkpoint.finished_results(SHAPE, PRINTS) == checkpoint.finished_results(SHAPE, PRINTS, FINALS) == {}
        assert checkpoint.finished_results(SHAPE, PRINTS, "finalist:1")["b"].us == 2.25


def test_a_block_that_was_measured_again_replaces_what_came_from_there_on(out):
    with begin(out) as checkpoint:
        write(checkpoint, FIRST, SECOND, Block(3, (0, 1), (1.0, 2.0)))
        write(checkpoint, Block(2, (1, 0), (7.0, 8.0)))
    assert on_record(out) == [(1, {"c": 3.0, "a": 1.5, "b": 2.25}, "GPU-1"), (2, {"b": 7.0, "a": 8.0}, "GPU-1")]


def test_a_contest_that_began_anew_on_another_device_is_the_one_that_counts(out):
    with begin(out) as checkpoint:
        write(checkpoint, FIRST, SECOND)
        write(checkpoint, Block(1, (0, 1), (4.0, 5.0)), device="GPU-2")
    assert on_record(out) == [(1, {"a": 4.0, "b": 5.0}, "GPU-2")]


def test_blocks_end_where_a_candidate_of_today_is_another_one(out):
    with begin(out) as checkpoint:
        write(checkpoint, Block(1, (0, 1), (1.0, 2.0)), Block(2, (0, 2), (1.0, 3.0)), Block(3, (0, 1), (1.0, 2.0)))
    assert [number for number, _, _ in on_record(out, {**PRINTS, "c": "d" * 12})] == [1]
    assert on_record(out, {**PRINTS, "a": "d" * 12}) == []


def test_blocks_of_several_runs_make_one_row_of_blocks(out):
    for block in (FIRST, SECOND, Block(3, (0,), (1.0,))):
        with begin(out) as checkpoint:
            write(checkpoint, block)
    assert [number for number, _, _ in on_record(out)] == [1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 900))
def test_wherever_the_file_is_cut_only_whole_blocks_come_back(tmp_path_factory, cut):
    out = tmp_path_factory.mktemp("cut") / "out.csv"
    with begin(out) as checkpoint:
        path = checkpoint.path
        head = path.stat().st_size
        write(checkpoint, FIRST, SECOND)
    size = path.stat().st_size
    os.truncate(path, max(head, size - cut))
    blocks = on_record(out)
    assert [number for number, _, _ in blocks] == list(range(1, len(blocks) + 1))
    assert all(len(us) == len(block.order) for (_, us, _), block in zip(blocks, (FIRST, SECOND), strict=False))
    assert len(blocks) < 2


def test_a_full_disk_leaves_whole_rows_and_an_error_that_names_the_file(small_disk):
    out = small_disk / "out.csv"
    checkpoint = begin(out)
    write(checkpoint, FIRST)
    fill(small_disk)
    with pytest.raises(OSError) as caught:
        write(checkpoint, *[FIRST] * 100)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(checkpoint.path)
    checkpoint.repair()
    assert all(line.count(",") == 15 for line in checkpoint.path.read_text().splitlines()[2:])
    checkpoint.close()


def test_turns_that_begin_and_end_are_one_write(out, monkeypatch):
    with begin(out) as checkpoint:
        logbook = checkpoint.logbook(SHAPE, NAMES, PRINTS, {"b": 2}, phase=FINALS)
        writes = []
        real = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
        logbook.turn(None, (0, 1))
        logbook.turn((0, 1), (1, 1))
        logbook.turn((1, 1), None)
        logbook.turn(None, None)
        monkeypatch.undo()
        rows = [line.split(",")[:5] for line in checkpoint.path.read_text().splitlines()[2:]]
    assert len(writes) == 3
    assert rows == [
        ["started", "8", "a", FINALS, "1"],
        ["stopped", "8", "a", FINALS, "1"],
        ["started", "8", "b", FINALS, "3"],
        ["stopped", "8", "b", FINALS, "3"],
    ]


@given(st.integers(1, 10**6), st.integers(1, 100), st.integers(1, 100), st.text())
def test_phases_and_places_read_back(number, place, turns, detail):
    assert block_number(block_phase(number)) == number
    assert turn_place(turn_text(place, turns, detail)) == (place, turns)


@pytest.mark.parametrize("phase", ["screen", "finals", "finalist:", "finalist:x", "finalist:-1", "finalist:²"])
def test_other_phases_are_no_blocks(phase):
    assert block_number(phase) is None
