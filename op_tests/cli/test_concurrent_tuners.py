"""Several tuners, one tuned CSV: whole runs with real workers, killed at random, while a reader reads."""

import collections
import random
import threading

import pytest

from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tuner.family_reference import load_family
from op_tests.cli.conftest import TINY
from op_tests.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIZES = {"a": range(1, 13), "b": range(7, 19), "c": range(13, 25)}
"""Of each tuner: half of its shapes are also another one's."""
KILLS = 4


@pytest.fixture
def start(command, tmp_path):
    """Starts the tuner of one of the lists of sizes."""
    for name, sizes in SIZES.items():
        (tmp_path / f"{name}.csv").write_text("N\n" + "".join(f"{size}\n" for size in sizes))

    def run(name):
        # A row at a time, so that they meet in the table.
        return command("tune", f"{TINY}:Tiny", "-i", f"{name}.csv", "-o", "out.csv", "--batch", "1", "--device", "cpu")

    return run


@pytest.fixture
def trouble(tmp_path):
    """What a reader that reads the table over and over had to complain about."""
    seen, stop = [], threading.Event()

    def read():
        table = TunedCsv(tmp_path / "out.csv", load_family(f"{TINY}:Tiny").key)
        rows = 0
        while not stop.is_set():
            try:
                found = len(table.rows())
            except Exception as error:
                seen.append(error)
                return
            if found < rows or table.warnings:
                seen.append(f"{rows} rows became {found}; {table.warnings}")
            rows = found

    reader = threading.Thread(target=read)
    reader.start()
    yield seen
    stop.set()
    reader.join()


def rows_of(path):
    return [row.cells for row in read_rows(path).rows]


def finished_in(tmp_path):
    return sum(row["event"] == "finished" for path in tmp_path.glob("out.checkpoint*.csv") for row in rows_of(path))


@pytest.mark.parametrize("seed", [1, 2])
def test_tuners_that_are_killed_leave_every_shape_with_one_row_and_a_record_of_each_measurement(
    start, trouble, tmp_path, seed
):
    choices = random.Random(seed)
    running = {name: start(name) for name in SIZES}
    for _ in range(KILLS):
        before = finished_in(tmp_path)
        target = before + choices.randrange(1, 6)
        wait_for(
            lambda target=target: (
                finished_in(tmp_path) >= target or all(process.poll() is not None for process in running.values())
            ),
            60,
        )
        victim = choices.choice(list(SIZES))
        running[victim].kill()
        running[victim].communicate()
        running[victim] = start(victim)
    said = {name: process.communicate() for name, process in running.items()}
    assert {name: process.returncode for name, process in running.items()} == dict.fromkeys(SIZES, 0), said

    for name in SIZES:  # undisturbed, one after the other
        process = start(name)
        _, err = process.communicate()
        assert process.returncode == 0, err

    rows = rows_of(tmp_path / "out.csv")
    assert sorted(int(row["N"]) for row in rows) == list(range(1, 25)), "every shape once"
    assert {row["kernelName"] for row in rows} == {"quick"}
    best = collections.defaultdict(list)
    for path in (*tmp_path.glob("out.checkpoint*.csv"), *tmp_path.glob("out.profile.*.csv")):
        for row in rows_of(path):
            if row["event"] == "finished":
                best[int(row["N"]), row["candidate"]].append(float(row["us"]))
    assert set(best) >= {(n, name) for n in range(1, 25) for name in ("steady", "quick")}
    assert trouble == []
    assert not list(tmp_path.glob("*.checkpoint*")), "nothing is left to be done"
