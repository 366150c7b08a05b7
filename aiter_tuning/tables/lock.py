"""One writer at a time, and a message that says who it is.

The lock is the kernel's (``flock``): it ends with its process however that ends, so a file left behind by a killed
run blocks nobody. A process that waits would not know for whom, therefore the holder leaves a line in the lock file.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import filelock

WAIT_S = 60.0
"""How long a writer waits for another one unless told otherwise."""

_POLL_S = 0.02


class LockTimeoutError(TimeoutError):
    """Another process kept the lock for too long; the message names it where it is known."""


class FileLock:
    """An exclusive lock between processes: ``with FileLock(path): …``.

    Args:
        path: the lock file itself; it is created where it is missing and stays (removing it would race). The lock of
            a data file is :meth:`beside` it.
        timeout: seconds to wait for another holder; 0: do not wait, None: as long as it takes.

    Raises (on entry):
        LockTimeoutError: another process still holds it after ``timeout`` seconds.
        OSError: the lock file cannot be made.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float | None = WAIT_S) -> None:
        self.path = Path(path)
        self.timeout = timeout
        self._lock = filelock.FileLock(self.path, timeout=-1, thread_local=False)

    @classmethod
    def beside(cls, path: str | os.PathLike[str], *, timeout: float | None = WAIT_S) -> FileLock:
        """The lock of a data file: ``.<name>.lock`` in its directory, wherever a link to it lies."""
        target = Path(os.path.realpath(path))
        return cls(target.with_name(f".{target.name}.lock"), timeout=timeout)

    def acquire(self) -> None:
        """Takes the lock or raises :class:`LockTimeoutError`."""
        began = time.monotonic()
        self._make()
        try:
            self._lock.acquire(timeout=-1 if self.timeout is None else self.timeout, poll_interval=_POLL_S)
        except filelock.Timeout:
            waited = time.monotonic() - began
            raise LockTimeoutError(
                f"{self.path}: locked by {self.holder() or 'another process'}; waited {waited:.1f} s; {self._advice()}"
            ) from None
        self._sign()

    def release(self) -> None:
        self._lock.release()

    def holder(self) -> str | None:
        """Who took the lock last, in words; None if it left no name."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        return " ".join(text.split()) or None

    def _make(self) -> None:
        """Makes the lock file, as any program would (filelock lets nobody but its owner write to it).

        A directory that is gone is not made again, as filelock would: with it an empty table would begin.
        """
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        except FileExistsError:
            pass

    def _advice(self) -> str:
        pid = self._holding_process()
        if pid and _state_of(pid) in ("T", "t"):
            return f"it is stopped; `kill -CONT {pid}` lets it go on"
        return "wait until it has ended, or write to another file"

    def _holding_process(self) -> int:
        """Who has the lock now, as far as this process can see it; 0: somebody of another container, or host."""
        try:
            inode = self.path.stat().st_ino
            locks = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return 0
        for line in locks:  # 1: FLOCK  ADVISORY  WRITE 8033 fe:00:2146334 0 EOF
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
                return int(words[4]) if self._has_open(words[4]) else 0
        return 0

    def _has_open(self, pid: str) -> bool:
        """Inodes are the same on several devices; the descriptor tells."""
        try:
            return any(os.path.samefile(fd, self.path) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.exists())
        except OSError:
            return False

    def _sign(self) -> None:
        command = " ".join(Path(word).name if i == 0 else word for i, word in enumerate(sys.argv[:6]))
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            self.path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since} ({command})\n")
        except OSError:  # a full disk: the name is a courtesy, the lock holds without it
            pass

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _state_of(pid: int) -> str:
    """The letter of ``/proc/<pid>/stat``, ``T`` for stopped; empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
