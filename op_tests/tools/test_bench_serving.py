"""The tools that say what a lookup and an operator cost run to their end and tell what they measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("bench_lookup.py", {"hit by keywords", "hit, bound, by position", "repeated miss, recorded"}),
        ("bench_ops.py", {"host_us", "cost_us"}),
    ],
)
def test_a_bench_of_serving_tells_its_figures(tmp_path, tool, told):
    figures = tmp_path / "figures.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "tools" / tool, "--json", figures]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr  # 1: this machine is too busy for the bars
    assert "Traceback" not in done.stderr
    assert told <= set(json.loads(figures.read_text()))
