"""Where a family's tuned tables are looked for.

::

    lookup(…, tuned=…)                    these files and no others
    AITER_TUNING_TUNED_<FAMILY>=a:b       these files and no others
    $XDG_DATA_HOME/aiter_tuning/          the user's own          <family>_tuned.csv in each; the first
    ./tuned_csv/                          the working tree's      place that has a row for a key wins
    aiter_tuning/tuned_csv/               shipped with the package
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

Tables: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None"
"""Tuned CSVs: one path, several in a list or separated as in ``PATH``; None: where a family's are looked for."""

Places: TypeAlias = tuple[tuple[Path, ...], ...]
"""Groups of files, in the order in which they are asked; those of a group are one table in several files."""

SHIPPED = Path(__file__).resolve().parents[1] / "tuned_csv"


def variable_of(family: str) -> str:
    """The environment variable that names a family's tables."""
    return "AITER_TUNING_TUNED_" + re.sub(r"\W", "_", family).upper()


def split_paths(tables: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """The distinct paths, in order; a text may list several."""
    if isinstance(tables, str):
        tables = [path.strip() for path in tables.split(os.pathsep) if path.strip()]
    elif isinstance(tables, os.PathLike):
        tables = [tables]
    return tuple(dict.fromkeys(map(Path, tables)))


def named_places(family: str, tables: Tables) -> Places | None:
    """The one group that was asked for, by argument or environment; None: nobody asked for any."""
    if tables is not None:
        return (split_paths(tables),)
    value = os.environ.get(variable_of(family), "")
    return (split_paths(value),) if value.strip() else None


def usual_places(family: str) -> Places:
    """Where the family's tables lie unasked; a directory that is reached twice counts once."""
    file = f"{family}_tuned.csv"
    directories = (*_user_directory(), Path("tuned_csv"), SHIPPED)
    distinct: dict[object, Path] = {}
    for directory in directories:
        distinct.setdefault(_identity(directory), directory)
    return tuple((directory / file,) for directory in distinct.values())


def _identity(directory: Path) -> object:
    """What two names of one directory have in common; not its real path, which a deleted working directory has not."""
    try:
        found = os.stat(directory)
    except OSError:
        return directory
    return found.st_dev, found.st_ino


def _user_directory() -> tuple[Path, ...]:
    if configured := os.environ.get("XDG_DATA_HOME", ""):
        return (Path(configured) / "aiter_tuning",)
    try:
        return (Path.home() / ".local/share/aiter_tuning",)
    except RuntimeError:  # a container whose user has no home
        return ()
