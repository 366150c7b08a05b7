"""Importing this begins what Triton does before its first kernel, beside whatever is imported next.

Triton names what it compiles after a hash of its own library, half a second of reading that holds no lock. A worker
that imports this module first, then torch, finds it done; and its kernels have the names that other processes give
them, see :mod:`~aiter_tuning.measure.steady_keys`.
"""

from __future__ import annotations

import contextlib
import threading


def _hash_library() -> None:
    with contextlib.suppress(Exception):  # whoever needs it will say what is wrong
        from triton.runtime.cache import triton_key

        from aiter_tuning.measure.steady_keys import hash_callees_first

        hash_callees_first()
        triton_key()


hashing = threading.Thread(target=_hash_library, daemon=True)
"""Joined by whoever forks."""
hashing.start()
