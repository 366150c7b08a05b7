"""Whole processes on a clock: the tuner on W1, and triton.autotune on the same kernel."""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_bench.table import show

TOOL = Path(__file__).resolve().parents[1] / "bench_gpu.py"
ROOT = TOOL.parents[1]


class PartError(SystemExit):
    """A process of a part failed; its last words are printed, its exit code is ours."""

    def __init__(self, what: str, code: int, output: str) -> None:
        sys.stderr.write(f"{what} ended with {code}:\n{output[-4000:]}\n")
        super().__init__(code if code > 0 else 1)


def environment(cache: Path) -> dict[str, str]:
    """Ours, with a compile cache of its own, and with bytecode on file, as it is for whatever pip has installed.

    Without it every process compiles torch's Python sources anew, for seconds, and of that is what would be compared.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    bytecode = str(_bytecode())
    return {**ours, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(cache), "PYTHONPYCACHEPREFIX": bytecode}


@functools.cache
def _bytecode() -> Path:
    """A directory of bytecode: of our own modules from the start, of all others as they are imported."""
    directory = Path(tempfile.mkdtemp(prefix="bench_gpu.bytecode."))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(directory)}
    command = [sys.executable, "-m", "compileall", "-q", str(ROOT / "aiter_tuning"), str(TOOL.parent)]
    subprocess.run(command, env=env, check=False, stdout=subprocess.DEVNULL)
    return directory


def timed(what: str, command: Sequence[str], env: dict[str, str]) -> tuple[float, str]:
    """Seconds of a process, and what it printed."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=env)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise PartError(what, done.returncode, done.stderr + done.stdout)
    return seconds, done.stdout


def tune(arguments: argparse.Namespace, cache: Path) -> tuple[float, dict[str, Any]]:
    """One run of the real tuner from scratch in a process of its own: its seconds and its summary."""
    with tempfile.TemporaryDirectory() as folder:
        shapes = Path(folder) / "shapes.csv"
        shapes.write_text("M,N,K\n" + "".join(",".join(map(str, shape)) + "\n" for shape in arguments.shapes))
        command = ["-m", "aiter_tuning", "tune", f"{TOOL}:W1", "-i", str(shapes), "-o", f"{folder}/tuned.csv"]
        command += ["--device", arguments.device, "--json"]
        if arguments.iters is not None:
            command += ["--iters", str(arguments.iters)]
        seconds, output = timed("the tuner", command, environment(cache))
    summary: dict[str, Any] = json.loads(output)
    return seconds, summary


def autotune(arguments: argparse.Namespace, cache: Path) -> tuple[float, list[str]]:
    """triton.autotune in a process of its own: its seconds, and the config chosen for each shape."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chosen.json"
        shapes = ",".join("x".join(map(str, shape)) for shape in arguments.shapes)
        command = [str(TOOL), "--autotune", str(file), "--shapes", shapes]
        seconds, _ = timed("triton.autotune", command, environment(cache))
        chosen: list[str] = json.loads(file.read_text())
    return seconds, chosen


def has_autotune(arguments: argparse.Namespace) -> bool:
    return not arguments.no_autotune and arguments.device != "cpu"


def time_whole_processes(arguments: argparse.Namespace) -> dict[str, Any]:
    on_gpu = arguments.device != "cpu"
    start = (
        "import torch, triton; torch.zeros(1, device='cuda'); torch.cuda.synchronize()" if on_gpu else "import torch"
    )
    rounds: list[dict[str, Any]] = []
    for number in range(arguments.repeat):
        with tempfile.TemporaryDirectory() as folder:
            cache, other_cache = Path(folder) / "ours", Path(folder) / "autotune"
            figures: dict[str, Any] = {}
            bare = [timed("import torch", ["-c", start], environment(cache))[0] for _ in range(2)]
            figures["import_and_context_s"] = min(bare)
            for state in ("cold", "warm"):
                seconds, summary = tune(arguments, cache)
                figures[state] = _account(seconds, summary, figures["import_and_context_s"])
            if has_autotune(arguments):
                for state in ("cold", "warm"):
                    figures[f"autotune_{state}_s"] = autotune(arguments, other_cache)[0]
            _print(figures, f"run {number + 1} of {arguments.repeat}" if arguments.repeat > 1 else "")
            rounds.append(figures)
    return rounds[0] if len(rounds) == 1 else {"rounds": rounds}


def _account(seconds: float, summary: dict[str, Any], bare_s: float) -> dict[str, Any]:
    """Where a run's time went, and what came of it."""
    lanes = list(summary["lanes"].values())
    lane = {name: statistics.mean(lane[name] for lane in lanes) for name in lanes[0]} if lanes else {}
    return {
        "s": seconds,
        "beyond_s": seconds - bare_s,
        "run_s": summary["elapsed_s"],
        "lane": lane,
        "measured_share": lane.get("measure", 0.0) / seconds,
        "candidates": summary["candidates"],
        "chosen": [shape["kernel"] for shape in summary["shapes"]],
    }


def _print(figures: dict[str, Any], title: str) -> None:
    bare, cold = figures["import_and_context_s"], figures["cold"]["s"]
    rows: list[tuple[object, ...]] = [("import torch and a context", bare, 0.0, bare / cold)]
    for state in ("cold", "warm"):
        for name, seconds in (
            (f"aiter_tuning, {state}", figures[state]["s"]),
            (f"triton.autotune, {state}", figures.get(f"autotune_{state}_s")),
        ):
            if seconds is not None:
                rows.append((name, seconds, seconds - bare, seconds / cold))
    print(title)
    show(("seconds of a whole process", "all", "beyond the first", "÷ our cold"), rows)
    for state in ("cold", "warm"):
        row = figures[state]
        lane = ", ".join(f"{name} {value:.2f}" for name, value in row["lane"].items())
        counts = ", ".join(f"{count} {status}" for status, count in row["candidates"].items())
        print(f"{state}: the lane measured {row['measured_share']:.0%} of the time (seconds: {lane}); {counts}")
