"""Several tuned tables as one: what serving, ``-o A.csv:B.csv``, ``check`` and ``merge`` see.

::

    "tuned.csv:configs/model_configs/*" ─expand_tables─▶ paths ─read_tuned─▶ tables ─merge_tables─▶ Merge
                                                                                      │ rows that count
                                                                                      │ rows in their shadow, and why
                                                                                      └ rows that nobody can look up

Rows with one full key (and one ``_tag``, where the column is there) are held against each other by the rule in
``preference``, within a file as across files. Nothing is written: a file whose row is in the shadow keeps it.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.keys import Key
from aiter_tuning.tables.cached_rows import CachedRows
from aiter_tuning.tables.csv_error import CsvError
from aiter_tuning.tables.evidence import EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.evidence_record import Evidence
from aiter_tuning.tables.preference import Contender, prefer
from aiter_tuning.tables.tuned_reader import Entry, EntryKind, TunedTable, read_tuned
from aiter_tuning.tables.tuned_row import TunedRow

_NO_TABLES = (".checkpoint", ".profile", ".candidate", "untuned")
"""What a pattern leaves out by its name: checkpoints, profiles and proposals, and files of shapes."""


class Placed(NamedTuple):
    """A row and the file that it is in."""

    path: Path
    entry: Entry

    def __str__(self) -> str:
        return f"{self.path}:{self.entry.line}"


@dataclass(frozen=True)
class Shadowed:
    """A row that another one with its key keeps from being served."""

    kept: Placed
    left: Placed
    reason: str
    conflict: bool
    """Whether no comparison decided between the two, so that somebody should look."""

    def __str__(self) -> str:
        return f"{self.left}: the key of {self.kept} again, {self.reason}; left out"


@dataclass(frozen=True)
class Merge:
    """What several tables say together."""

    kept: tuple[Placed, ...]
    """The row of each key that counts, in the order in which their keys came; tagged ones among them."""
    shadowed: tuple[Shadowed, ...]
    unmeasured: tuple[Placed, ...]
    """Rows without a latency."""
    others: tuple[Placed, ...]
    """Rows that this family looks up nowhere: for no device, or of another computation."""
    evidence_warnings: tuple[str, ...]
    """Lines of evidence that could not be read."""

    @property
    def conflicts(self) -> tuple[Shadowed, ...]:
        return tuple(one for one in self.shadowed if one.conflict)

    def served_places(self) -> dict[tuple[Any, ...], Placed]:
        """The rows that a lookup finds, by full key."""
        return {
            placed.entry.row.full_key: placed
            for placed in self.kept
            if placed.entry.kind is EntryKind.row and placed.entry.row is not None
        }

    def served(self) -> dict[tuple[Any, ...], TunedRow]:
        """What a lookup finds, by full key."""
        return {key: placed.entry.row for key, placed in self.served_places().items() if placed.entry.row is not None}


class EvidenceFiles:
    """The evidence beside tables, each file read once and only when it is asked for."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._indexes: dict[Path, EvidenceIndex] = {}

    def of(self, placed: Placed) -> Evidence | None:
        """The newest record that explains a row."""
        if placed.entry.row is None:
            return None
        index = self._indexes.get(placed.path)
        if index is None:
            records = read_evidence(evidence_path(placed.path), warnings=self.warnings)
            index = self._indexes[placed.path] = EvidenceIndex(records)
        return index.newest_for(placed.entry.row)


def expand_tables(tables: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> tuple[Path, ...]:
    """The files that a list names, each once: separated by ``os.pathsep``, with patterns such as ``model_configs/*``.

    A pattern stands for the CSV files that it matches, sorted, without checkpoints, profiles and files of shapes.

    Raises:
        CsvError: a pattern matches no table.
    """
    lists = [tables] if isinstance(tables, str | os.PathLike) else list(tables)
    paths: dict[str, Path] = {}
    for part in (part for one in lists for part in os.fspath(one).split(os.pathsep) if part.strip()):
        found = [part] if os.path.exists(part) or not glob.has_magic(part) else _matches(part)
        for name in found:
            paths.setdefault(os.path.realpath(name), Path(name))
    return tuple(paths.values())


def _matches(pattern: str) -> list[str]:
    found = [
        name
        for name in sorted(glob.glob(pattern))
        if name.endswith(".csv") and not any(part in os.path.basename(name) for part in _NO_TABLES)
    ]
    if not found:
        raise CsvError(pattern, "matches no tuned table; expected CSV files; check the pattern")
    return found


def merge_tables(tables: Sequence[TunedTable], evidence: EvidenceFiles | None = None) -> Merge:
    """Holds the rows of several tables against each other."""
    evidence = evidence or EvidenceFiles()
    rivals: dict[tuple[Any, ...], list[Placed]] = {}
    unmeasured, others = [], []
    for table in tables:
        for entry in table.entries:
            placed = Placed(table.path, entry)
            if entry.row is not None and entry.key is not None:
                rivals.setdefault((*entry.key, entry.tag), []).append(placed)
            elif entry.kind is EntryKind.unmeasured:
                unmeasured.append(placed)
            else:
                others.append(placed)
    kept: list[Placed] = []
    shadowed: list[Shadowed] = []
    for same in rivals.values():
        winner, left = _decided(same, evidence) if len(same) > 1 else (same[0], [])
        kept.append(winner)
        shadowed += left
    return Merge(tuple(kept), tuple(shadowed), tuple(unmeasured), tuple(others), tuple(evidence.warnings))


def _decided(same: list[Placed], evidence: EvidenceFiles) -> tuple[Placed, list[Shadowed]]:
    contenders = [Contender(one.entry.row, evidence.of(one)) for one in same if one.entry.row is not None]
    preference = prefer(contenders)
    winner = same[preference.winner]
    left = [Shadowed(winner, same[i], lost.reason, lost.conflict) for i, lost in preference.lost.items()]
    return winner, left


class TunedTables(CachedRows):
    """Several tuned tables, read as one and cached until one of them changes; none of them need exist.

    Its warnings tell of rows in the shadow of others, too.

    Args:
        paths: the CSV files; of equal rows that of an earlier file counts.
        key: the family's key.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]], key: Key) -> None:
        super().__init__(map(Path, paths), key)
        self._evidence = EvidenceFiles()
        self._places: Mapping[tuple[Any, ...], Placed] = {}

    def evidence_of(self, row: TunedRow) -> Evidence | None:
        """The newest record that explains one of these rows, from beside the file that it is in.

        Evidence that cannot be read explains nothing; ``warnings`` tell of it.
        """
        self._refresh()
        placed = self._places.get(row.full_key)
        if placed is None:
            return None
        told, record = len(self._evidence.warnings), None
        try:
            record = self._evidence.of(placed)
        except OSError as error:
            text = f"{evidence_path(placed.path)}: cannot be read: {error.strerror or error}"
            self.warnings += [] if text in self.warnings else [text]
        if damage := self._evidence.warnings[told:]:
            self.warnings.append(damage[0] + (f" (and {len(damage) - 1} more)" if damage[1:] else ""))
        return record

    def _read_rows(self, there: list[Path]) -> Mapping[tuple[Any, ...], TunedRow]:
        tables = [read_tuned(path, self.key) for path in there]
        self._evidence = EvidenceFiles()
        merge = merge_tables(tables, self._evidence)
        self._places = merge.served_places()
        self.warnings = [*(notice for table in tables for notice in table.notices()), *map(str, merge.shadowed)]
        self.warnings += merge.evidence_warnings
        return merge.served()
