"""The GPU benchmark, as far as it goes without one: workload, decisions, whole processes on tiny shapes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_tuning.devices.device import Device
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.fingerprint import source_digest

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "bench_gpu.py"
LANE = Device("fake:Fake", "gpu0", "GPU-0", "sm90", 132, "a GPU", "cuda:0")


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), *words]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.fixture
def in_tools(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOL.parent))


def test_the_workload_has_144_candidates_of_one_kernel():
    family = load_family(f"{TOOL}:W1")
    shape = {"M": 64, "N": 4096, "K": 4096}
    candidates = family.candidates(shape, LANE)
    assert 3 * len(candidates) == 144
    assert len({candidate.name for candidate in candidates}) == len({c.kernel_id for c in candidates}) == 48
    assert family.default(shape, LANE) in candidates
    assert json.loads(json.dumps(candidates[0].config)) == candidates[0].config


def test_its_kernel_is_part_of_its_candidates_and_is_not_imported_for_that():
    code = (
        "import sys\n"
        "from aiter_tuning.tuner.family_reference import load_family\n"
        "from aiter_tuning.tuner.fingerprint import _Walk\n"
        f"family = load_family({f'{TOOL}:W1'!r})\n"
        "walk = _Walk(type(family))\n"
        "walk.visit('run', type(family).run)\n"
        "print('module gpu_bench.kernels' in walk.found, sorted({'torch', 'triton'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"
    assert source_digest(load_family(f"{TOOL}:W1"), ("run",))


@pytest.mark.parametrize(
    "words", [("--part", "speed"), ("--shapes", "64x64"), ("--shapes", "64x64xK"), ("--shapes", "0x64x64")]
)
def test_what_makes_no_sense_is_refused_in_one_line(words):
    done = bench(*words)
    assert done.returncode == 2
    assert words[1] in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("part", ["w1", "faults", "aa", "regret"])
def test_without_a_gpu_each_part_ends_4_with_a_clear_line(part):
    if part_has_gpu():
        pytest.skip("there is a GPU here")
    done = bench("--part", part)
    assert done.returncode == 4, done.stderr
    assert "GPU" in done.stderr
    assert "Traceback" not in done.stderr


def part_has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.mark.slow
def test_the_whole_process_part_times_the_real_tuner(tmp_path):
    words = ["--part", "w1", "--device", "cpu", "--shapes", "4x16x32", "--iters", "1"]
    done = bench(*words, "--json", str(tmp_path / "figures.json"), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())["w1"]
    for state in ("cold", "warm"):
        assert figures[state]["candidates"] == {"ok": 48}
        assert figures[state]["s"] > figures[state]["lane"]["measure"] > 0
        assert len(figures[state]["chosen"]) == 1
    assert "aiter_tuning, warm" in done.stdout


@pytest.mark.usefixtures("in_tools")
def test_a_table_puts_numbers_to_the_right(capsys):
    from gpu_bench.table import show

    show(("fault", "s", "n"), [("exits", 0.5, 1), ("spins", 12.25, 10)])
    assert capsys.readouterr().out.splitlines() == ["fault       s   n", "exits  0.5000   1", "spins   12.25  10"]
