"""What serving has to know of an operator, and how it is found by name.

A family (:class:`aiter_tuning.tuner.Family`) is such an operator. Serving lies below the tuner and imports none of it:
it states here what it needs, and asks the registry of families only when somebody gives a name.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import Key

_REGISTRY = "aiter_tuning.families"
"""Above this layer, therefore looked up when a name is given, as plug-ins are."""


class Operator(Protocol):
    """The part of a family that a lookup uses. None of it imports torch."""

    @property
    def name(self) -> str: ...

    @property
    def devices(self) -> Sequence[str]:
        """Kinds of device that it runs on: ``cpu``, ``cuda``, ``hip``."""
        ...

    @property
    def key(self) -> Key: ...

    def bucket(self, shape: Mapping[str, Any]) -> Mapping[str, Any]:
        """The shape whose row serves this one."""
        ...

    def resolve(
        self, name: str, config: Mapping[str, Any], shape: Mapping[str, Any], device: Device
    ) -> Mapping[str, Any] | None:
        """What is launched for a row that names ``name``; None if there is no such kernel (any more)."""
        ...


FamilyLike: TypeAlias = "str | Operator | type[Operator]"
"""``gemm_bf16``, ``path/to/op.py:ClassName``, a family's class, or an instance of it."""


def operator_of(family: FamilyLike) -> Operator:
    """The operator that is meant; the same one each time.

    Raises:
        ValueError: there is no family of this name; the message lists what there is.
    """
    if isinstance(family, str):
        return _named(family)
    return _made(family) if isinstance(family, type) else family


@functools.cache
def _named(name: str) -> Operator:
    found: Operator = importlib.import_module(_REGISTRY).find_family(name)
    return found


@functools.cache
def _made(cls: type[Operator]) -> Operator:
    return cls()
