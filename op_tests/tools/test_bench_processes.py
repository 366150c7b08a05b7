"""The tool that tells how much a row's gain differs from process to process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.families.gemm_cpu import GemmCpu
from aiter_tuning.tables.tuned import TunedCsv, TunedRow

ROOT = Path(__file__).parents[2]
SHAPE = {"M": 1, "N": 64, "K": 64, "dtype": "fp32", "bias": False}


def bench(table, *words):
    command = [sys.executable, "tools/bench_processes.py", str(table), "--family", "gemm_cpu", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def row(kernel, **device):
    (lane,) = cpu_lanes(1)
    here = {"gfx": lane.gfx, "cu_num": lane.cu_num, "gpu_model": lane.gpu_model} | device
    (config,) = (one.config for one in GemmCpu().candidates(SHAPE, lane) if one.name == kernel)
    return TunedRow(**here, shape=SHAPE, kernelId=0, splitK=0, us=5.0, kernelName=kernel, config=config)


def test_a_table_without_a_row_to_time_is_told_so(tmp_path):
    table = tmp_path / "tuned.csv"
    TunedCsv(table, GemmCpu.key).update([row("linear"), row("vector", gpu_model="another")])

    done = bench(table, "--device", "cpu")

    assert done.returncode == 2
    assert "has 2 rows, none for " in done.stdout


@pytest.mark.slow
def test_a_row_is_timed_in_each_process(tmp_path):
    table, file = tmp_path / "tuned.csv", tmp_path / "figures.json"
    TunedCsv(table, GemmCpu.key).update([row("vector")])

    done = bench(table, "--processes", "2", "--json", str(file))

    assert done.returncode == 0, done.stderr
    (figures,) = json.loads(file.read_text())
    assert len(figures["each_pct"].split()) == 2
    assert figures["least_pct"] <= figures["median_pct"] <= figures["most_pct"]
