"""Which tables a command names, and whose they are: by ``--family``, else by the names of the files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from aiter_tuning.families import family_names, find_family
from aiter_tuning.tables.merging import expand_tables
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.family import Family


def named_tables(tables: str | list[str]) -> tuple[Path, ...]:
    """The files that a command's words name; see :func:`~aiter_tuning.tables.merging.expand_tables`.

    Raises:
        UsageError: none is named, as where a script's variable is empty: doing nothing must not pass for success.
        CsvError: a pattern matches no table.
    """
    paths = expand_tables(tables)
    if not paths:
        raise UsageError("no table is named; expected the path of a CSV file, or several separated by colons")
    return paths


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
        names = ", ".join(found)
        raise UsageError(f"the files are of several families ({names}); give a command for each, or name one: --family")
    return next(iter(found.values()))[0]


def _name_in(path: Path) -> str:
    names = [name for name in family_names() if re.search(rf"(?:^|_){re.escape(name)}_(?:un)?tuned", path.name)]
    if len(names) != 1:
        raise UsageError(
            f"{path}: its name tells no family (FAMILY_tuned.csv does); name it with --family; "
            f"there are: {', '.join(family_names())}; or path/to/op.py:ClassName"
        )
    return names[0]
