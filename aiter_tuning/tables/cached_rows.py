"""The rows of tuned tables by full key, read again whenever one of their files has changed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from aiter_tuning.keys import Key, full_key
from aiter_tuning.tables.tuned_row import TunedRow


class CachedRows(ABC):
    """Looks rows up in files that need not exist; says in :attr:`warnings` what a person should know of the reading."""

    def __init__(self, paths: Iterable[Path], key: Key) -> None:
        self.key = key
        self.warnings: list[str] = []
        """What the last reading found that a person should know."""
        self._paths = tuple(paths)
        self._stamps: tuple[tuple[int, ...] | None, ...] | None = None
        self._index: Mapping[tuple[Any, ...], TunedRow] = {}

    def rows(self) -> list[TunedRow]:
        """The row of each key that counts, all with a measured latency.

        Raises:
            CsvError: a file is there and cannot be read as a tuned table of this family.
        """
        self._refresh()
        return list(self._index.values())

    def find(self, gfx: str, cu_num: int, gpu_model: str, shape: Mapping[str, object]) -> TunedRow | None:
        """The row for this shape on this device, or else one that names no model; None if there is neither.

        Raises:
            CsvError: as for :meth:`rows`.
            KeyFieldError: a field of the shape is missing or has a value that it cannot have.
        """
        self._refresh()
        typed = self.key.parse(shape)
        exact = self._index.get(full_key(gfx, cu_num, gpu_model, typed))
        return exact or self._index.get(full_key(gfx, cu_num, "", typed))

    @abstractmethod
    def _read_rows(self, there: list[Path]) -> Mapping[tuple[Any, ...], TunedRow]:
        """Reads the files that are there, and sets the warnings; the row of each full key that counts."""

    def _refresh(self) -> None:
        stamps = tuple(map(file_stamp, self._paths))
        if stamps == self._stamps:
            return
        self._stamps, self._index, self.warnings = None, {}, []
        there = [path for path, stamp in zip(self._paths, stamps, strict=True) if stamp is not None]
        self._index = self._read_rows(there)
        self._stamps = stamps


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """What changes whenever a file does; None if there is none, or an empty one (``touch``)."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found.st_size == 0:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
