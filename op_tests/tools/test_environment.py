"""Setting up says what is missing and what to do about it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def in_tools(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    prelude = f"import sys; sys.path.insert(0, {str(TOOLS)!r}); import environment; from pathlib import Path\n"
    return subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_a_python_that_is_too_old_is_told_which_one_to_install(tmp_path):
    done = in_tools("environment.OLDEST = (99, 1); environment._recent_interpreter()", PATH=str(tmp_path))
    assert done.returncode == 4
    assert "Python 99.1 or later is needed; this is 3." in done.stderr
    assert "what to do: install one" in done.stderr


def test_an_old_python_hands_over_to_a_newer_one_on_the_path(tmp_path):
    newer = tmp_path / "python3.12"
    newer.write_text("#!/bin/sh\n")
    newer.chmod(0o755)
    done = in_tools("environment.OLDEST = (99, 1); print(environment._recent_interpreter())", PATH=str(tmp_path))
    assert done.stdout.strip() == str(newer)


def test_a_missing_ensurepip_names_the_package_to_install(tmp_path):
    python = tmp_path / "python-without-ensurepip"
    python.write_text(
        "#!/bin/sh\necho 'The virtual environment was not created: ensurepip is not available.'\nexit 1\n"
    )
    python.chmod(0o755)
    done = in_tools(
        f"environment.VENV = Path({str(tmp_path / 'venv')!r})\n"
        f"environment._recent_interpreter = lambda: {str(python)!r}\n"
        "environment._make(environment.VENV / 'bin' / 'python')"
    )
    assert done.returncode == 4
    assert "apt install python3-venv" in done.stderr


def test_too_little_disk_is_said_before_anything_is_installed(tmp_path):
    done = in_tools(
        f"environment.VENV = Path({str(tmp_path / 'venv')!r}); environment.NEEDED_BYTES = 1 << 60\n"
        "environment._make(environment.VENV / 'bin' / 'python')"
    )
    assert done.returncode == 4
    assert "GB free" in done.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("complaint", "remedy"),
    [
        ("ERROR: [Errno 28] No space left on device", "free some space"),
        ("WARNING: Retrying after NewConnectionError(...)", "the network"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no release fits this Python"),
        ("ERROR: something new", "read pip's message"),
    ],
)
def test_a_failing_pip_is_explained(complaint, remedy):
    done = in_tools(f"print(environment._remedy({complaint!r}))")
    assert remedy in done.stdout


@pytest.mark.parametrize(
    ("tool", "built_for", "expected"),
    [
        ("rocm-smi", "13.0", "the AMD GPU here stays unused"),
        ("amd-smi", "13.0", "the AMD GPU here stays unused"),
        ("rocm-smi", "\\n6.4.43482", "installed amdsmi"),
        ("nvidia-smi", "13.0", "installed cupti-python==13.0.*"),
    ],
)
def test_a_torch_for_the_other_vendors_gpus_is_told(tmp_path, tool, built_for, expected):
    (tmp_path / tool).write_text("#!/bin/sh\n")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n[ \"$1\" = -c ] && printf '{built_for}\\n'\nexit 0\n")
    for program in (tmp_path / tool, python):
        program.chmod(0o755)
    done = in_tools(f"environment._pip_for_gpu(Path({str(python)!r}))", PATH=str(tmp_path))
    assert expected in done.stdout, done.stderr
    assert ("cupti" in done.stdout) == (tool == "nvidia-smi")


def test_the_environment_is_found_ready_without_calling_pip(tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    setup = f"environment.VENV = Path({str(venv)!r}); environment.STAMP = environment.VENV / 'stamp'\n"
    ready = setup + (
        "environment.STAMP.write_text(environment._stamp_text())\n"
        "environment._pip = environment._make = None\n"
        "print(environment.ready_python())"
    )
    assert in_tools(ready).stdout.strip() == str(venv / "bin" / "python")


def test_a_changed_project_file_makes_the_environment_stale(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    done = in_tools(
        f"environment.ROOT = Path({str(tmp_path)!r}); before = environment._stamp_text()\n"
        "(environment.ROOT / 'pyproject.toml').write_text('[project]\\nname = \"x\"\\n')\n"
        "print(before == environment._stamp_text(), before == before)"
    )
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("tool", ["quickstart.py", "run_tests.py", "triton_matrix.py"])
def test_help_is_answered_without_setting_anything_up(tmp_path, tool):
    clone = tmp_path / "clone"
    shutil.copytree(TOOLS, clone / "tools")
    shutil.copy(TOOLS.parent / "pyproject.toml", clone)
    before = sorted(clone.iterdir())

    done = subprocess.run([sys.executable, clone / "tools" / tool, "--help"], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert tool in done.stdout
    assert sorted(clone.iterdir()) == before
