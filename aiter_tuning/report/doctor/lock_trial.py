"""Do locks work in this directory? Two processes find out.

::

    this process   lock ─────────── "held" ──┐         unlock ── "free" ──┐
    a second one                             └─ try: kept out?            └─ try: let in?
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from aiter_tuning.report.doctor.facts import LockTrial
from aiter_tuning.tables.lock import FileLock

_PATIENCE_S = 30.0
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
_SECOND = """
import sys
sys.path.insert(0, sys.argv[2])
from aiter_tuning.tables.lock import FileLock, LockTimeoutError
try:
    with FileLock(sys.argv[1], timeout=0):
        print("let in")
except LockTimeoutError:
    print("kept out")
"""


def try_locks(directory: Path) -> LockTrial:
    """Tries locks and links in a directory; leaves nothing there. Never raises."""
    path = directory / f".aiter_tuning.{os.getpid()}.{secrets.token_hex(4)}.lock"
    link = path.with_suffix(".link")
    try:
        with FileLock(path, timeout=_PATIENCE_S):
            excludes = _second(path) == "kept out"
            links = _links(path, link)
        return LockTrial(str(directory), excludes, _second(path) == "let in", links)
    except (OSError, subprocess.SubprocessError, NotImplementedError) as error:
        return LockTrial(str(directory), problem=f"{type(error).__name__}: {error}")
    finally:
        for leftover in (path, link):
            leftover.unlink(missing_ok=True)


def _second(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _SECOND, str(path), _PACKAGE_ROOT],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    if done.returncode:
        raise OSError(f"the second process failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout.strip()


def _links(path: Path, link: Path) -> bool:
    try:
        os.link(path, link)
    except OSError:
        return False
    return True
