"""The checkpoint under processes that are killed, that contend for it, and on a disk that is full."""

from __future__ import annotations

import fcntl
import os
import random
import signal
from pathlib import Path

import pytest

from aiter_tuning.keys import Key
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.tables.csv_reader import read_rows

GEMM = Key(M=int, N=int, K=int)
RUN = RunFingerprint({"device": "cpu"})
SHAPE = {"M": 1, "N": 2, "K": 3}
OK = Measurement(Status.ok, 12.5, 0.0, samples=101, timer="wall")

PRELUDE = """
import os, sys
from aiter_tuning.keys import Key
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
OK = Measurement(Status.ok, 12.5, 0.0, samples=101, timer="wall")
def begin():
    return Checkpoint.open(sys.argv[1], Key(M=int, N=int, K=int), RunFingerprint({"device": "cpu"}))
def prints(count):
    return {f"c{i}": "f" for i in range(count)}
SHAPE = {"M": 1, "N": 2, "K": 3}
"""

TUNE = (
    PRELUDE
    + """
checkpoint = begin()
count = int(sys.argv[2])
done = checkpoint.finished_results(SHAPE, prints(count))
attempts = checkpoint.attempts(SHAPE)
for name in prints(count):
    if name in done:
        continue
    attempt = attempts.get(name, 0) + 1
    checkpoint.started(SHAPE, name, attempt=attempt, fingerprint="f")
    print(f"measure {name}")
    checkpoint.finished(SHAPE, name, Measurement(Status.ok, 12.5, 0.0, attempt=attempt), fingerprint="f")
    print(f"told {name}")
print(checkpoint.complete())
"""
)

HOLD = (
    PRELUDE
    + """
checkpoint = begin()
checkpoint.started(SHAPE, "c0", attempt=1, fingerprint="f")
checkpoint.finished(SHAPE, "c0", OK, fingerprint="f")
checkpoint.started(SHAPE, "c1", attempt=1, fingerprint="f")
print(checkpoint.path)
sys.stdin.readline()
print(checkpoint.complete())
"""
)

FORK = (
    PRELUDE
    + """
checkpoint = begin()
child = os.fork()
if child == 0:
    print(os.getpid())  # by now it has closed what it inherited
    sys.stdin.readline()
    os._exit(0)
sys.stdin.readline()
"""
)


def begin(tuned: Path) -> Checkpoint:
    return Checkpoint.open(tuned, GEMM, RUN)


def test_a_run_killed_at_any_moment_measures_nothing_twice(tmp_path, program):
    tuned, count, kills = tmp_path / "out.csv", 4000, 12
    random_ = random.Random(7)
    measured: list[str] = []
    told: set[str] = set()

    def take(lines):
        for word, _, name in (line.partition(" ") for line in lines):
            if word == "measure":
                assert name not in told
                measured.append(name)
            elif word == "told":
                told.add(name)

    for _ in range(kills):
        run = program(TUNE, tuned, count)
        fcntl.fcntl(run.process.stdout, fcntl.F_SETPIPE_SZ, 4096)  # so that it cannot run far ahead
        take(run.line() for _ in range(random_.randrange(1, 60)))
        run.kill()
        take(run.process.stdout.read().splitlines())
    *rest, profile = program(TUNE, tuned, count).end().splitlines()
    assert len(rest) > 2
    take(rest)
    table = read_rows(profile)
    finished = [row.cells["candidate"] for row in table.rows if row.cells["event"] == "finished"]
    assert sorted(finished) == sorted(f"c{i}" for i in range(count))
    assert len(measured) - count <= kills  # only what was running when a run died is measured again
    assert table.warnings == []
    assert os.listdir(tmp_path) == [Path(profile).name]


def test_what_ran_when_the_run_was_killed_is_a_suspect(tmp_path, program):
    tuned = tmp_path / "out.csv"
    run = program(HOLD, tuned)
    run.line()
    run.kill()
    with begin(tuned) as checkpoint:
        assert checkpoint.finished_results(SHAPE, {"c0": "f", "c1": "f"}) == {"c0": OK}
        assert checkpoint.suspects(SHAPE, {"c0": "f", "c1": "f"}) == {"c1": 1}


