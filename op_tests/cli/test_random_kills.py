"""Killed at twenty random moments, a run still comes to the same end."""

import collections
import random
import time

import psutil
import pytest

from aiter_tuning.tables.csv_reader import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SIZES = range(1, 25)
KILLS = 20


def rows_of(path):
    return [row.cells for row in read_rows(path).rows]


def alive(processes):
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_killed_at_random_moments_ends_with_the_rows_of_an_undisturbed_one(tune, tmp_path, descendants, seed):
    choices = random.Random(seed)
    seen = []
    killed = 0
    while killed < KILLS:
        process = tune("Troubled", "--mp", "2", sizes=SIZES)
        time.sleep(choices.uniform(0.1, 2.5))
        if process.poll() is not None:
            break
        workers = descendants(process)
        seen += workers
        victim = choices.choice(["parent", "worker", "both"])
        if victim in ("worker", "both") and workers:
            choices.choice(workers).kill()
        if victim in ("parent", "both"):
            process.kill()
        else:
            time.sleep(choices.uniform(0.0, 0.5))
            process.kill()
        process.communicate()
        killed += 1
    assert killed > 3, "it was over before it could be disturbed"

    process = tune("Troubled", "--mp", "2", sizes=SIZES)
    _, err = process.communicate()

    assert process.returncode == 0, err
    tuned = [row["N"] for row in rows_of(tmp_path / "out.csv")]
    assert sorted(tuned, key=int) == [str(size) for size in SIZES], "every shape once"
    finished = collections.Counter(
        (row["N"], row["candidate"])
        for path in tmp_path.glob("out.profile.*.csv")
        for row in rows_of(path)
        if (row["event"], row["phase"]) == ("finished", "screen")
    )
    assert {name for name, count in finished.items() if count != 1} == set(), "measured twice"
    assert len(finished) == 6 * len(SIZES)
    deadline = time.monotonic() + 10
    while alive(seen) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(seen) == []
