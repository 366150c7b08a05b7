"""Real faults in the middle of a shape: what each costs, and how long until the next candidate runs."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiter_tuning import MpTunerTask, Pool
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import Clocks, RunEnd, Watcher
from aiter_tuning.status import Status
from aiter_tuning.task import ALL_INPUTS, Group
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.tasks import MakeInputs, MakeReference, RunCandidate
from gpu_bench.table import show
from gpu_bench.whole_process import TOOL

CLOCK_S = 3.0
"""What ends an endless kernel; every other candidate's kernel is in the compile cache by then."""
CANDIDATES = 8
MIDDLE = CANDIDATES // 2
TURNS = 2
EXPECTED = {
    "exits": (Status.crash,),
    "accesses_illegally": (Status.crash,),
    "asserts": (Status.crash,),
    "spins": (Status.timeout,),
}
BARS_S = {"exits": 0.5, "accesses_illegally": 1.0, "asserts": 1.0, "spins": 1.0}


class Clocked(Watcher):
    """When each candidate was handed out and when its verdict came."""

    def __init__(self) -> None:
        self.started: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.results: dict[int, Measurement] = {}
        self.notes: list[str] = []

    def before_start(self, group: int, index: int, attempt: int, lane: str) -> None:
        self.started[index] = time.monotonic()

    def measured(self, group: int, index: int, measurement: Measurement, *, logged: bool) -> None:
        self.ended[index] = time.monotonic()
        self.results[index] = measurement

    def note(self, text: str) -> None:
        self.notes.append(text)


def group_of(functions: Sequence[Any], shape: Sequence[int]) -> Group:
    """One shape of W1 with these functions as its candidates."""
    reference = f"{TOOL}:W1"
    sizes = dict(zip("MNK", shape, strict=True))
    make_inputs, make_reference = MakeInputs(reference), MakeReference(reference)
    tasks = tuple(
        MpTunerTask(
            info=(tuple(shape), index),
            gen_data=make_inputs,
            gen_args=(sizes, 0),
            func=function,
            args=(ALL_INPUTS,),
            kwargs={},
            ref_func=make_reference,
            ref_args=(ALL_INPUTS,),
            ref_kwargs={},
            ref=None,
        )
        for index, function in enumerate(functions)
    )
    return Group(tasks, tuple(range(len(tasks))), label="x".join(map(str, shape)))


def run(pool: Pool, functions: Sequence[Any], shape: Sequence[int], clocks: Clocks) -> Clocked:
    watcher = Clocked()
    outcome = pool.run([group_of(functions, shape)], MeasurePlan(), clocks, on_fault="continue", watcher=watcher)
    if outcome.end is not RunEnd.done or len(watcher.results) != len(functions):
        got = f"{len(watcher.results)} of {len(functions)} results"
        raise SystemExit(f"the run ended with {outcome} after {got}: {'; '.join(watcher.notes)}")
    return watcher


def time_recovery(arguments: argparse.Namespace) -> dict[str, Any]:
    from gpu_bench.faults import FAULTS, Fault, Noting, compile_kernels

    shape = arguments.shapes[0]
    family: Any = load_family(f"{TOOL}:W1")
    configs = [candidate.config for candidate in family.candidates({}, None)][:CANDIDATES]
    good = [RunCandidate(f"{TOOL}:W1", config) for config in configs]
    figures: dict[str, Any] = {}
    with Pool(arguments.device, 1) as pool, tempfile.TemporaryDirectory() as folder:
        run(pool, [compile_kernels, *good], shape, Clocks(candidate_s=120.0))
        clean = run(pool, good, shape, Clocks(candidate_s=60.0))
        for fault in FAULTS:
            name, turns = fault.__name__, []
            for turn in range(TURNS):
                _wait_for_standby(pool, good[:1], shape)
                last, following = Path(folder) / f"{name}.{turn}.last", Path(folder) / f"{name}.{turn}.next"
                functions = list(good)
                functions[MIDDLE] = Fault(name, str(last))
                functions[MIDDLE + 1] = Noting(configs[MIDDLE + 1], str(following))
                watcher = run(pool, functions, shape, Clocks(candidate_s=CLOCK_S, compile_s=CLOCK_S))
                turns.append(_account(name, watcher, clean, last, following))
            figures[name] = turns[0] | {"lost": max(turn["lost"] for turn in turns), "bar_s": BARS_S[name]}
            for field in ("others_off_pct", "handed_out_s", "running_s"):
                figures[name][field] = statistics.median(turn[field] for turn in turns)
    fields = ("lost", "verdict", "others_off_pct", "handed_out_s", "running_s", "bar_s", "detail")
    columns = ("fault", "lost", "verdict", "others off %", "handed out s", "running s", "bar s", "detail")
    show(columns, [(name, *(row[field] for field in fields[:-1]), row["detail"][:60]) for name, row in figures.items()])
    print(
        "lost: candidates without the result of a run without faults, the one at fault included\n"
        "others off: median difference of the others' latencies from that run\n"
        "seconds: from the death (of an endless kernel: from the end of its clock) until the next candidate was\n"
        "handed to a worker, and until its first call, its inputs made anew"
    )
    return figures


def _account(name: str, watcher: Clocked, clean: Clocked, last: Path, following: Path) -> dict[str, Any]:
    fault = watcher.results[MIDDLE]
    if fault.status not in EXPECTED[name]:
        raise SystemExit(f"{name} came back as {fault.status} ({fault.detail}), expected {EXPECTED[name][0]}")
    others = [index for index in watcher.results if index != MIDDLE]
    same = [i for i in others if watcher.results[i].status is clean.results[i].status]
    for index in set(others) - set(same):
        other = watcher.results[index]
        print(f"{name}: its neighbour {index} is {other.status} ({other.detail}), was {clean.results[index].status}")
    off = [abs(watcher.results[i].us / clean.results[i].us - 1) * 100 for i in same if clean.results[i].us > 0]
    if name == "spins":  # from when it was handed out; the worker's clock starts a moment later
        died = watcher.started[MIDDLE] + CLOCK_S
    else:
        died = float(last.read_text())
    return {
        "lost": 1 + len(others) - len(same),
        "verdict": str(fault.status),
        "detail": fault.detail,
        "others_off_pct": statistics.median(off) if off else 0.0,
        "handed_out_s": watcher.started[MIDDLE + 1] - died,
        "running_s": float(following.read_text()) - died,
    }


def _wait_for_standby(pool: Pool, functions: Sequence[Any], shape: Sequence[int]) -> None:
    deadline = time.monotonic() + 60.0
    while not pool.standbys_ready and time.monotonic() < deadline:
        run(pool, functions, shape, Clocks(candidate_s=60.0))
