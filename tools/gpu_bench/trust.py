"""How far the choices of whole runs are from the best: regret against an interleaved truth of its own."""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from aiter_tuning.tuner.family_reference import load_family
from gpu_bench.interleaved import Candidate, Replay, best_of, sample
from gpu_bench.table import show
from gpu_bench.whole_process import TOOL, autotune, has_autotune, tune

SEED = 1
KEPT = 12
"""Configs of the ground truth, beside those that somebody chose."""


def configs_by_name() -> dict[str, dict[str, int]]:
    family: Any = load_family(f"{TOOL}:W1")
    return {candidate.name: dict(candidate.config) for candidate in family.candidates({}, None)}


def _freeze_imports() -> None:
    """Capturing a graph may collect garbage, which takes 0.1 s over all that torch brings unless that is left out."""
    import torch  # noqa: F401

    gc.collect()
    gc.freeze()


def measure_regret(arguments: argparse.Namespace) -> dict[str, Any]:
    configs = configs_by_name()
    chosen: dict[str, list[list[str]]] = {"aiter_tuning": []}
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        # The runs differ in the state of the compile cache only: the first one fills it.
        for _ in range(arguments.runs):
            _, summary = tune(arguments, cache)
            chosen["aiter_tuning"].append([shape["kernel"] for shape in summary["shapes"]])
        if has_autotune(arguments):
            chosen["triton.autotune"] = [autotune(arguments, cache)[1]]
        os.environ["TRITON_CACHE_DIR"] = str(cache)
        _freeze_imports()
        truths = [
            _truth(tuple(shape), {run[number] for runs in chosen.values() for run in runs}, configs, arguments.blocks)
            for number, shape in enumerate(arguments.shapes)
        ]
    figures: dict[str, Any] = {"shapes": {}}
    every: dict[str, list[float]] = {who: [] for who in chosen}
    for number, (shape, truth) in enumerate(zip(arguments.shapes, truths, strict=True)):
        best = min(truth, key=lambda name: truth[name])
        names = {who: [run[number] for run in runs] for who, runs in chosen.items()}
        regret = {who: [truth[name] / truth[best] for name in names[who]] for who in chosen}
        for who, values in regret.items():
            every[who] += values
        label = "x".join(map(str, shape))
        figures["shapes"][label] = {"best": best, "us": truth[best], "regret": regret, "chosen": names, "truth": truth}
    columns = ["shape", "best config", "us", "second"]
    for who in chosen:
        columns += [f"{who}: mean", "worst", "chosen"]
    rows = []
    for label, figure in figures["shapes"].items():
        row = [label, figure["best"], figure["us"], sorted(figure["truth"].values())[1] / figure["us"]]
        for who, values in figure["regret"].items():
            row += [statistics.mean(values), max(values), ", ".join(sorted(set(figure["chosen"][who])))]
        rows.append(row)
    show(columns, rows)
    for who, values in every.items():
        figures[who] = {"mean": statistics.mean(values), "worst": max(values), "runs": len(chosen[who])}
        print(f"{who}: mean {figures[who]['mean']:.4f}, worst {figures[who]['worst']:.4f} of {len(values)} choices")
    return figures


def _truth(
    shape: tuple[int, ...], chosen: set[str], configs: dict[str, dict[str, int]], blocks: int
) -> dict[str, float]:
    """Median latency by name, in microseconds, of the best configs and of those that were chosen, interleaved."""
    rings: dict[tuple[int, ...], list[Any]] = {}
    names = {id(config): name for name, config in configs.items()}
    candidates = [Candidate(config, shape) for config in configs.values()]
    kept = best_of(candidates, KEPT, lambda candidate: Replay(candidate, rings))
    kept += [c for c in candidates if names[id(c.config)] in chosen and c not in kept]
    samples = sample([Replay(candidate, rings) for candidate in kept], blocks, random.Random(SEED))
    return {names[id(c.config)]: statistics.median(values) for c, values in zip(kept, samples, strict=True)}
