"""Making Triton's names for compiled kernels independent of what a process has launched before.

Triton up to 3.6 hashes a kernel together with the global constants of the functions that it calls, but only of those
functions that some other kernel has called before. So the same kernel has several names, and what one process has
compiled another may not find.
"""

from __future__ import annotations

from typing import Any


def hash_callees_first() -> None:
    """Lets a kernel's hash cover what it calls, whoever called that before. For processes that compile, and for lanes.

    Does nothing where Triton does so itself, or has changed beyond recognition.
    """
    from triton.runtime.jit import DependenciesFinder

    original = getattr(DependenciesFinder, "_update_hash", None)
    if original is None or getattr(original, "hashes_callees_first", False):
        return

    def update_hash(self: Any, func: Any) -> None:
        _ = func.cache_key  # computing it finds the constants that are about to be looked at
        original(self, func)

    update_hash.hashes_callees_first = True  # type: ignore[attr-defined]
    DependenciesFinder._update_hash = update_hash
