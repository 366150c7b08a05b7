"""The autotuned kernels of some modules, found by importing them; needs Triton, no device."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from aiter_tuning.triton_autotune.session import Kernel, identify

_WRAPPERS = 8


def autotuners_in(modules: Iterable[str]) -> list[tuple[Kernel, Any]]:
    """Each autotuner with several configs that these modules, or modules below them that they import, hold.

    Raises:
        ImportError: a module or Triton cannot be imported.
    """
    from triton.runtime.autotuner import Autotuner

    if os.getcwd() not in sys.path and "" not in sys.path:  # a console script does not look where it was started
        sys.path.insert(0, os.getcwd())
    names = list(modules)
    for name in names:
        importlib.import_module(name)
    found: dict[int, Any] = {}
    for name, module in sorted(sys.modules.items()):
        if any(name == n or name.startswith(n + ".") for n in names):
            for value in list(getattr(module, "__dict__", {}).values()):
                autotuner = _unwrap(value, Autotuner)
                if autotuner is not None and len(autotuner.configs) > 1:
                    found.setdefault(id(autotuner), autotuner)
    kernels = [(identify(autotuner), autotuner) for autotuner in found.values()]
    return sorted(kernels, key=lambda item: (item[0].qualified, item[0].tag))


def _unwrap(value: Any, cls: type) -> Any:
    for _ in range(_WRAPPERS):
        if isinstance(value, cls):
            return value
        if not type(value).__module__.startswith("triton."):
            return None
        value = getattr(value, "fn", None)
    return None
