"""Replacing a file so that every reader, and every crash, sees either the old one or the new one, whole.

::

    text ─► .<name>.<pid>.<random>.tmp ─ fsync ─► os.replace ─► fsync of the directory
            same directory, so that the replacement is a rename and never a copy

A file that must not replace another one appears by a link instead: whole, or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from pathlib import Path

LEFTOVER_AGE_S = 600.0
"""A temporary file that nobody has written to for so long belongs to a writer that was killed."""

NEW_FILE_MODE = 0o666  # less the umask, as for any file that a program creates
_NO_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK})


def atomic_write(path: str | os.PathLike[str], text: str) -> None:
    """Replaces the file's content by ``text`` (UTF-8), keeping its mode; a symbolic link stays one.

    Raises:
        OSError: it could not be written, for instance because the disk is full; the file is then as it was, and
            nothing is left beside it.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # a rename would put a file in the place of a device or a pipe
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    temporary = temporary_beside(target)
    try:
        _write_new(temporary, text.encode(), _mode_of(target))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def temporary_beside(path: Path) -> Path:
    """A name that nobody else uses, for what is to become ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def take_name(temporary: Path, path: Path) -> bool:
    """Gives a file that is whole the name that it is for, unless there is a file of that name; returns whether it did.

    Its temporary name may be left, for the caller to remove.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            return False
        temporary.rename(path)  # no links here: of two that begin at this very moment one may lose its first rows
    return True


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Removes temporary files of writers of ``path`` that were killed (their process ids may mean nothing here)."""
    target = Path(os.path.realpath(path))
    start, now = f".{target.name}.", time.time()
    for entry in os.scandir(target.parent):
        if entry.name.startswith(start) and entry.name.endswith(".tmp"):
            with contextlib.suppress(OSError):  # another writer was faster, or it is not ours to remove
                if now - entry.stat(follow_symlinks=False).st_mtime > LEFTOVER_AGE_S:
                    os.unlink(entry.path)


def sync_directory(directory: Path) -> None:
    """Puts the directory's entries on disk; file systems that cannot do that are left alone."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError:  # e.g. EINVAL on some network file systems; the rename itself has succeeded
        pass
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Writes all of ``data``: a disk that fills up makes ``os.write`` come back short before it makes it fail."""
    written = os.write(fd, data)
    while written < len(data):
        data = data[written:]
        written = os.write(fd, data)


def _mode_of(target: Path) -> int | None:
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        return None


def _write_new(path: Path, data: bytes, mode: int | None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE)
    try:
        if mode is not None:
            os.fchmod(fd, mode)
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
