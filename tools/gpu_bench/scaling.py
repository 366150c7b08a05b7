"""The same work on one lane, on two, on all: what came of each second.

::

    tuner, whole process ─▶ profile: a row for each candidate, with its GPU and the moment ─▶ lanes' shapes in order
                                                                                               │
                one lane: seconds of each shape ──────────── the same shapes on n lanes ──────▶ share of linear
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.tables.csv_reader import read_rows
from gpu_bench.table import show
from gpu_bench.whole_process import TOOL, PartError, environment

BAR = 0.9
WORTH_TELLING = ("replaced", "retired", "standby takes", "no progress", "busy machine")
"""Notes of a run that explain a figure."""


class Moment(NamedTuple):
    """A candidate's verdict, as the profile has it."""

    shape: str
    device: str
    at: float
    """Seconds, as ``time.time``."""
    screened: bool
    """Whether it is the screening's, of which there is one for each candidate."""


class Span(NamedTuple):
    """A shape on its lane."""

    shape: str
    ended: float
    candidates: int


def moments(rows: Iterable[Mapping[str, str]], key: Sequence[str]) -> list[Moment]:
    """The verdicts in a profile's rows, in order of time; ``key`` names the columns that make a shape."""
    found = [
        Moment(
            "x".join(row[column] for column in key),
            row["device_uuid"],
            datetime.fromisoformat(row["time"]).timestamp(),
            row["phase"] == "screen",
        )
        for row in rows
        if row["event"] == "finished" and row["device_uuid"]
    ]
    return sorted(found, key=lambda moment: moment.at)


def lanes_of(found: Sequence[Moment]) -> dict[str, list[Span]]:
    """Each GPU's shapes in the order in which it ended them. A shape belongs to the GPU that ended it."""
    last: dict[str, Moment] = {moment.shape: moment for moment in found}
    screened = Counter(moment.shape for moment in found if moment.screened)
    lanes: dict[str, list[Span]] = {}
    for moment in sorted(last.values(), key=lambda moment: moment.at):
        lanes.setdefault(moment.device, []).append(Span(moment.shape, moment.at, screened[moment.shape]))
    return lanes


def seconds_of_shapes(lane: Sequence[Span]) -> dict[str, float]:
    """What each shape but the first took on its lane."""
    return {span.shape: span.ended - before.ended for before, span in pairwise(lane)}


def share_of_linear(alone: Mapping[str, float], lanes: Iterable[Sequence[Span]]) -> float:
    """Work done over time, from the second shape of each lane to the end of all; NaN if no lane has a second one.

    Args:
        alone: seconds of each shape on one lane alone. A shape that is not known there counts what it took here.
        lanes: the shapes of each lane.
    """
    lanes = [lane for lane in lanes if lane]
    end = max((lane[-1].ended for lane in lanes), default=0.0)
    work = sum(alone.get(shape, own) for lane in lanes for shape, own in seconds_of_shapes(lane).items())
    spent = sum(end - lane[0].ended for lane in lanes)
    return work / spent if work else float("nan")


def rate(lanes: Iterable[Sequence[Span]]) -> float:
    """Candidates a second from the moment when every lane has ended its first shape; NaN if nothing is left then."""
    lanes = [lane for lane in lanes if lane]
    since = max((lane[0].ended for lane in lanes), default=0.0)
    later = [span for lane in lanes for span in lane[1:] if span.ended > since]
    return sum(span.candidates for span in later) / (max(s.ended for s in later) - since) if later else float("nan")


