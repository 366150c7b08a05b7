"""Imports that no garbage collection interrupts.

``import torch`` makes hundreds of thousands of objects that stay, and the collector, which runs whenever enough of them
are new, looks at all of them again and again: a quarter of the import's time. Frozen afterwards they are never looked
at; a full collection over them would cost 0.1 s each time.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made in here is taken for permanent."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries that count what is left at the end, as Triton's, find it collectable
        if enabled:
            gc.enable()
