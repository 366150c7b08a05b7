"""Which checkpoint a run goes on with, among those that lie beside an output.

::

    <stem>.checkpoint.csv      free, this environment's ─▶ taken up again
                               free, another's          ─▶ renamed, never deleted; a new one takes its place
                               another run has it       ─▶ <stem>.checkpoint.2.csv, .3, …, by the same rule
    <stem>.profile.<run>.csv   what a run left that was complete

What is on record in any of them for this environment is read; only the one that was taken is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aiter_tuning.tables import checkpoint_file
from aiter_tuning.tables.checkpoint_file import BusyError, CheckpointFile
from aiter_tuning.tables.checkpoint_row import RowFormat
from aiter_tuning.tables.csv_reader import CsvError

_MOST_SLOTS = 999


@dataclass(frozen=True)
class RunFingerprint:
    """The environment that a run's measurements belong to; another one's are not comparable."""

    fields: Mapping[str, str]
    """What makes it up: device model, driver, versions, timer, …"""
    digest: str = field(init=False)
    """12 hexadecimal digits."""

    def __post_init__(self) -> None:
        text = json.dumps({str(name): str(value) for name, value in self.fields.items()}, sort_keys=True)
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest()[:12])


class SetAside(NamedTuple):
    """A checkpoint that was not resumed."""

    path: Path
    """Where it lies now."""
    differing: Mapping[str, tuple[str, str]]
    """Fields of the fingerprint that differ: what the file says, what this run says; empty after ``fresh``."""


def profiles_of(tuned: Path, directory: Path, run: RunFingerprint) -> list[Path]:
    """The records of completed runs in the same environment, oldest first."""
    prefix, found = f"{tuned.stem}.profile.", []
    for path in directory.iterdir():
        if not (path.name.startswith(prefix) and path.suffix == ".csv"):
            continue
        file = checkpoint_file.share(path)
        if file is not None:
            if file.digest == run.digest:
                found.append((os.fstat(file.fd).st_mtime_ns, path))
            file.close()
    return [path for _, path in sorted(found)]


def checkpoints_beside(base: Path) -> list[Path]:
    """The checkpoints that there are for an output: its own, then numbered ones of runs beside it."""
    numbered = re.compile(rf"{re.escape(base.stem)}\.([0-9]{{1,3}})\.csv")
    found = [(int(match[1]), path) for path in base.parent.iterdir() if (match := numbered.fullmatch(path.name))]
    return [*([base] if base.exists() else []), *(path for _, path in sorted(found))]


def free_slot(base: Path) -> Path:
    """The name for a new checkpoint of an output: its own, else the first numbered one that no file has.

    Raises:
        OSError: there are too many.
    """
    for number in range(1, _MOST_SLOTS + 1):
        path = base if number == 1 else base.with_name(f"{base.stem}.{number}.csv")
        if not path.exists():
            return path
    raise OSError(f"{base}: {_MOST_SLOTS} checkpoints for one output; finish or delete some")


def take_slot(
    base: Path, rows: RowFormat, run: RunFingerprint, fresh: bool
) -> tuple[CheckpointFile | None, SetAside | None]:
    """The file to go on with, else None and what was set aside to make room for a new one."""
    free: list[CheckpointFile] = []
    try:
        for path in checkpoints_beside(base):
            try:
                file = checkpoint_file.claim(path)
            except BusyError:
                continue
            except CsvError:
                if path == base:
                    raise
                continue
            if file is None:
                continue
            free.append(file)
            if not fresh and file.digest == run.digest and file.columns == rows.columns:
                free.remove(file)
                return file, None
        aside = None
        # Another environment's numbered files are not read anyway; only the name that is needed is cleared.
        for old in free if fresh else [file for file in free if file.path == base]:
            old.move(unused_name(base.with_name(f"{base.stem}.{old.digest or 'unknown'}.csv")))
            aside = aside or SetAside(old.path, {} if fresh else _differing(old, rows, run))
        return None, aside
    finally:
        for file in free:
            file.close()


def unused_name(path: Path) -> Path:
    """The path, or where a file has that name already, the first of ``<stem>-2``, ``<stem>-3``, … that none has."""
    target, number = path, 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return target


def _differing(old: CheckpointFile, rows: RowFormat, run: RunFingerprint) -> dict[str, tuple[str, str]]:
    new = {str(name): str(value) for name, value in run.fields.items()}
    differing = {
        name: (old.fields.get(name, ""), new.get(name, ""))
        for name in (*old.fields, *(name for name in new if name not in old.fields))
        if old.fields.get(name) != new.get(name)
    }
    if old.columns != rows.columns:
        differing["columns"] = (",".join(old.columns), ",".join(rows.columns))
    return differing