def similar_shapes(count: int, size: int) -> list[tuple[int, int, int]]:
    """Distinct shapes of about the same work, all of whose sizes are multiples of 16: they share their binaries."""
    step = max(16, size // 32 // 16 * 16)
    rows = max(16, size // 4 // 16 * 16)
    found = [
        (rows + 16 * (number % 4), size + step * (number // 4), size - step * (number // 4 % 4))
        for number in range(count)
    ]
    if len(set(found)) < count or min(k for _, _, k in found) < 16:
        raise ValueError(f"there are no {count} shapes of about {size}")
    return found


def some_of(rows: Sequence[Any], count: int) -> list[Any]:
    """``count`` of the rows, evenly spaced; all if there are no more."""
    return [rows[number * len(rows) // count] for number in range(count)] if count < len(rows) else list(rows)


def measure_w1(arguments: argparse.Namespace, lanes: Sequence[int]) -> dict[str, Any]:
    from bench_multi_gpu import SHAPES_A_LANE

    shapes = similar_shapes(arguments.shapes or SHAPES_A_LANE * max(lanes), arguments.size)
    print(f"{len(shapes)} shapes, {shapes[0]} to {shapes[-1]}")
    return _measure(f"{TOOL}:W1", ["M", "N", "K"], shapes, arguments, lanes)


def measure_model(arguments: argparse.Namespace, lanes: Sequence[int]) -> dict[str, Any]:
    from bench_multi_gpu import MODEL_SHAPES_A_LANE

    with open(arguments.model, newline="") as file:
        header, *rows = csv.reader(file)
    shapes = some_of(rows, arguments.model_shapes or MODEL_SHAPES_A_LANE * max(lanes))
    print(f"{len(shapes)} of {len(rows)} shapes of {arguments.model}")
    return _measure("gemm_bf16", header, shapes, arguments, lanes)


def _measure(
    family: str,
    header: Sequence[str],
    shapes: Sequence[Sequence[Any]],
    arguments: argparse.Namespace,
    lanes: Sequence[int],
) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        for state, count in [("cold", max(lanes)), *(("warm", count) for count in lanes)]:
            run = _tune(family, header, shapes, arguments, count, cache)
            if state == "warm" or not arguments.no_cold:
                runs.append({"cache": state, "lanes": count, **run})
                print(
                    f"{state}, {count} lanes: {run['s']:.1f} s, {run['candidates']}, {', '.join(run['notes']) or 'ok'}",
                    flush=True,
                )
    return _account(runs)


def _tune(
    family: str,
    header: Sequence[str],
    shapes: Sequence[Sequence[Any]],
    arguments: argparse.Namespace,
    lanes: int,
    cache: Path,
) -> dict[str, Any]:
    """One run of the real tuner from scratch, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shapes.csv"
        file.write_text("".join(",".join(map(str, row)) + "\n" for row in (header, *shapes)))
        command = [sys.executable, "-m", "aiter_tuning", "tune", family, "-i", str(file), "-o", f"{folder}/tuned.csv"]
        command += ["--device", arguments.device, "--mp", str(lanes), "--json"]
        if arguments.iters is not None:
            command += ["--iters", str(arguments.iters)]
        # A home of its own: what earlier runs remember of candidates would make this one shorter.
        env = {**environment(cache), "AITER_TUNING_HOME": f"{folder}/home"}
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        ended = time.time()
        if done.returncode not in (0, 1):  # 1: some shape has no correct candidate
            raise PartError("the tuner", done.returncode, done.stderr + done.stdout)
        summary: dict[str, Any] = json.loads(done.stdout)
        found = moments([row.cells for row in read_rows(Path(summary["record_file"])).rows], header)
    spans = lanes_of(found)
    busy = list(summary["lanes"].values())
    return {
        "s": ended - began,
        "until_first_verdict_s": found[0].at - began,
        "candidates": summary["candidates"],
        "lane_s": {name: statistics.mean(lane.get(name, 0.0) for lane in busy) for name in busy[0]} if busy else {},
        "devices": {device: len(lane) for device, lane in spans.items()},
        "spans": {device: [span._asdict() for span in lane] for device, lane in spans.items()},
        "notes": [line for line in done.stderr.splitlines() if any(word in line for word in WORTH_TELLING)],
    }


def _account(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Puts the runs beside each other."""
    spans = [[[Span(**span) for span in lane] for lane in run["spans"].values()] for run in runs]
    single = next((lanes for run, lanes in zip(runs, spans, strict=True) if _is_single(run)), None)
    alone = seconds_of_shapes(single[0]) if single else {}
    for run, lanes in zip(runs, spans, strict=True):
        total = sum(run["candidates"].values())
        run["candidates_per_s"] = total / run["s"]
        run["later_candidates_per_s"] = _told(rate(lanes))
        run["measured_share"] = sum(run["lane_s"].get(name, 0.0) for name in ("measure", "finals")) / run["s"]
        warm = run["cache"] == "warm" and single is not None
        run["of_linear"] = _told(share_of_linear(alone, lanes)) if warm else None
    columns = ("cache", "lanes", "whole process s", "first verdict s", "candidates/s", "from the second shape on")
    columns += ("measuring", "of linear", "bar", "shapes of each lane")
    rows = [
        (
            run["cache"],
            run["lanes"],
            run["s"],
            run["until_first_verdict_s"],
            run["candidates_per_s"],
            "" if run["later_candidates_per_s"] is None else f"{run['later_candidates_per_s']:.1f}",
            f"{run['measured_share']:.0%}",
            "" if run["of_linear"] is None else f"{run['of_linear']:.3f}",
            "" if run["of_linear"] is None else "met" if run["of_linear"] >= BAR else f"missed: {BAR:g}",
            ", ".join(map(str, run["devices"].values())),
        )
        for run in runs
    ]
    show(columns, rows)
    for run in runs:
        seconds = ", ".join(f"{name} {value:.2f}" for name, value in run["lane_s"].items())
        print(f"{run['cache']}, {run['lanes']} lanes: mean seconds of a lane: {seconds}")
    return {"bar": BAR, "host_cores": len(os.sched_getaffinity(0)), "runs": runs}


def _told(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def _is_single(run: Mapping[str, Any]) -> bool:
    return run["cache"] == "warm" and run["lanes"] == 1
