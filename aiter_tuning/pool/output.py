"""What candidates print: a file that both sides read the end of."""

from __future__ import annotations

import os

TAIL_BYTES = 8 * 1024
"""How much of it is kept."""


def read_output(fd: int) -> str:
    """The last :data:`TAIL_BYTES` of a file of output; empty if there is nothing."""
    size = os.fstat(fd).st_size
    if not size:
        return ""
    return os.pread(fd, TAIL_BYTES, max(0, size - TAIL_BYTES)).decode("utf-8", "replace")


def take_output(fd: int) -> str:
    """The same, and the file is empty afterwards."""
    text = read_output(fd)
    if text:
        os.ftruncate(fd, 0)
    return text
