#!/usr/bin/env python3
"""What serving through an operator costs on the host, over launching its kernel directly.

    PYTHONPATH=. python3 tools/bench_ops.py                    on the current GPU; without one, gemm_cpu on the CPU
    PYTHONPATH=. python3 tools/bench_ops.py --json FILE        the figures as JSON too

Host time of calls that are queued without waiting (on a CPU: of calls of a tiny product), the best of many batches,
for: F.linear; the kernel launched directly with its config; ops.gemm_bf16 with a tuned row (a Triton kernel, and the
library's own) and without; the same replayed from a graph, and compiled, to see that both work. The cost of serving is
the difference between the operator and what it launches. Exit code 1 where that is more than 10 us. Under a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear

from aiter_tuning import ops
from aiter_tuning.devices.device import Device
from aiter_tuning.families import find_family
from aiter_tuning.ops.kernels import gemm_cpu as ways
from aiter_tuning.serving import bind, serve_from
from aiter_tuning.tables.tuned import TunedCsv, TunedRow

BAR_US = 10.0
BATCHES, CALLS = 60, 50
SHAPE = {"M": 16, "N": 256, "K": 512, "dtype": "bf16", "bias": False}
CPU_SHAPE = {"M": 1, "N": 16, "K": 16, "dtype": "fp32", "bias": False}


def host_us(call: Callable[[], object], wait: Callable[[], object]) -> float:
    """Microseconds that the host takes for a call, in the quickest batch; the queue is emptied before each."""
    for _ in range(3):
        call()
    quickest = float("inf")
    for _ in range(BATCHES):
        wait()
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        quickest = min(quickest, (time.perf_counter_ns() - began) / CALLS / 1e3)
    wait()
    return quickest


class Tables:
    """Tables with one row each, and none."""

    def __init__(self, directory: Path, name: str, device: str) -> None:
        self._directory, self._family, self._here = directory, find_family(name), bind(name, device=device).device

    def of(self, shape: Mapping[str, Any], name: str, config: Mapping[str, Any]) -> Path:
        path = self._directory / f"{name}.csv"
        row = TunedRow(*self._here, shape, 0, 0, 5.0, name, config=config)
        TunedCsv(path, self._family.key).update([row])
        return path

    @property
    def empty(self) -> Path:
        return self._directory / "none.csv"


def on_the_gpu(directory: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Figures, and the cost of serving by case."""
    from aiter_tuning.ops.kernels.gemm_bf16 import launch

    family, wait = find_family("gemm_bf16"), torch.cuda.synchronize
    tables = Tables(directory, "gemm_bf16", "cuda")
    inputs = family.inputs(SHAPE, "cuda", 0)
    a, weight = inputs["a"], inputs["weight"]
    here = bind("gemm_bf16", device="cuda").device
    candidates = family.candidates(SHAPE, Device("", "", "", *here))
    figures = {"F.linear": host_us(lambda: linear(a, weight), wait)}
    costs = {}
    for kind in dict.fromkeys(candidate.config["kernel"] for candidate in candidates):
        config = next(candidate for candidate in candidates if candidate.config["kernel"] == kind)
        if kind == "linear":
            direct = figures["F.linear"]
        else:
            direct = figures[f"{kind}, launched directly"] = host_us(
                lambda config=config: launch(a, weight, None, config.config), wait
            )
        with serve_from("gemm_bf16", tables.of(SHAPE, config.name, config.config)):
            served = figures[f"{kind}, served"] = host_us(lambda: ops.gemm_bf16(a, weight), wait)
            costs[kind] = served - direct
            if kind == "tiled":
                check_graph_and_compile(a, weight, figures)
    with serve_from("gemm_bf16", tables.empty):
        figures["no row, served"] = host_us(lambda: ops.gemm_bf16(a, weight), wait)
        costs["no row"] = figures["no row, served"] - figures["F.linear"]
    return figures, costs


def check_graph_and_compile(a: torch.Tensor, weight: torch.Tensor, figures: dict[str, float]) -> None:
    """Captures and compiles the operator; both have to give what it gives."""
    want = ops.gemm_bf16(a, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.gemm_bf16(a, weight)
    captured.zero_()
    graph.replay()
    torch.testing.assert_close(captured, want)
    figures["tiled, replayed from a graph"] = host_us(graph.replay, torch.cuda.synchronize)
    compiled = torch.compile(lambda x: ops.gemm_bf16(x, weight), fullgraph=True)
    torch.testing.assert_close(compiled(a), want)
    figures["tiled, compiled"] = host_us(lambda: compiled(a), torch.cuda.synchronize)


def on_the_cpu(directory: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The same for gemm_cpu, one thread, on a product that costs next to nothing."""
    torch.set_num_threads(1)
    tables = Tables(directory, "gemm_cpu", "cpu")
    inputs = find_family("gemm_cpu").inputs(CPU_SHAPE, "cpu", 0)
    a, weight = inputs["a"], inputs["weight"]
    figures = {"F.linear": host_us(lambda: linear(a, weight), lambda: None)}
    costs = {}
    for kernel in ("linear", "weight_transposed"):
        config = {"kernel": kernel}
        prepared = ways.prepare({"a": a, "weight": weight, "bias": None}, config)
        direct = figures[f"{kernel}, called directly"] = host_us(
            lambda prepared=prepared, config=config: ways.run(prepared, config), lambda: None
        )
        with serve_from("gemm_cpu", tables.of(CPU_SHAPE, kernel, config)):
            served = figures[f"{kernel}, served"] = host_us(
                lambda: ops.gemm_cpu(a, weight, constant_weight=True), lambda: None
            )
        costs[kernel] = served - direct
    with serve_from("gemm_cpu", tables.empty):
        figures["no row, served"] = host_us(lambda: ops.gemm_cpu(a, weight), lambda: None)
    costs["no row"] = figures["no row, served"] - figures["F.linear"]
    return figures, costs


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--json", metavar="FILE", help="write the figures as JSON too")
    args = parser.parse_args(argv)
    torch.set_grad_enabled(False)
    measure = on_the_gpu if torch.cuda.is_available() else on_the_cpu
    with tempfile.TemporaryDirectory() as directory:
        figures, costs = measure(Path(directory))
    for name, us in figures.items():
        print(f"{name:34} {us:8.2f} us")
    print("serving costs, over what it launches:")
    for name, us in costs.items():
        print(f"  {name:32} {us:8.2f} us{'   BEYOND 10 us' if us > BAR_US else ''}")
    if args.json:
        Path(args.json).write_text(json.dumps({"host_us": figures, "cost_us": costs}, indent=2) + "\n")
    return int(any(us > BAR_US for us in costs.values()))


if __name__ == "__main__":
    sys.exit(main())
