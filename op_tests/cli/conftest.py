"""The command line as a person runs it: a process of its own, real workers, real signals.

A process costs an import of torch in its worker and one in the standby, so what is no matter of processes runs *here*:
the same command in the test's own process, on the open lane that tests share.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from aiter_tuning.cli import main
from aiter_tuning.tuner import remeasuring, tuner

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

    def start(family, *flags, sizes=(8, 16), confirm=False, **options):
        return command(*tune_words(tmp_path, family, sizes, confirm), *flags, **options)

    return start


def write_shapes(directory, sizes):
    (directory / "shapes.csv").write_text("N\n" + "".join(f"{size}\n" for size in sizes))


def tune_words(directory, family, sizes, confirm):
    """The command, and its file of shapes; ``confirm``: each promotion costs one more process."""
    write_shapes(directory, sizes)
    words = ("tune", f"{TINY}:{family}", "-i", "shapes.csv", "-o", "out.csv")
    return words if confirm else (*words, "--confirm", "False")


class Ended(NamedTuple):
    """What a command left: its exit code and what it said."""

    returncode: int
    out: str
    err: str


@pytest.fixture
def run_here(tmp_path, monkeypatch, capsys, request):
    """``aiter-tune …`` in the test's directory, in this process, on the open lane."""
    monkeypatch.chdir(tmp_path)
    for module in (tuner, remeasuring):
        monkeypatch.setattr(module, "Pool", lambda **_: contextlib.nullcontext(request.getfixturevalue("one_lane")))

    def run(*words):
        words = [str(word) for word in words]
        monkeypatch.setattr(sys, "argv", ["aiter-tune", *words])  # evidence names the command
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as ended:  # of the parser
            code = ended.code
        return Ended(code, *capsys.readouterr())

    return run


@pytest.fixture
def tune_here(run_here, tmp_path):
    """As ``tune``, in this process."""

    def run(family, *flags, sizes=(8, 16), confirm=False):
        return run_here(*tune_words(tmp_path, family, sizes, confirm), *flags)

    return run


libc = ctypes.CDLL(None, use_errno=True)
READ_ONLY, REMOUNT, BIND = 1, 32, 4096


class SmallDisk:
    """A file system of its own."""

    def __init__(self, path, size="64k"):
        self.path, self._size = path, size
        path.mkdir()
        self._mount(0)

    def _mount(self, flags):
        if libc.mount(b"tmpfs", bytes(self.path), b"tmpfs", flags, f"size={self._size}".encode()) != 0:
            pytest.skip(f"no file system can be mounted here ({os.strerror(ctypes.get_errno())})")

    def make_read_only(self):
        self._mount(READ_ONLY | REMOUNT)

    def make_read_only_over(self):
        """Though files are open for writing there: a read-only view of the disk is laid over it."""
        path = bytes(self.path)
        assert libc.mount(path, path, None, BIND, None) == 0
        assert libc.mount(None, path, None, BIND | REMOUNT | READ_ONLY, None) == 0

    def uncover(self):
        """Takes the view away."""
        assert libc.umount2(bytes(self.path), 2) == 0

    def fill(self):
        """Until nothing fits any more; returns the file that takes the room."""
        hog = self.path / "hog"
        with hog.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 512)
        return hog

    def unmount(self):
        libc.umount2(bytes(self.path), 2)


@pytest.fixture
def disk(tmp_path):
    """A disk of 64 KiB."""
    small = SmallDisk(tmp_path / "disk")
    yield small
    small.unmount()


@pytest.fixture
def read_only_disk(disk):
    disk.make_read_only()
    return disk.path


@pytest.fixture
def descendants():
    """The processes below one, as they are now."""
    return lambda process: psutil.Process(process.pid).children(recursive=True)
