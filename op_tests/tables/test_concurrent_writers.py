"""Many processes, one tuned CSV: nothing is lost, the best row wins, and the file can be read at every instant."""

import collections
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.tuned import TunedCsv
from op_tests.tables.concurrent_writer import KEY, SHAPES, WRITERS, best_of, row_of

ROOT = Path(__file__).parent.parent.parent
KILLS = 40


class Reader(threading.Thread):
    """Reads the file over and over; every reading has to be a whole table that is never worse than the one before."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.readings = 0
        self.trouble = []
        self.stop = threading.Event()

    def run(self):
        best = {}
        while not self.stop.is_set():
            try:
                table = TunedCsv(self.path, KEY)
                rows = {row.shape["N"]: row.us for row in table.rows()}
                self.trouble += table.warnings
            except Exception as error:
                self.trouble.append(error)
                return
            self.trouble += [f"N={n} is gone or slower" for n, us in best.items() if rows.get(n, 1e9) > us]
            best = rows
            self.readings += 1


@pytest.fixture
def writers(tmp_path):
    path, running = tmp_path / "tuned.csv", {}

    def start(writer, rounds):
        command = [sys.executable, "-m", "op_tests.tables.concurrent_writer", str(path), str(writer), str(rounds)]
        running[writer] = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        return running[writer]

    yield path, start, running
    for process in running.values():
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def reading(writers):
    reader = Reader(writers[0])
    reader.start()
    yield reader
    reader.stop.set()
    reader.join()


def test_eight_writers_that_are_killed_at_random_lose_nothing(writers, reading):
    path, start, running = writers
    choices = random.Random(7)
    for writer in range(WRITERS):
        start(writer, 10**6)
    for process in running.values():
        assert process.stdout.readline() == "began\n"
    stamps = set()
    for _ in range(KILLS):
        before = path.stat().st_mtime_ns if path.exists() else 0
        while not path.exists() or path.stat().st_mtime_ns == before:  # somebody is in the midst of it
            assert not reading.trouble
            os.sched_yield()
        stamps.add(path.stat().st_mtime_ns)
        victim = choices.randrange(WRITERS)
        running[victim].kill()
        running[victim].communicate()
        start(victim, 10**6)
    for process in running.values():
        process.kill()
        process.communicate()

    last = [start(writer, 1) for writer in range(WRITERS)]
    assert [process.communicate()[0] for process in last] == ["began\ndone\n"] * WRITERS

    rows = [row.cells for row in read_rows(path).rows]
    assert sorted(int(row["N"]) for row in rows) == list(range(1, SHAPES + 1)), "every shape once"
    wanted = {n: (row.us, row.kernelName, dict(row.config)) for n in range(1, SHAPES + 1) for row in [best_of(n)]}
    found = {row.shape["N"]: (row.us, row.kernelName, dict(row.config)) for row in TunedCsv(path, KEY).rows()}
    assert found == wanted
    assert len(stamps) == KILLS
    assert reading.trouble == []
    assert reading.readings > KILLS


def test_what_killed_writers_leave_beside_the_table_is_removed_once_it_is_old(writers):
    path, _, _ = writers
    old, new, other = (path.with_name(f".{name}") for name in ("tuned.csv.1.ab.tmp", "tuned.csv.2.cd.tmp", "b.csv.tmp"))
    for leftover in (old, new, other):
        leftover.write_text("half a row")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))

    TunedCsv(path, KEY).update([row_of(0, 1)])

    assert [leftover.exists() for leftover in (old, new, other)] == [False, True, True]


def test_a_stopped_writer_holds_the_others_up_for_no_longer_than_their_patience_and_is_named(writers, tmp_path):
    path, _, _ = writers
    code = (
        "import sys, signal, os\n"
        "from aiter_tuning.tables import tuned\n"
        "from op_tests.tables.concurrent_writer import KEY, row_of\n"
        "write = tuned.atomic_write\n"
        "def stopped(*what):\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    write(*what)\n"
        "tuned.atomic_write = stopped\n"
        "tuned.TunedCsv(sys.argv[1], KEY).update([row_of(0, 1)])\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT)
    try:
        _, status = os.waitpid(holder.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        began = time.monotonic()
        with pytest.raises(OSError, match=f"process {holder.pid} on ") as refused:
            TunedCsv(path, KEY, lock_timeout=0.2).update([row_of(1, 1)])
        assert time.monotonic() - began < 10
        assert f"it is stopped; `kill -CONT {holder.pid}` lets it go on" in str(refused.value)
        assert not path.exists()

        os.kill(holder.pid, signal.SIGCONT)
        assert holder.wait(30) == 0
        TunedCsv(path, KEY).update([row_of(1, 2)])
        assert [row.kernelName for row in TunedCsv(path, KEY).rows()] == ["w0", "w1"]
    finally:
        holder.kill()
        holder.wait()


def test_a_row_that_is_replaced_keeps_its_neighbours_whatever_the_question_answers(tmp_path):
    table = TunedCsv(tmp_path / "t.csv", KEY)
    table.update([row_of(0, n) for n in (1, 2, 3)])
    asked = collections.Counter()

    def stays(current, new):
        asked[current.shape["N"]] += 1
        return current.shape["N"] == 2

    assert table.update([replace(row_of(1, n), us=1.0) for n in (2, 3, 4)], stays=stays) == 2
    assert {row.shape["N"]: row.kernelName for row in table.rows()} == {1: "w0", 2: "w0", 3: "w1", 4: "w1"}
    assert asked == {2: 1, 3: 1}


def test_nothing_is_written_where_every_row_stays(tmp_path):
    table = TunedCsv(tmp_path / "t.csv", KEY)
    table.update([row_of(0, 1)])
    before = (tmp_path / "t.csv").stat()

    assert table.update([row_of(1, 1)], stays=lambda current, new: True) == 0
    assert (tmp_path / "t.csv").stat() == before
