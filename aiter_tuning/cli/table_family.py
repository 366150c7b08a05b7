"""Whose tables these are: by ``--family``, else by the name of each file (``…gemm_cpu_tuned.csv``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from aiter_tuning.families import family_names, find_family
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.family import Family


def families_of(paths: Iterable[Path], named: str | None) -> dict[str, tuple[Family, list[Path]]]:
    """The files of each family, by its name, in the order in which they come.

    Raises:
        UsageError: a file's name tells no family, and none was named.
        FamilyError: there is no such family.
    """
    found: dict[str, tuple[Family, list[Path]]] = {}
    for path in paths:
        name = named or _name_in(path)
        if name not in found:
            found[name] = (find_family(name), [])
        found[name][1].append(path)
    return found


def family_of(paths: Iterable[Path], named: str | None) -> Family:
    """The one family of all these files.

    Raises:
        UsageError: they are of several, or no name tells which.
        FamilyError: there is no such family.
    """
    found = families_of(paths, named)
    if len(found) != 1:
        raise UsageError(f"the files are of several families ({', '.join(found)}); expected tables of one")
    return next(iter(found.values()))[0]


def _name_in(path: Path) -> str:
    names = [name for name in family_names() if re.search(rf"(?:^|_){re.escape(name)}_(?:un)?tuned", path.name)]
    if len(names) != 1:
        raise UsageError(
            f"{path}: its name tells no family (FAMILY_tuned.csv does); name it with --family; "
            f"there are: {', '.join(family_names())}; or path/to/op.py:ClassName"
        )
    return names[0]