def test_a_second_process_gets_a_checkpoint_of_its_own_and_reads_the_first_one_s(tmp_path, program):
    tuned = tmp_path / "out.csv"
    first, second = program(HOLD, tuned), None
    assert first.line() == str(tmp_path / "out.checkpoint.csv")
    with begin(tuned) as mine:
        assert mine.path == tmp_path / "out.checkpoint.2.csv"
        assert mine.finished_results(SHAPE, {"c0": "f", "c1": "f"}) == {"c0": OK}
        assert mine.suspects(SHAPE) == {}  # it runs there, right now
        mine.finished(SHAPE, "c2", OK, fingerprint="f")
        second = program(HOLD, tuned)
        assert second.line() == str(tmp_path / "out.checkpoint.3.csv")
        first.tell()
        assert first.end().strip().endswith(".csv")
        profile = mine.complete()
    second.kill()
    assert [row.cells["candidate"] for row in read_rows(profile).rows[1:]] == ["c2"]
    with begin(tuned) as third:  # only what was never completed is there to go on with
        assert third.path == tmp_path / "out.checkpoint.3.csv"
        assert third.suspects(SHAPE) == {"c1": 1}


def test_what_two_killed_runs_left_is_found_by_the_run_that_follows(tmp_path, program):
    tuned = tmp_path / "out.csv"
    first = program(HOLD, tuned)
    first.line()
    with begin(tuned) as mine:
        mine.finished(SHAPE, "c2", OK, fingerprint="f")
    first.kill()
    with begin(tuned) as after:
        assert after.path == tmp_path / "out.checkpoint.csv"
        assert set(after.finished_results(SHAPE, {"c0": "f", "c2": "f"})) == {"c0", "c2"}
        assert after.suspects(SHAPE) == {"c1": 1}


def test_many_that_begin_at_once_each_have_a_file_of_their_own(tmp_path, program):
    tuned = tmp_path / "out.csv"
    runs = [program(HOLD, tuned) for _ in range(6)]
    paths = {Path(run.line()).name for run in runs}
    assert paths == {"out.checkpoint.csv", *(f"out.checkpoint.{n}.csv" for n in range(2, 7))}
    for run in runs:
        run.tell()
    profiles = {run.end().strip() for run in runs}
    assert sorted(os.listdir(tmp_path)) == sorted(Path(profile).name for profile in profiles)
    assert len(profiles) == 6


def test_a_stopped_process_keeps_its_checkpoint(tmp_path, program):
    tuned = tmp_path / "out.csv"
    run = program(HOLD, tuned)
    run.line()
    os.kill(run.process.pid, signal.SIGSTOP)
    with begin(tuned) as mine:
        assert mine.path.name == "out.checkpoint.2.csv"


def test_a_forked_child_that_outlives_the_run_does_not_keep_its_checkpoint(tmp_path, program):
    tuned = tmp_path / "out.csv"
    run = program(FORK, tuned)
    child = int(run.line())
    try:
        run.kill()
        os.kill(child, 0)
        with begin(tuned) as mine:
            assert mine.path.name == "out.checkpoint.csv"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_row_that_another_process_is_writing_is_left_alone_without_a_word(tmp_path, program):
    tuned = tmp_path / "out.csv"
    run = program(HOLD, tuned)
    with open(run.line(), "ab") as file:
        file.write(b"finished,1,2,3,c1,scr")
    with begin(tuned) as mine:
        assert set(mine.finished_results(SHAPE, {"c0": "f", "c1": "f"})) == {"c0"}
        assert mine.warnings == []


