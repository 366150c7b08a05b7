"""Names that a package loads when they are first used (PEP 562), so that importing it costs nobody torch or pandas.

``__getattr__, __dir__ = lazy_names(__name__, {"TunedCsv": "tuned"})`` in the package's ``__init__``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The package's ``__getattr__`` and ``__dir__``.

    Args:
        package: its ``__name__``.
        homes: the module below it that has each name.
    """
    names = vars(sys.modules[package])

    def getattr_(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = names[name] = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        return value

    def dir_() -> list[str]:
        return sorted({*names, *homes})

    return getattr_, dir_
