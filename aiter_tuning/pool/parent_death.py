"""A process that must not outlive its parent, however that ends: the kernel kills it then."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """From now on this process is killed when its parent ends; at once, if it has ended already.

    Args:
        parent: the process id that it should have.
    """
    set_death_signal()
    if os.getppid() != parent:  # it died before the signal was set
        os._exit(0)


def set_death_signal() -> None:
    """SIGKILL when the parent ends, whoever that is. Forgotten across fork."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
