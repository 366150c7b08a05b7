"""The command line as a person runs it: a process of its own, real workers, real signals."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent
TINY = ROOT / "op_tests" / "families_for_tests" / "tiny.py"


@pytest.fixture
def command(tmp_path):
    """Starts ``aiter-tune …`` in the test's directory; whatever is left of it is ended after the test."""
    started = []

    def start(*words, limit=None, **environment):
        process = subprocess.Popen(
            [*(limit or []), sys.executable, "-m", "aiter_tuning", *map(str, words)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def tune(command, tmp_path):
    """``aiter-tune tune`` of a family in tiny.py over some sizes, with ``out.csv`` as the tuned table."""

    def start(family, *flags, sizes=(8, 16), **options):
        (tmp_path / "shapes.csv").write_text("N\n" + "".join(f"{size}\n" for size in sizes))
        return command("tune", f"{TINY}:{family}", "-i", "shapes.csv", "-o", "out.csv", *flags, **options)

    return start


@pytest.fixture
def descendants():
    """The processes below one, as they are now."""
    return lambda process: psutil.Process(process.pid).children(recursive=True)
