"""The operators that can be tuned, one module each; adding a module here adds a family.

Names are read from the directory, not from the modules, so that ``aiter-tune families`` and ``--help`` stay quick and a
family whose imports fail does not hide the others.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from pathlib import Path

from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.family_reference import FamilyError, families_in, instantiate, is_file_reference, load_family

__all__ = ["family_names", "find_family"]


def family_names() -> list[str]:
    """Names of the package's own families, sorted; nothing is imported for it."""
    modules = pkgutil.iter_modules(__path__)
    return sorted(m.name for m in modules if not m.ispkg and not m.name.startswith("_"))


def find_family(name: str) -> Family:
    """The family that a person means by ``gemm_cpu`` or ``path/to/op.py:ClassName``.

    Raises:
        FamilyError: there is none; the message lists what there is, near misses first.
    """
    if is_file_reference(name):
        place, _, cls_name = name.rpartition(":")
        return load_family(f"{Path(place).resolve()}:{cls_name}")
    known = family_names()
    if name.endswith(".py"):
        raise FamilyError(f"{name}: which class? A family of your own is named as {name}:ClassName")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise FamilyError(
            f"unknown family {name!r}; {hint}there are: {', '.join(known) or 'none'}; or path/to/op.py:ClassName"
        )
    module = importlib.import_module(f"{__name__}.{name}")
    found = [cls for cls in families_in(module) if getattr(cls, "name", None) == name]
    if len(found) != 1:
        raise FamilyError(f"{module.__file__}: expected one family with name = {name!r}, found {len(found)}")
    return instantiate(found[0], name)
