"""What tests of files need: a disk that is really full, and processes that are really killed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    target = tmp_path / "small"
    target.mkdir()
    if libc.mount(b"tmpfs", bytes(target), b"tmpfs", 0, b"size=64k") != 0:
        pytest.skip(f"no file system can be mounted here ({os.strerror(ctypes.get_errno())})")
    yield target
    assert libc.umount2(bytes(target), 2) == 0


def fill(directory: Path, leave: int = 0) -> Path:
    """Fills a small disk; frees ``leave`` whole pages again. Returns the file that takes the room."""
    hog = directory / "hog"
    with hog.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass
        if leave:
            file.truncate(max(0, file.tell() - 4096 * leave))
    return hog


class Program:
    """A Python process that tells on its standard output how far it is, and waits on its standard input."""

    def __init__(self, code: str, *arguments: object) -> None:
        command = [sys.executable, "-u", "-c", code, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def tell(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> str:
        """Lets it run to its end; returns what else it said."""
        said, _ = self.process.communicate()
        assert self.process.returncode == 0
        return said


@pytest.fixture
def program() -> Iterator[type[Program]]:
    """Starts programs; those that still run when the test ends are killed."""
    started: list[Program] = []

    class Started(Program):
        def __init__(self, code: str, *arguments: object) -> None:
            super().__init__(code, *arguments)
            started.append(self)

    yield Started
    for one in started:
        if one.process.poll() is None:
            one.kill()
        for stream in (one.process.stdin, one.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def fill_disk():
    return fill
