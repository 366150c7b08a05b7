"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def family_file(tmp_path) -> Path:
    source = next(block for block in python_blocks() if "class RmsNorm" in block)
    path = tmp_path / "rms_norm.py"
    path.write_text(source)
    return path


def test_the_family_is_short(family_file):
    assert len(family_file.read_text().splitlines()) <= 50


def test_every_candidate_of_the_family_is_right(family_file):
    import torch

    from aiter_tuning.tuner.family_reference import load_family

    family = load_family(f"{family_file}:RmsNorm")
    inputs = family.inputs({"rows": 3, "columns": 64, "dtype": "fp32"}, "cpu", 0)
    wanted = family.reference(inputs)
    results = [family.run(inputs, candidate.config) for candidate in family.candidates({}, None)]
    assert len(results) == 3
    for result in results:
        torch.testing.assert_close(result, wanted, rtol=family.tolerance.rtol, atol=family.tolerance.atol)


def test_the_command_finds_the_family(family_file, tmp_path):
    shapes = tmp_path / "norms.csv"
    shapes.write_text("rows,columns\n1,4096\n128,4096\n")
    command = [
        "-m",
        "aiter_tuning",
        "tune",
        "rms_norm.py:RmsNorm",
        "-i",
        "norms.csv",
        "-o",
        "norms_tuned.csv",
        "--dry_run",
    ]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "2 shapes, 6 candidates" in done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".csv") == ["norms.csv"]


def test_the_script_gives_a_verdict_for_each_task(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(next(block for block in python_blocks() if "mp_tuner(" in block))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    verdicts = [line.split()[:2] for line in done.stdout.splitlines()]
    assert verdicts == [["double", "ok"], ["die", "crash"], ["add", "ok"], ["wrong", "mismatch"]], done.stderr


def test_links_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_exit_codes_are_those_of_the_program():
    from aiter_tuning.tuner.outcome import ExitCode

    documented = {int(code) for code in re.findall(r"^\| (\d) \|", README, re.MULTILINE)}
    assert documented == {int(code) for code in ExitCode}


def test_every_command_can_be_pasted_into_a_fresh_clone():
    commands = re.findall(r"^(?:\$ )?(\S*aiter-tune) ", README, re.MULTILINE)
    assert len(commands) > 4
    assert set(commands) == {".venv/bin/aiter-tune"}
