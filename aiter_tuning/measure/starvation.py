"""Whether a candidate's threads had cores to run on while it was timed.

A wall clock times the queue for a core too. An operator of two threads on two busy cores takes as long as it takes
until both get their turn, a thousand times longer than its work, for call after call: by its readings it is hopeless.
The kernel counts how long each thread has waited for a core; what was timed under such waiting is flagged, and
condemns nobody.
"""

from __future__ import annotations

import contextlib
import glob

STARVED_SHARE = 0.1
"""Of the time that timing took, all threads together."""
_SCHEDSTATS = "/proc/self/task/*/schedstat"


def waited_s() -> float:
    """Seconds that the threads of this process have waited for a core so far; 0 where the kernel does not count."""
    waited_ns = 0
    for path in glob.iglob(_SCHEDSTATS):
        with contextlib.suppress(OSError, IndexError), open(path, "rb") as file:  # a thread may just have ended
            waited_ns += int(file.read().split()[1])
    return waited_ns / 1e9
