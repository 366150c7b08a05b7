"""Inputs that have shapes, strides and types but no memory: what ``gen_data`` returns for torch's ``meta`` device.

A family makes its inputs as it always does, with a generator of its own; on ``meta`` there is no such generator, and
nothing to be random. Pointers of meta tensors are zero plus the offset of a view, so that a kernel is specialised for
the same alignment as with real memory, which allocators align to 256 bytes and more.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from aiter_tuning.measure.inputs import Inputs
from aiter_tuning.task import MpTunerTask

META = torch.device("meta")


class _HostGenerator(torch.Generator):
    """A generator for any device, on the host: one for ``meta`` cannot be made."""

    def __new__(cls, device: Any = "cpu") -> _HostGenerator:
        return super().__new__(cls, device="cpu")  # type: ignore[call-arg]  # torch's stub has it in __init__ only


class _WithoutGenerators(TorchFunctionMode):
    """Calls torch without ``generator=``, which would have to be one for ``meta``."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kept = {name: value for name, value in (kwargs or {}).items() if name != "generator"}
        return func(*args, **kept)


@contextmanager
def _no_randomness() -> Iterator[None]:
    real = torch.Generator
    torch.Generator = _HostGenerator  # type: ignore[misc]
    try:
        with _WithoutGenerators():
            yield
    finally:
        torch.Generator = real  # type: ignore[misc]


def make_meta_inputs(task: MpTunerTask) -> Inputs:
    """The task's inputs on ``meta``.

    Raises:
        Exception: ``gen_data`` looks at values, asks for a device, or does anything else that only memory can do.
    """
    with _no_randomness():
        return Inputs.make(task, None, META, seed=0)


def leave_tracing_out() -> None:
    """Keeps torch from importing what it traces programs with the first time that an operator works on meta tensors.

    Many operators' meta functions are wrapped in ``torch._dynamo.disable``, and many compare sizes by functions that
    could be given symbols: the imports for that (torch's compiler, sympy) take two seconds each, much more than
    compiling a kernel. Nothing here is ever traced; code that does need dynamo fails, which is no verdict about a
    candidate. For processes that only compile, before they do so.
    """
    if "torch._dynamo" not in sys.modules:
        stand_in = types.ModuleType("torch._dynamo", "Left out of a process that only compiles kernels.")
        vars(stand_in)["disable"] = _disable
        sys.modules["torch._dynamo"] = stand_in
        vars(torch)["_dynamo"] = stand_in
    for name, answers in _PLAIN_SIZES.items():
        if name not in sys.modules:
            sys.modules[name] = _StandIn(name, answers)


def _disable(fn: Any = None, recursive: bool = True, **_: Any) -> Any:
    return fn if fn is not None else lambda fn: fn


def _is_true(condition: Any, *_: Any, **__: Any) -> bool:
    return bool(condition)


_IF_TRUE = ("expect_true", "guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true")
_PLAIN_SIZES: Mapping[str, Mapping[str, Any]] = {
    "torch.fx.experimental.symbolic_shapes": {
        **dict.fromkeys(_IF_TRUE, _is_true),
        "is_nested_int": lambda size: False,
        **dict.fromkeys(("has_guarding_hint", "has_hint"), lambda size: True),
        **dict.fromkeys(("guarding_hint_or_throw", "size_hint"), lambda size, **_: size),
        "free_unbacked_symbols": lambda *sizes: set(),
        "sym_and": lambda *conditions: all(conditions),
        "sym_or": lambda *conditions: any(conditions),
        "sym_eq": lambda x, y: (tuple(x) == tuple(y)) if isinstance(x, tuple | list) else x == y,
    },
    "sympy": {"Basic": type("Basic", (), {})},
}
"""What torch asks of these modules about sizes that are plain numbers."""


class _StandIn(types.ModuleType):
    """In the place of a module that is slow to import, until somebody asks it for more than its few answers."""

    def __init__(self, name: str, answers: Mapping[str, Any]) -> None:
        super().__init__(name, "Left out of a process that only compiles kernels, unless it is needed.")
        vars(self).update(answers)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        own = self.__name__
        for other in _PLAIN_SIZES:  # the real ones need each other
            if isinstance(sys.modules.get(other), _StandIn):
                del sys.modules[other]
        return getattr(importlib.import_module(own), name)
