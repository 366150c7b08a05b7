"""Appending rows to a CSV that many processes append to and a person may cut, edit or delete meanwhile.

Lines go out whole, in one ``write`` to a file opened for appending, without a lock. The header is there before the
first row is: a new file appears by a link, complete. Nothing is appended under a header that is not the expected one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from aiter_tuning.tables.atomic import NEW_FILE_MODE, take_name, temporary_beside, write_all

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


def append_lines(path: Path, header: str, lines: Sequence[str]) -> None:
    """Appends lines to the file, which is made with its directory and header where it is not there.

    Raises:
        OSError: it cannot be written. A line that was cut off because a disk is full is ended by the next append.
        ValueError: the file has another header.
    """
    try:
        descriptor = os.open(path, _APPEND)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        _publish(path, header)
        descriptor = os.open(path, _APPEND)
    try:
        _expect_header(descriptor, header)
        data = "".join(lines).encode()
        size = os.fstat(descriptor).st_size
        if os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def _publish(path: Path, header: str) -> None:
    """Makes the file with its header; if another process was first, its file stays."""
    temporary = temporary_beside(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE)
        try:
            write_all(descriptor, header.encode())
        finally:
            os.close(descriptor)
        take_name(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _expect_header(descriptor: int, header: str) -> None:
    """Makes sure of the header; an emptied file gets it anew, from one process alone."""
    wanted = header.encode()
    if not os.fstat(descriptor).st_size:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # ends with the descriptor
        if not os.fstat(descriptor).st_size:
            write_all(descriptor, wanted)
    found = os.pread(descriptor, len(wanted), 0)
    if found != wanted:
        shown = found.split(b"\n")[0].decode(errors="replace")
        raise ValueError(f"its header is {shown!r}; expected {header.strip()!r}; move the file away")
