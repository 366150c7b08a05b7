"""Copies of a call's inputs, so that each timed call finds its own outside the cache.

::

    call ── copy ──▶ call 0, call 1, … call n-1, call 0, …       more bytes than 2–3 times the last-level cache
                     copies too small for that ──▶ the cache is flushed in between, outside what is timed

Serving reads weights that were not in the cache a moment ago; a kernel timed again and again on the same 8 MB is not
that kernel. Copies are copies of whole storages: strides, offsets and shared memory stay as they were, and with them
the code path that the candidate takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from aiter_tuning.measure.inputs import tensors_in
from aiter_tuning.measure.pristine import can_be_copied
from aiter_tuning.measure.reference import storage_of
from aiter_tuning.measure.timer import Call

MOST_COPIES = 64
WANTED_CACHES = 3.0
"""Bytes of a ring in sizes of the last-level cache, where they can be had."""
ENOUGH_CACHES = 2.0
"""With so many the cache holds nothing of a copy when its turn comes again."""
FLUSHED_CACHES = 2.0
_MEMORY_SHARE = 0.5
"""Of what is free; the rest is for what candidates allocate."""


class RingPlan(NamedTuple):
    """How a call's inputs are kept out of the cache."""

    copies: int
    """Sets of inputs, the original among them."""
    flush_bytes: int
    """Bytes to write between passes over the ring; 0: the ring alone is enough, or there is no memory for it."""
    cold: bool
    """Whether every call finds its inputs outside the cache."""


def plan_ring(call_bytes: int, cache_bytes: int, free_bytes: int, *, most: int = MOST_COPIES) -> RingPlan:
    """The ring for a call of ``call_bytes`` of inputs; where memory is short, the flush goes last and the copies first.

    Args:
        call_bytes: what one call's inputs occupy.
        cache_bytes: the last-level cache.
        free_bytes: memory that can still be had.
        most: copies at most, the calls of one graph.
    """
    budget = int(free_bytes * _MEMORY_SHARE)
    flush_bytes = int(FLUSHED_CACHES * cache_bytes)
    if call_bytes <= 0:
        fits = flush_bytes <= budget
        return RingPlan(1, flush_bytes if fits else 0, fits)
    wanted = min(most, max(1, math.ceil(WANTED_CACHES * cache_bytes / call_bytes)))
    copies = max(1, min(wanted, 1 + budget // call_bytes))
    if copies * call_bytes >= ENOUGH_CACHES * cache_bytes:
        return RingPlan(copies, 0, True)
    fitting = (budget - flush_bytes) // call_bytes
    if fitting < 0:
        return RingPlan(1, 0, False)
    return RingPlan(max(1, min(copies, 1 + fitting)), flush_bytes, True)


def bytes_of(call: Call) -> int:
    """Bytes of the storages that a copy of the call would copy."""
    sizes = {storage_of(t): t.untyped_storage().nbytes() for t in tensors_in([call.args, call.kwargs]) if _copied(t)}
    return sum(sizes.values())


def copy_of(call: Call) -> Call:
    """The same call on copies of its tensors; what is neither a tensor nor a plain container is shared.

    Raises:
        torch.OutOfMemoryError: there is no memory for them.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    with torch.no_grad():
        return Call(call.func, _copy(call.args, storages), _copy(call.kwargs, storages))


def _copied(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and can_be_copied(tensor)


def _copy(value: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    if isinstance(value, torch.Tensor):
        return _copy_tensor(value, storages) if _copied(value) else value
    if isinstance(value, Mapping):
        items = {name: _copy(item, storages) for name, item in value.items()}
        return items if type(value) is dict else value if _same(items, value) else items
    if type(value) in (list, tuple):
        return type(value)(_copy(item, storages) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_copy(item, storages) for item in value))
    return value


def _same(items: Mapping[Any, Any], value: Mapping[Any, Any]) -> bool:
    return all(items[name] is value[name] for name in items)


def _copy_tensor(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    address = storage_of(tensor)
    storage = storages.get(address)
    if storage is None:
        storage = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]  # torch leaves it without types
        storages[address] = storage
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    copy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return copy.requires_grad_() if tensor.requires_grad else copy
