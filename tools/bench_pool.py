#!/usr/bin/env python3
"""What the pool itself costs, beside other process pools in the same run.

    .venv/bin/python tools/bench_pool.py                    all parts, about four minutes
    .venv/bin/python tools/bench_pool.py --part cost        one part: cost, recovery, memory, start
    .venv/bin/python tools/bench_pool.py --json FILE        the figures as JSON too

cost      Microseconds per no-op candidate on an open pool of two workers. Ours: in shapes of 48 as a tuner runs them,
          with a status, a deadline and two checkpoint rows for each; and through mp_tuner, each on its own, with a
          status and a deadline. The other pools: their plainest call for a task, Pebble's with its timeout. The pools
          take turns, round after round; the median round counts.
recovery  From the death of a worker (or the end of a hung candidate's clock) to the start of the next candidate, with
          a standby ready and without standbys.
memory    How much the parent grows from 1,000 to 100,000 candidates, its own lists of tasks and results aside.
start     From the start of a Python process to its first result, beside ``import torch`` alone.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from aiter_tuning import MpTunerTask, Pool, mp_tuner
from aiter_tuning.keys import Key
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool.watcher import Clocks, Watcher
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
from aiter_tuning.task import Group

WORKERS = 2
SHAPE_SIZE = 48
CLOCK_S = 60.0
SIZES = (100, 1_000, 10_000, 100_000)
ROUNDS = {100: 15, 1_000: 9, 10_000: 5, 100_000: 3}
KEY = Key(M=int, N=int, K=int)
ONCE = {"num_warmup": 0, "num_iters": 1}
NOTHING: dict[str, Any] = {}


def no_op() -> None:
    """The candidate."""


def task(info: Any, func: Callable[..., Any] = no_op, *args: Any) -> MpTunerTask:
    return MpTunerTask(info, None, (), func, args, ONCE, None, (), NOTHING, None)


# Cost


class Counted(Watcher):
    """What a tuner does at the least: a verdict for each, and rows in the checkpoint that its worker wrote."""

    run_ahead = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.good = 0
        self._checkpoint = checkpoint

    def measured(self, group: int, index: int, measurement: Any, *, logged: bool) -> None:
        assert logged
        self.good += measurement.status is Status.ok
        self._checkpoint.sync_if_due()


class Shapes:
    """Shapes of no-op candidates, made when it is their turn; a sequence of groups."""

    def __init__(self, candidates: int, size: int, checkpoint: Checkpoint) -> None:
        self._candidates = candidates
        self._size = size
        self._checkpoint = checkpoint
        self._tasks = tuple(task(("shape", index)) for index in range(size))
        self._names = [f"no_op_{index}" for index in range(size)]
        self._prints = dict.fromkeys(self._names, "0123456789ab")

    def __len__(self) -> int:
        return -(-self._candidates // self._size)

    def __getitem__(self, number: int) -> Group:
        size = min(self._size, self._candidates - number * self._size)
        shape = {"M": number + 1, "N": 4096, "K": 4096}
        logbook = self._checkpoint.logbook(shape, self._names[:size], self._prints, {})
        return Group(self._tasks[:size], tuple(range(size)), logbook=logbook)


def ours(pool: Pool, directory: Path, size: int) -> Callable[[int], float]:
    """Seconds for so many candidates in shapes of ``size``."""
    serial = iter(range(1_000_000))

    def run(candidates: int) -> float:
        tuned = directory / f"run{next(serial)}.csv"
        with Checkpoint.open(tuned, KEY, RunFingerprint({"bench": "pool"})) as checkpoint:
            watcher = Counted(checkpoint)
            shapes: Any = Shapes(candidates, size, checkpoint)
            begin = time.perf_counter()
            pool.run(shapes, MeasurePlan(fast_mode=True), Clocks(candidate_s=CLOCK_S), watcher=watcher)
            seconds = time.perf_counter() - begin
            assert watcher.good == candidates, f"{watcher.good} of {candidates} were ok"
        return seconds

    return run


def ungrouped(pool: Pool) -> Callable[[int], float]:
    """Seconds for a plain call with tasks that share nothing; no checkpoint."""

    def run(tasks: int) -> float:
        work = [task(index) for index in range(tasks)]
        begin = time.perf_counter()
        mp_tuner(work, [(tasks, None)], fast_mode=True, return_status=True, candidate_timeout=CLOCK_S, pool=pool)
        return time.perf_counter() - begin

    return run


def futures_of(submit: Callable[[], Any]) -> Callable[[int], float]:
    """Seconds to submit so many tasks and to wait for each result."""

    def run(tasks: int) -> float:
        begin = time.perf_counter()
        futures = [submit() for _ in range(tasks)]
        for future in futures:
            future.result()
        return time.perf_counter() - begin

    return run


def cost(sizes: list[int]) -> dict[str, Any]:
    import loky
    import pebble

    spawn = multiprocessing.get_context("spawn")
    table: dict[str, dict[int, float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Pool("cpu", WORKERS) as pool,
        spawn.Pool(WORKERS) as plain,
        ProcessPoolExecutor(WORKERS, mp_context=spawn) as executor,
        pebble.ProcessPool(WORKERS, context=spawn) as with_timeout,
    ):
        reusable = loky.get_reusable_executor(WORKERS)

        def multiprocessing_pool(tasks: int) -> float:
            begin = time.perf_counter()
            for result in [plain.apply_async(no_op) for _ in range(tasks)]:
                result.get()
            return time.perf_counter() - begin

        runners = {
            f"aiter_tuning, shapes of {SHAPE_SIZE}": ours(pool, Path(folder), SHAPE_SIZE),
            "mp_tuner, ungrouped": ungrouped(pool),
            "multiprocessing.Pool": multiprocessing_pool,
            "concurrent.futures": futures_of(lambda: executor.submit(no_op)),
            "Pebble with timeout": futures_of(lambda: with_timeout.schedule(no_op, timeout=CLOCK_S)),
            "loky": futures_of(lambda: reusable.submit(no_op)),
        }
        for run in runners.values():
            run(2 * SHAPE_SIZE)
        wait_for_standbys(pool)
        for size in sizes:
            rounds: dict[str, list[float]] = {name: [] for name in runners}
            for _ in range(ROUNDS.get(size, 3)):
                for name, run in runners.items():
                    gc.collect()
                    rounds[name].append(run(size) / size * 1e6)
            for name, values in rounds.items():
                table.setdefault(name, {})[size] = statistics.median(values)
        reusable.shutdown()
    print(f"\nmicroseconds per no-op candidate, {WORKERS} workers, median of rounds in turn")
    print(f"{'':32}" + "".join(f"{size:>12,}" for size in sizes))
    for name, row in table.items():
        print(f"{name:32}" + "".join(f"{row[size]:12.1f}" for size in sizes))
    return {name: {str(size): round(us, 2) for size, us in row.items()} for name, row in table.items()}


def wait_for_standbys(pool: Pool) -> None:
    """Runs small groups until every standby has finished importing."""
    groups = [Group((task(("warm", 0)),), (0,)) for _ in range(2 * WORKERS)]
    while not pool.standbys_ready:
        pool.run(groups, MeasurePlan(fast_mode=True))


# Recovery


def says_when(file: str) -> None:
    Path(file).write_text(str(time.monotonic()))


def exits(file: str) -> None:
    says_when(file)
    os._exit(7)


def segfaults(file: str) -> None:
    says_when(file)
    ctypes.string_at(0)


def hangs(file: str) -> None:
    says_when(file)
    while True:
        pass


RECOVERY_CLOCK_S = 0.5


def recovery() -> dict[str, Any]:
    figures: dict[str, dict[str, float]] = {}
    for standbys in (True, False):
        with tempfile.TemporaryDirectory() as folder, Pool("cpu", 1, standbys=standbys) as pool:
            for fault in (exits, segfaults, hangs):
                seconds = []
                for _ in range(5):
                    if standbys:
                        wait_for_standbys(pool)
                    last, following = f"{folder}/last", f"{folder}/next"
                    tasks = [task(("s", 0), fault, last), task(("s", 1), says_when, following)]
                    _, result = mp_tuner(
                        tasks,
                        [(2, None)],
                        fast_mode=True,
                        shape_grouped=True,
                        return_status=True,
                        on_fault="continue",
                        candidate_timeout=RECOVERY_CLOCK_S,
                        pool=pool,
                    )
                    assert result.status is Status.ok, result
                    died = float(Path(last).read_text()) + (RECOVERY_CLOCK_S if fault is hangs else 0.0)
                    seconds.append(float(Path(following).read_text()) - died)
                figures.setdefault(fault.__name__, {})["standby" if standbys else "none"] = statistics.median(seconds)
    print("\nseconds from a worker's death (or the end of the clock) to the next candidate's start, median of 5")
    print(f"{'':32}{'standby ready':>16}{'no standby':>16}")
    for name, row in figures.items():
        print(f"{name:32}{row['standby']:16.3f}{row['none']:16.3f}")
    return figures


# Memory


def resident_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


def memory() -> dict[str, Any]:
    """In fresh processes, one for each size."""
    figures = {}
    for size in (1_000, 100_000):
        out = subprocess.run(
            [sys.executable, __file__, "--grow", str(size)], capture_output=True, text=True, check=True
        )
        figures[str(size)] = float(out.stdout.split()[-1])
    figures["growth"] = figures["100000"] - figures["1000"]
    print("\nparent's growth during a call of mp_tuner, its lists of tasks and results aside (MB)")
    print(f"  1,000 candidates {figures['1000']:.1f}; 100,000 candidates {figures['100000']:.1f}")
    return figures


def grow(size: int) -> None:
    with Pool("cpu", WORKERS) as pool:
        mp_tuner([task(("s", 0))], [(1, None)], fast_mode=True, pool=pool)
        tasks = [task((f"shape{index // SHAPE_SIZE}", index)) for index in range(size)]
        shapes = [(min(SHAPE_SIZE, size - start), None) for start in range(0, size, SHAPE_SIZE)]
        before = resident_mb()
        peak = 0.0
        told = 0

        def callback(result: Any) -> None:
            nonlocal peak, told
            told += 1
            if told % 500 == 0:
                peak = max(peak, resident_mb())

        results = mp_tuner(
            tasks, shapes, fast_mode=True, shape_grouped=True, return_status=True, result_callback=callback, pool=pool
        )
        own = sum(sys.getsizeof(result) + 2 * sys.getsizeof(1.0) for result in results) + sys.getsizeof(results)
        print(max(peak, resident_mb()) - before - own / 1e6)


# Start

FIRST_RESULT = """
import time
from aiter_tuning import MpTunerTask, mp_tuner
task = MpTunerTask(("s", 0), None, (), int, (), {"num_warmup": 0, "num_iters": 1}, None, (), {}, None)
mp_tuner([task], [(1, None)], fast_mode=True, result_callback=lambda result: print(time.time()), devices="cpu")
"""


def start() -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"import torch": [], "first result": []}
    for _ in range(5):
        begin = time.time()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        seconds["import torch"].append(time.time() - begin)
        begin = time.time()
        done = subprocess.run([sys.executable, "-c", FIRST_RESULT], capture_output=True, text=True, check=True)
        seconds["first result"].append(float(done.stdout) - begin)
    figures = {name: statistics.median(values) for name, values in seconds.items()}
    print("\nseconds from the start of a process, median of 5")
    for name, value in figures.items():
        print(f"  {name:16}{value:8.2f}")
    return figures


PARTS: dict[str, Callable[[], dict[str, Any]]] = {"recovery": recovery, "memory": memory, "start": start}


def main() -> None:
    logging.getLogger("aiter_tuning").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=["cost", *PARTS], help="only this part; may be repeated")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of candidates for the cost")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    parser.add_argument("--grow", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.grow:
        grow(arguments.grow)
        return
    figures: dict[str, Any] = {"cpus": len(os.sched_getaffinity(0)), "python": sys.version.split()[0]}
    for part in arguments.part or ["cost", *PARTS]:
        figures[part] = cost([int(size) for size in arguments.sizes.split(",")]) if part == "cost" else PARTS[part]()
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
