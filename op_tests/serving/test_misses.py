"""Misses are recorded once for a shape, counted right across processes and exits, and never cost serving an error."""

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aiter_tuning.keys import Key
from aiter_tuning.serving import bind, misses, record_misses
from aiter_tuning.serving.misses import MissRecorder
from aiter_tuning.tables.shapes import read_shapes
from op_tests.serving.scaled import Scaled, line, write_table

KEY = Key(M=int, N=int, tag="plain")
ROOT = Path(__file__).resolve().parents[2]


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def recorder(tmp_path, clock):
    return MissRecorder(tmp_path / "misses", clock)


@pytest.fixture
def by_hand():
    """Recording as this process found it, afterwards."""
    yield
    misses._use(None)
    misses._by_hand = False


def shape(m, n=8, tag="plain"):
    return {"M": m, "N": n, "tag": tag}


def miss(recorder, *sizes, **fields):
    for m in sizes:
        count = recorder.count_of("op", shape(m, **fields))
        if count is not None:
            recorder.add(count)


def recorded(directory, family="op", key=KEY):
    file = read_shapes(directory / f"{family}_untuned.csv", key)
    assert file.warnings == ()
    return {one["M"]: count for one, count in zip(file.shapes, file.calls, strict=True)}


def test_the_first_miss_is_on_file_at_once_and_later_ones_when_they_have_doubled(recorder, clock):
    miss(recorder, 1)
    assert recorded(recorder.directory) == {1: 1}
    miss(recorder, 1, 1, 1)
    assert recorded(recorder.directory) == {1: 3}
    miss(recorder, 1)
    recorder.flush()
    assert recorded(recorder.directory) == {1: 5}
    recorder.flush()
    assert recorded(recorder.directory) == {1: 5}


def test_what_is_pending_is_written_after_ten_seconds(recorder, clock):
    miss(recorder, 1, 1, 1, 2)
    assert recorded(recorder.directory) == {1: 3, 2: 1}
    miss(recorder, 1)
    clock.now += 11
    miss(recorder, 2)
    assert recorded(recorder.directory) == {1: 4, 2: 2}


def test_texts_are_quoted_and_come_back(recorder):
    miss(recorder, 1, tag='a "b", c')
    file = read_shapes(recorder.directory / "op_untuned.csv", KEY)
    assert file.shapes == (shape(1, tag='a "b", c'),)


def test_a_recorder_never_raises_and_tries_again_later(tmp_path, clock, said):
    blocked = tmp_path / "misses"
    blocked.write_text("a file where a directory should be")
    recorder = MissRecorder(blocked, clock)
    miss(recorder, 1, 1, 2)
    recorder.flush()
    assert len(said("misses cannot be recorded")) == 1
    blocked.unlink()
    miss(recorder, 1)
    assert not blocked.exists(), "not tried before its time"
    clock.now += 61
    miss(recorder, 1, 2)
    assert recorded(blocked) == {1: 4, 2: 2}


def test_a_file_system_without_hard_links_records_all_the_same(recorder, monkeypatch, said):
    def no_links(source, target):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))  # what FAT, exFAT and some FUSE mounts say

    monkeypatch.setattr(os, "link", no_links)
    miss(recorder, 1, 2)
    assert recorded(recorder.directory) == {1: 1, 2: 1}
    assert os.listdir(recorder.directory) == ["op_untuned.csv"]
    assert not said()


def test_a_file_with_another_header_is_left_alone(tmp_path, recorder, said):
    recorder.directory.mkdir()
    file = recorder.directory / "op_untuned.csv"
    file.write_text("M,N,K,calls\n")
    miss(recorder, 1, 2)
    assert file.read_text() == "M,N,K,calls\n"
    (warning,) = said()
    assert "its header is 'M,N,K,calls'" in warning and "expected 'M,N,tag,calls'" in warning


@pytest.mark.parametrize("text", ["M,N,tag,calls\n1,8", "M,N,tag,calls\n1,8,plain,1", "", "M,N,tag,calls"])
def test_an_unfinished_line_is_ended_and_an_emptied_file_gets_its_header(recorder, text):
    recorder.directory.mkdir()
    (recorder.directory / "op_untuned.csv").write_text(text)
    if text == "M,N,tag,calls":  # not a line yet: this header is not the recorder's
        miss(recorder, 2)
        assert (recorder.directory / "op_untuned.csv").read_text() == text
        return
    miss(recorder, 2)
    file = read_shapes(recorder.directory / "op_untuned.csv", KEY)
    assert dict(zip((one["M"] for one in file.shapes), file.calls, strict=True))[2] == 1


def test_a_file_that_is_deleted_meanwhile_comes_back_with_what_is_missed_then(recorder):
    miss(recorder, 1)
    (recorder.directory / "op_untuned.csv").unlink()
    miss(recorder, 1, 1)
    assert recorded(recorder.directory) == {1: 2}


def test_more_distinct_shapes_than_anybody_tunes_are_not_kept(recorder, monkeypatch, said):
    monkeypatch.setattr(misses, "MOST_SHAPES", 3)
    miss(recorder, *range(1, 10))
    assert recorded(recorder.directory) == {1: 1, 2: 1, 3: 1}
    assert len(said("3 distinct shapes recorded")) == 1