def test_another_environment_s_run_beside_it_is_not_read(tmp_path, program):
    tuned = tmp_path / "out.csv"
    run = program(HOLD, tuned)
    run.line()
    with Checkpoint.open(tuned, GEMM, RunFingerprint({"device": "other"})) as mine:
        assert mine.path.name == "out.checkpoint.2.csv"
        assert mine.set_aside is None
        assert mine.finished_results(SHAPE, {"c0": "f"}) == {}


def test_a_run_that_ends_between_opening_and_locking_its_file_is_not_resumed(tmp_path, monkeypatch):
    tuned = tmp_path / "out.csv"
    with begin(tuned) as ended:
        ended.finished(SHAPE, "c0", OK, fingerprint="f")
        flock = fcntl.flock

        def end_meanwhile(fd, operation):
            monkeypatch.setattr(fcntl, "flock", flock)
            ended.complete()
            flock(fd, operation)

        monkeypatch.setattr(fcntl, "flock", end_meanwhile)
        with begin(tuned) as mine:
            assert mine.path == tmp_path / "out.checkpoint.csv"
            assert mine.finished_results(SHAPE, {"c0": "f"}) == {}
            mine.started(SHAPE, "c1", fingerprint="f")
    assert len(os.listdir(tmp_path)) == 2


def test_rows_are_synced_once_a_second_and_when_asked(tmp_path, monkeypatch):
    seconds, syncs = [100.0], []
    monkeypatch.setattr("aiter_tuning.tables.checkpoint.time.monotonic", lambda: seconds[0])
    monkeypatch.setattr(os, "fdatasync", lambda fd: syncs.append(seconds[0]))
    with begin(tmp_path / "out.csv") as checkpoint:
        for tenth in range(31):
            seconds[0] = 100 + tenth / 10
            checkpoint.finished(SHAPE, f"c{tenth}", OK, fingerprint="f")
        assert syncs == [101.0, 102.0, 103.0]
        checkpoint.sync()
        assert len(syncs) == 4


def test_fresh_does_not_touch_what_another_process_is_writing(tmp_path, program):
    tuned = tmp_path / "out.csv"
    run = program(HOLD, tuned)
    run.line()
    with Checkpoint.open(tuned, GEMM, RUN, fresh=True) as mine:
        assert mine.set_aside is None
        assert mine.path.name == "out.checkpoint.2.csv"
        assert mine.finished_results(SHAPE, {"c0": "f"}) == {}
    assert (tmp_path / "out.checkpoint.csv").exists()


@pytest.mark.parametrize("pad", range(0, 120, 17))
def test_a_full_disk_leaves_whole_rows_and_takes_more_once_there_is_room(small_disk, fill_disk, pad):
    tuned = small_disk / "out.csv"
    checkpoint = begin(tuned)
    checkpoint.finished(SHAPE, "p" * (pad + 1), OK, fingerprint="f")  # moves the page's end to another place in a row
    hog = fill_disk(small_disk)
    written = []

    def write_on():
        for i in range(10_000):
            checkpoint.finished(SHAPE, f"c{i}", OK, fingerprint="f")
            written.append(f"c{i}")

    with pytest.raises(OSError) as full:
        write_on()
    assert str(checkpoint.path) in str(full.value)
    assert "No space left on device (all rows before are whole; make room and run again to go on)" in str(full.value)
    data = checkpoint.path.read_bytes()
    assert data.endswith(b"\n")
    assert data.count(b"\nfinished,") == len(written) + 1
    hog.unlink()
    checkpoint.finished(SHAPE, "after", OK, fingerprint="f")
    checkpoint.close()
    with begin(tuned) as again:
        prints = dict.fromkeys([*written, "after"], "f")
        assert set(again.finished_results(SHAPE, prints)) == set(prints)
        assert again.dropped_tail is None
        assert again.warnings == []


def test_a_disk_without_room_for_the_first_row_is_told_and_left_clean(small_disk, fill_disk):
    fill_disk(small_disk)
    with pytest.raises(OSError, match="No space left"):
        begin(small_disk / "out.csv")
    assert os.listdir(small_disk) == ["hog"]
