"""Whether all ranks chose alike.

::

    every rank    digest of what changed since the last check ─ all_reduce(max) of (d, -d) ─► all equal: agreed
                                                                                          └─► some differ: exchange
                                                                                              the changes themselves

In the steady state nothing changes, and a check costs one reduction of two integers. What changed is forgotten only
when a check has succeeded, so a collective that fails loses nothing. Each group has a memory of its own.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiter_tuning.triton_autotune.choices import ChoiceLog, digest_of

logger = logging.getLogger(__name__)

_SHOWN = 10


@dataclass
class GroupMemory:
    """What one group has compared so far."""

    position: int = 0
    agreed: dict[str, str] = field(default_factory=dict)


class RanksDisagreeError(RuntimeError):
    """Ranks chose different configs for the same launch."""


class Agreement:
    """Compares this process's choices with those of other ranks."""

    def __init__(self, log: ChoiceLog) -> None:
        self._log = log
        self._groups: dict[tuple[int, ...], GroupMemory] = {}

    def verify(self, group: Any, strict: bool) -> bool:
        """Collective: every member of the group has to call it. True: nothing disagrees.

        Raises:
            RanksDisagreeError: with ``strict``, on every member.
        """
        import torch.distributed as dist

        if not (dist.is_available() and dist.is_initialized()):
            return True
        members = tuple(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
        memory = self._groups.setdefault(members, GroupMemory())
        changed, position = self._log.since(memory.position)
        everyones: list[Mapping[str, str]]
        if _all_equal(changed, group):
            everyones = [changed]
        else:
            slots: list[Any] = [None] * len(members)
            dist.all_gather_object(slots, changed, group=group)
            everyones = slots
            _tell_partial(everyones, memory.agreed)
        offenders, agreed = compare(everyones, memory.agreed)
        memory.position = position
        memory.agreed.update(agreed)
        if not offenders:
            return True
        text = describe_offenders(offenders)
        if strict:
            raise RanksDisagreeError(text)
        if dist.get_rank() == members[0]:
            logger.warning("%s", text)
        return False


def compare(
    everyones: Sequence[Mapping[str, str]], agreed: Mapping[str, str]
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Choices on which the members differ, with each other or with what was agreed before; and those they agree on.

    A member that has not made a choice is not counted.
    """
    values: dict[str, set[str]] = {}
    for choices in everyones:
        for key, value in choices.items():
            values.setdefault(key, {agreed[key]} if key in agreed else set()).add(value)
    offenders = {key: sorted(found) for key, found in values.items() if len(found) > 1}
    return offenders, {key: next(iter(found)) for key, found in values.items() if len(found) == 1}


def describe_offenders(offenders: Mapping[str, Sequence[str]]) -> str:
    """One text for a person, at most ten choices long."""
    lines = [f"  {key}: {' / '.join(values)}" for key, values in sorted(offenders.items())[:_SHOWN]]
    if len(offenders) > _SHOWN:
        lines.append(f"  … and {len(offenders) - _SHOWN} more")
    return "\n".join([f"Ranks disagree on {len(offenders)} autotune choice(s):", *lines])


def _all_equal(changed: Mapping[str, str], group: Any) -> bool:
    import torch
    import torch.distributed as dist

    number = int.from_bytes(hashlib.sha256(digest_of(changed).encode()).digest()[:7], "big")
    pair = torch.tensor([number, -number], dtype=torch.int64, device=_device_of(group))
    dist.all_reduce(pair, op=dist.ReduceOp.MAX, group=group)
    largest, smallest_negated = pair.tolist()
    return bool(largest == -smallest_negated)


def _device_of(group: Any) -> str:
    """Where the group's backend wants its tensors."""
    import torch.distributed as dist

    try:
        backends = str(dist.get_backend_config(group))
    except (AttributeError, RuntimeError, ValueError):
        backends = str(dist.get_backend(group))
    return "cpu" if any(name in backends for name in ("gloo", "mpi", "cpu:")) else "cuda"


def _tell_partial(everyones: Sequence[Mapping[str, str]], agreed: Mapping[str, str]) -> None:
    keys = {key for choices in everyones for key in choices}
    partial = [key for key in keys if key not in agreed and not all(key in choices for choices in everyones)]
    if partial:
        logger.info("%d autotune choice(s) were made on some ranks only, e.g. %s", len(partial), min(partial))