def test_many_pending_shapes_are_written_in_pieces(recorder, monkeypatch, clock):
    monkeypatch.setattr(misses, "_ROWS_AT_A_TIME", 3)
    miss(recorder, *range(1, 10))
    for m in range(1, 10):
        for _ in range(3):
            miss(recorder, m)
    miss(recorder, *range(1, 10))
    recorder.flush()
    assert recorded(recorder.directory) == dict.fromkeys(range(1, 10), 5)


# Through lookups


@pytest.mark.usefixtures("by_hand")
def test_lookups_record_what_they_miss_and_nothing_that_they_find(scaled, bucketed, tmp_path):
    table = write_table(tmp_path / "tuned.csv", line(64))
    record_misses(tmp_path / "misses")
    tuned = bind(scaled, table)
    for m in (64, 65, 65, 66):
        tuned(m, 64)
    tuned(M=65, N=64, bias=False)
    for m in (33, 40, 64):
        bind(bucketed, tmp_path / "none.csv")(m, 64)
    record_misses(None)
    tuned(67, 64)
    assert recorded(tmp_path / "misses", scaled.name, scaled.key) == {65: 3, 66: 1}
    assert recorded(tmp_path / "misses", bucketed.name, scaled.key) == {64: 3}, "the shape that has to be tuned"


def test_the_environment_starts_and_stops_recording(scaled, tmp_path, monkeypatch, every_time):
    tuned = bind(scaled, tmp_path / "none.csv")
    tuned(1, 64)
    monkeypatch.setenv(misses.VARIABLE, str(tmp_path / "misses"))
    tuned(1, 64)
    monkeypatch.setenv(misses.VARIABLE, "0")
    tuned(1, 64)
    assert recorded(tmp_path / "misses", scaled.name, scaled.key) == {1: 1}


PROGRAM = """
import os, sys
from aiter_tuning.serving import bind, bound
from op_tests.serving.scaled import HERE, Scaled
bound.identity_here = lambda kinds, device=None: HERE
tuned = bind(Scaled, "none.csv")

def miss():
    for number in range(10_000):
        tuned(1 + number % 40, 64)
"""
ENDINGS = {
    "returns": "miss()",
    "exits": "miss(); sys.exit(3)",
    "raises": "miss(); raise SystemError",
    "forks": "miss(); pid = os.fork(); miss() if not pid else os.waitpid(pid, 0)",
    "multiprocessing": (
        "import multiprocessing\n"
        "child = multiprocessing.get_context('fork').Process(target=miss); child.start(); child.join(); miss()"
    ),
    "threads": (
        "import threading\n"
        "threads = [threading.Thread(target=miss) for _ in range(3)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]"
    ),
}


def started(tmp_path, ending):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), misses.VARIABLE: str(tmp_path / "misses")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + ending], env=environment, cwd=tmp_path, stderr=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("ending", "times"),
    [("returns", 1), ("exits", 1), ("raises", 1), ("forks", 2), ("multiprocessing", 2), ("threads", 3)],
)
def test_counts_are_right_however_a_process_ends_by_itself(tmp_path, ending, times):
    started(tmp_path, ENDINGS[ending]).wait(60)
    assert recorded(tmp_path / "misses", "scaled", Scaled.key) == dict.fromkeys(range(1, 41), 250 * times)


def test_four_processes_record_each_shape_once_with_the_right_count(tmp_path):
    processes = [started(tmp_path, ENDINGS["returns"]) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert recorded(tmp_path / "misses", "scaled", Scaled.key) == dict.fromkeys(range(1, 41), 1000)
    assert len((tmp_path / "misses/scaled_untuned.csv").read_text().splitlines()) < 4 * 40 * 12


def test_a_process_that_is_killed_loses_less_than_half_of_what_it_counted(tmp_path):
    process = started(tmp_path, "miss(); os.kill(os.getpid(), 9)")
    assert process.wait(60) == -signal.SIGKILL
    counts = recorded(tmp_path / "misses", "scaled", Scaled.key)
    assert set(counts) == set(range(1, 41))
    assert all(125 <= count <= 250 for count in counts.values())


def test_a_full_disk_costs_serving_nothing_and_the_record_goes_on_when_there_is_room(small_disk, clock, said):
    recorder = MissRecorder(small_disk / "misses", clock)
    miss(recorder, 1)
    hog = small_disk / "hog"
    with contextlib.suppress(OSError), hog.open("wb", buffering=0) as file:
        while file.write(bytes(512)):
            pass
    for m in range(2, 3000):
        miss(recorder, m)
        clock.now += 61
    assert len(said("No space left on device")) == 1
    hog.unlink()
    miss(recorder, 1)
    recorder.flush()
    assert read_shapes(recorder.directory / "op_untuned.csv", KEY).calls[0] == 2
    counts = read_shapes(recorder.directory / "op_untuned.csv", KEY)
    assert sorted(one["M"] for one in counts.shapes) == list(range(1, 3000))
    assert len(counts.warnings) <= 1, "the line that did not fit any more"


@pytest.mark.usefixtures("by_hand")
def test_a_repeated_miss_costs_a_few_microseconds(scaled, tmp_path):
    record_misses(tmp_path / "misses")
    tuned = bind(scaled, tmp_path / "none.csv")
    best = float("inf")
    for _ in range(100):  # short ones: some are not interrupted, however busy the machine is
        began = time.perf_counter()
        for _ in range(500):
            tuned(1, 64)
        best = min(best, (time.perf_counter() - began) / 500 * 1e6)
    assert best < 5.0
