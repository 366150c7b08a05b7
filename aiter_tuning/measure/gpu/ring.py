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
from collections.abc import Mapping, Sequence
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


class Ring(NamedTuple):
    """A call on its copies, the original first."""

    calls: Sequence[Call]
    plan: RingPlan


class SharedRing:
    """The copies of several calls: what their inputs have in common is copied once for all of them.

    It belongs to one moment: storages are told apart by their addresses, so the calls' tensors have to stay alive.
    """

    def __init__(self, calls: Sequence[Call], plan: RingPlan) -> None:
        """Makes the copies.

        Raises:
            torch.OutOfMemoryError: there is no memory for them.
        """
        self.plan = plan
        copies: list[list[Call]] = [[call] for call in calls]
        for _ in range(plan.copies - 1):
            storages: dict[int, torch.UntypedStorage] = {}
            for ring, call in zip(copies, calls, strict=True):
                ring.append(copy_of(call, storages))
        self.rings = [Ring(ring, plan) for ring in copies]
        """In the order of the calls."""


def plan_ring(
    call_bytes: int, cache_bytes: int, free_bytes: int, *, most: int = MOST_COPIES, copy_bytes: int = 0
) -> RingPlan:
    """The ring for a call of ``call_bytes`` of inputs; where memory is short, the flush goes last and the copies first.

    Args:
        call_bytes: what one call's inputs occupy.
        cache_bytes: the last-level cache.
        free_bytes: memory that can still be had.
        most: copies at most, the calls of one graph.
        copy_bytes: what a copy costs where calls share a ring, ``call_bytes`` being the smallest call's; 0: the same.
    """
    copy_bytes = copy_bytes or call_bytes
    budget = int(free_bytes * _MEMORY_SHARE)
    flush_bytes = int(FLUSHED_CACHES * cache_bytes)
    if call_bytes <= 0:
        fits = flush_bytes <= budget
        return RingPlan(1, flush_bytes if fits else 0, fits)
    wanted = min(most, max(1, math.ceil(WANTED_CACHES * cache_bytes / call_bytes)))
    copies = max(1, min(wanted, 1 + budget // copy_bytes))
    if copies * call_bytes >= ENOUGH_CACHES * cache_bytes:
        return RingPlan(copies, 0, True)
    fitting = (budget - flush_bytes) // copy_bytes
    if fitting < 0:
        return RingPlan(1, 0, False)
    return RingPlan(max(1, min(copies, 1 + fitting)), flush_bytes, True)


def bytes_of(*calls: Call) -> int:
    """Bytes of the storages that a copy of the calls would copy; what they share counts once."""
    sizes = {
        storage_of(tensor): tensor.untyped_storage().nbytes()
        for call in calls
        for tensor in tensors_in([call.args, call.kwargs])
        if _copied(tensor)
    }
    return sum(sizes.values())


def copy_of(call: Call, storages: dict[int, torch.UntypedStorage] | None = None) -> Call:
    """The same call on copies of its tensors; what is neither a tensor nor a plain container is shared.

    Args:
        call: the original.
        storages: copies that exist already, by the address of what they are copies of; those made are added.

    Raises:
        torch.OutOfMemoryError: there is no memory for them.
    """
    if storages is None:
        storages = {}
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
