"""The virtual environment that quickstart, the tests and CI share: made once, found ready afterwards.

Standard library only, and readable by any Python 3.7 or later, because it has to be able to say that a Python is too
old. A stamp in ``.venv`` tells what it was made from; while that is unchanged a second run costs milliseconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "aiter_tuning.stamp"
OLDEST = (3, 11)
TORCH_WITHOUT_GPU = "torch==2.13.0"
"""What CI measures with. Where there is a GPU, its driver and vendor decide which torch fits."""
NEEDED_BYTES = 2 * 1024**3


def ready_python() -> Path:
    """The environment's interpreter, with the package and its ``dev`` extra in it; ends the program if it can't be."""
    with _one_at_a_time():
        wanted = _stamp_text()
        python = VENV / "bin" / "python"
        if python.exists() and STAMP.exists() and STAMP.read_text() == wanted:
            return python
        begin = time.monotonic()
        if not (python.exists() and _runs(python, "-m", "pip", "--version")):
            _make(python)
        if not has_gpu():
            _pip(python, "torch", TORCH_WITHOUT_GPU, note="the large one, some minutes on a slow line")
        _pip(python, "aiter_tuning and what it needs", "--editable", f"{ROOT}[dev]")
        if has_gpu():
            _pip_for_gpu(python)
        STAMP.write_text(wanted)
        say(f"environment ready in {VENV} ({time.monotonic() - begin:.0f} s); later runs skip this")
    return python


def has_gpu() -> bool:
    return any(shutil.which(tool) for tool in ("nvidia-smi", "rocm-smi", "amd-smi"))


def say(text: str) -> None:
    print(f"[setup] {text}", flush=True)


def fail(problem: str, remedy: str) -> NoReturn:
    print(f"\n{problem}\n  what to do: {remedy}", file=sys.stderr)
    raise SystemExit(4)


def _make(python: Path) -> None:
    base = _recent_interpreter()
    free = shutil.disk_usage(ROOT).free
    if free < NEEDED_BYTES:
        fail(
            f"only {free / 1024**3:.1f} GB free at {ROOT}; torch and the rest need {NEEDED_BYTES // 1024**3} GB",
            "free some space, or clone to a larger disk",
        )
    say(f"making {VENV} with {base}")
    done = subprocess.run([base, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True)
    if done.returncode != 0 or not _runs(python, "-m", "pip", "--version"):
        shutil.rmtree(VENV, ignore_errors=True)  # Debian leaves one without pip behind
        output = done.stdout + done.stderr
        if "ensurepip" in output or "No module named venv" in output:
            fail(
                f"{base} cannot make virtual environments: its venv or ensurepip module is missing",
                "on Debian and Ubuntu `apt install python3-venv`, then run this again",
            )
        fail(f"`{base} -m venv {VENV}` failed:\n{output.strip()}", "mend that, then run this again")


def _recent_interpreter() -> str:
    """This Python, or a newer one on the PATH."""
    if sys.version_info >= OLDEST:
        return sys.executable
    for minor in (13, 12, 11):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    fail(
        f"Python {'.'.join(map(str, OLDEST))} or later is needed; this is {sys.version.split()[0]} ({sys.executable})",
        "install one (`apt install python3.11 python3.11-venv`, pyenv, conda, …) and have it on the PATH",
    )


def _pip_for_gpu(python: Path) -> None:
    """What reads clocks and activity records: of the same release as torch's CUDA, or it does not work.

    Useful and not needed: what cannot be had is told, and the environment is ready all the same.
    """
    asked = "import torch; print(torch.version.cuda or ''); print(torch.version.hip or '')"
    done = subprocess.run([str(python), "-c", asked], capture_output=True, text=True)
    cuda, hip = [*done.stdout.splitlines(), "", ""][:2]
    if cuda and not shutil.which("nvidia-smi"):
        say(
            f"torch was built for CUDA, so the AMD GPU here stays unused: install one for ROCm with {python} -m pip, "
            "or set PIP_EXTRA_INDEX_URL to an index that has it and delete .venv, see pytorch.org"
        )
        return
    if cuda:
        wanted = ("nvidia-ml-py", f"cupti-python=={'.'.join(cuda.split('.')[:2])}.*")
    elif hip:
        wanted = ("amdsmi",)
    else:
        say("torch was built for the CPU only, so the GPU here stays unused: install one for it, see pytorch.org")
        return
    for package in wanted:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
        if subprocess.run(command, capture_output=True).returncode == 0:
            say(f"installed {package}")
        else:
            say(f"{package} could not be installed; `aiter-tune doctor` says what is missed without it")


def _pip(python: Path, what: str, *arguments: str, note: str = "") -> None:
    say(f"installing {what}" + (f" ({note})" if note else ""))
    command = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    if not sys.stdout.isatty():
        command.insert(4, "--quiet")
    begin = time.monotonic()
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    complaints = []
    for line in process.stderr:
        complaints.append(line)
        if not line.startswith("WARNING:"):  # warnings matter only where it fails
            sys.stderr.write(line)
    if process.wait() != 0:
        warnings = [line for line in complaints if line.startswith("WARNING:")]
        sys.stderr.writelines(warnings[-5:])
        fail(f"pip could not install {what} (exit code {process.returncode})", _remedy("".join(complaints)))
    say(f"installed {what} in {time.monotonic() - begin:.0f} s")


def _remedy(complaints: str) -> str:
    if "No space left" in complaints:
        return f"free some space at {VENV} and in TMPDIR, then run this again"
    unreachable = ("NewConnectionError", "Max retries", "timed out", "name resolution", "Connection refused", "Proxy")
    if any(sign in complaints for sign in unreachable):
        return (
            "the package index could not be reached: check the network and HTTPS_PROXY, or name a mirror with "
            "PIP_INDEX_URL, then run this again"
        )
    if "No matching distribution" in complaints:
        return (
            "no release fits this Python and system: try Python 3.11 to 3.13 on 64-bit Linux, or a mirror that has it"
        )
    return "read pip's message above; running this again goes on where it stopped"


def _runs(python: Path, *arguments: str) -> bool:
    try:
        return subprocess.run([str(python), *arguments], capture_output=True).returncode == 0
    except OSError:
        return False


def _stamp_text() -> str:
    """What the environment depends on; its own place too, because its scripts name it."""
    project = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    return f"{project} {VENV} {'gpu' if has_gpu() else TORCH_WITHOUT_GPU}\n"


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two programs started together make one environment; the lock is this folder's own, so nothing is left behind."""
    folder = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("waiting for another program that is setting the environment up")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
