"""The checkpoint as a file: claimed by one process, appended to by whole rows, renamed when it is done with.

It is locked itself, so nothing else lies beside it::

    create   temporary file ─ header, run ─ flock ─ link to its name      visible only locked and with its header
    claim    open ─ flock ─ is that still the file of this name? ─ cut the torn tail
    append   os.write of one row; what a full disk took half of is cut off again
"""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from aiter_tuning.tables.atomic import NEW_FILE_MODE, sync_directory, take_name, temporary_beside, write_all
from aiter_tuning.tables.checkpoint_row import run_fields
from aiter_tuning.tables.csv_reader import CsvError, parse_line

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
_BLOCK = 1 << 16

_open_files: weakref.WeakSet[CheckpointFile] = weakref.WeakSet()


class BusyError(Exception):
    """Another process has the file."""


class CheckpointFile:
    """An open checkpoint and what its first lines say about it."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.columns: tuple[str, ...] = ()
        self.digest: str | None = None
        """Of the run that began it; None if its ``run`` row cannot be read."""
        self.fields: Mapping[str, str] = {}
        self.dropped_tail: str | None = None
        _open_files.add(self)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def is_there(self) -> bool:
        """Whether the file still has a name somewhere."""
        try:
            return os.fstat(self.fd).st_nlink > 0
        except OSError:
            return False

    def append(self, row: bytes) -> None:
        """Adds one row with one write.

        Raises:
            OSError: it could not be written; every row in the file is whole.
        """
        try:
            written = os.write(self.fd, row)
            if written < len(row):
                write_all(self.fd, row[written:])
        except OSError as error:
            self._trim()
            reason = f"{error.strerror or error} (all rows before are whole; make room and run again to go on)"
            raise OSError(error.errno, reason, os.fspath(self.path)) from error

    def _trim(self) -> bytes:
        """Cuts off whatever follows the last line end, and returns it."""
        size = os.lseek(self.fd, 0, os.SEEK_END)
        tail, start = b"", size
        while start > 0 and b"\n" not in tail:
            block = min(_BLOCK, start)
            start -= block
            tail = os.pread(self.fd, block, start) + tail
        keep = start + tail.rfind(b"\n") + 1
        if keep < size:
            os.ftruncate(self.fd, keep)
        return tail[keep - start :]

    def read_identity(self) -> None:
        """Reads header and ``run`` row.

        Raises:
            CsvError: it is no checkpoint.
        """
        with os.fdopen(os.dup(self.fd), "rb") as file:
            file.seek(0)
            header, second = file.readline(_BLOCK), file.readline(_BLOCK)
        self.columns = tuple(parse_line(self.path, header, 1))
        if self.columns[:1] != ("event",) or "fingerprint" not in self.columns:
            found = f"the file is no checkpoint (its first column is {''.join(self.columns[:1])!r}, not 'event')"
            raise CsvError(self.path, f"{found}; name another --checkpoint, or move it away", line=1)
        try:
            identity = run_fields(self.columns, parse_line(self.path, second, 2))
        except CsvError:
            identity = None
        if identity is not None:
            self.digest, self.fields = identity

    def cut_tail(self) -> None:
        """Removes an unterminated last line, which :attr:`dropped_tail` then holds."""
        tail = self._trim()
        if tail:
            self.dropped_tail = tail.decode(errors="replace")

    def move(self, target: Path) -> None:
        """Renames the file."""
        self.path.rename(target)
        sync_directory(target.parent)
        self.path = target


def _lock(fd: int) -> None:
    """Takes the file's lock.

    Raises:
        BusyError: somebody else has it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BusyError from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:  # where there are no locks, one run at a time has to be enough
            raise


def claim(path: Path) -> CheckpointFile | None:
    """Opens and locks a checkpoint; None if there is none. Its identity is read, its torn tail still there.

    Raises:
        BusyError: another process has it.
        CsvError: it is no checkpoint.
        OSError: it cannot be opened.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        file = CheckpointFile(path, fd)
        try:
            _lock(fd)
            if not _is_named(fd, path):  # renamed between open and lock: its run has just ended
                file.close()
                continue
            if os.fstat(fd).st_size == 0:
                path.unlink()
                file.close()
                return None
            file.read_identity()
        except BaseException:
            file.close()
            raise
        return file


def share(path: Path) -> CheckpointFile | None:
    """Opens a checkpoint for reading, whoever has it; None if there is none or it is no checkpoint."""
    try:
        file = CheckpointFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return None
    try:
        file.read_identity()
    except (CsvError, OSError):
        file.close()
        return None
    return file


def create(path: Path, start: bytes) -> CheckpointFile | None:
    """A new checkpoint that begins with ``start``, locked; None if another process was first.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    temporary = temporary_beside(path)
    fd = os.open(temporary, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE)
    file = CheckpointFile(path, fd)
    try:
        _lock(fd)
        write_all(fd, start)
        os.fsync(fd)
        if not take_name(temporary, path):
            file.close()
            return None
        file.read_identity()
    except BaseException:
        file.close()
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return file


def _is_named(fd: int, path: Path) -> bool:
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    own = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)


def _close_in_child() -> None:
    # A lock belongs to the open file, which a forked child shares: it would keep the lock of a run that has died.
    for file in list(_open_files):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)
