"""The tuned table: which kernel serves which shape on which device, one row each.

::

    rows(), find()    file ─► TunedRow            cached until the file changes; never writes
    update(rows)      lock ─► read again ─► merge by full key ─► atomic write
                                             ├ stays(current, new): may what is there now be replaced?
                                             └ settled: of these keys the row that counts is left, and no other

``update`` takes measured rows only, and reading leaves others out with a warning (upstream's files hold rows of zeros
that were never measured). A file in one of upstream's layouts keeps it when it is updated, as it keeps rows and columns
that are none of the family's business. Which of several rows with one key counts is decided by ``preference``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiter_tuning.keys import Key
from aiter_tuning.tables.atomic import atomic_write, remove_leftovers
from aiter_tuning.tables.cached_rows import CachedRows, file_stamp
from aiter_tuning.tables.csv_writer import csv_line
from aiter_tuning.tables.evidence import EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.lock import FileLock
from aiter_tuning.tables.preference import Contender, prefer
from aiter_tuning.tables.tuned_reader import Entry, TunedTable, read_tuned
from aiter_tuning.tables.tuned_row import TunedRow, checked_row, row_cells, row_rank, widened

__all__ = ["TunedCsv", "TunedRow", "written_table"]


class TunedCsv(CachedRows):
    """A tuned table on disk, read with one family's key. The file need not exist.

    Args:
        path: the CSV file.
        key: the family's key.
        lock_timeout: seconds that ``update`` waits for another writer.
        evidence_of: the table whose evidence explains its rows, if another one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        key: Key,
        *,
        lock_timeout: float | None = 60.0,
        evidence_of: str | os.PathLike[str] | None = None,
    ) -> None:
        self.path = Path(path)
        super().__init__((self.path,), key)
        self.lock_timeout = lock_timeout
        self._evidence_of = self.path if evidence_of is None else Path(evidence_of)
        self.removed: list[Entry] = []
        """Rows that updates took out of the file, since another one of their key counts."""

    # Reading

    def _read_rows(self, there: list[Path]) -> Mapping[tuple[Any, ...], TunedRow]:
        chosen = self._chosen(self._read().entries) if there else {}
        return {key: entry.row for key, entry in chosen.items() if entry.row is not None}

    def _read(self) -> TunedTable:
        table = read_tuned(self.path, self.key)
        self.warnings = table.notices()
        return table

    def crowded_keys(self) -> frozenset[tuple[Any, ...]]:
        """The full keys of which the file has more than one row, measured or not.

        Raises:
            CsvError: as for :meth:`rows`.
        """
        counts = Counter(entry.own_key for entry in self._current()[1] if entry.own_key is not None)
        return frozenset(key for key, count in counts.items() if count > 1)

    def _chosen(self, entries: Iterable[Entry]) -> dict[tuple[Any, ...], Entry]:
        """The row of each key that counts."""
        found: dict[tuple[Any, ...], list[Entry]] = {}
        for entry in entries:
            if entry.own_key is not None and entry.row is not None:
                found.setdefault(entry.own_key, []).append(entry)
        evidence: EvidenceIndex | None = None
        chosen = {}
        for key, same in found.items():
            if len(same) > 1 and evidence is None:  # read only where it has something to decide
                evidence = EvidenceIndex(read_evidence(evidence_path(self._evidence_of), warnings=self.warnings))
            chosen[key] = self._preferred(same, evidence) if evidence is not None else same[0]
        return chosen

    def _preferred(self, same: list[Entry], evidence: EvidenceIndex) -> Entry:
        rows = [entry.row for entry in same if entry.row is not None]
        preference = prefer([Contender(row, evidence.newest_for(row)) for row in rows])
        kept = same[preference.winner]
        for number, lost in preference.lost.items():
            place = f"{self.path}:{same[number].line}"
            self.warnings.append(f"{place}: the key of line {kept.line} again, {lost.reason}; left out")
        return kept

    # Writing

    def update(
        self,
        rows: Iterable[TunedRow],
        *,
        sort: bool = False,
        stays: Callable[[TunedRow, TunedRow], bool] | None = None,
        before: Callable[[Sequence[TunedRow]], None] | None = None,
        settled: Collection[tuple[Any, ...]] = (),
    ) -> int:
        """Puts rows into the file: one with the same full key is replaced, everything else stays; returns how many.

        Of a key that is written or ``settled`` the file has one row afterwards; those that went are in ``removed``.

        Args:
            rows: what to write; of several with one key the last counts.
            sort: whether to order the whole file by device and shape (N before M, as upstream does).
            stays: asked under the lock with the measured row that a key has in the file now, whoever wrote it, and the
                new one; True: the file's row stays. None: a new row replaces any.
            before: told under the lock which rows are about to be written; what it raises leaves the file as it is.
            settled: full keys of which only the row that counts is to be left, where ``rows`` has none that is written.

        Raises:
            ValueError: a row holds no measured latency or cannot be written; the file is untouched.
            CsvError: the file that is there cannot be read.
            OSError: the file cannot be written (it is then as it was), or another writer holds the lock too long.
        """
        checked = [checked_row(row, self.key) for row in rows]
        new = {row.full_key: row for row in checked}
        if not new and not settled:
            return 0
        with FileLock.beside(self.path, timeout=self.lock_timeout):
            remove_leftovers(self.path)
            header, entries = self._current()
            contested = {*new, *settled} if stays is not None or settled else frozenset()
            current = self._chosen(entry for entry in entries if entry.own_key in contested)
            if stays is not None:
                for key, entry in current.items():
                    if key in new and entry.row is not None and stays(entry.row, new[key]):
                        del new[key]
            if before is not None:
                before(tuple(new.values()))
            removed = _shadowed(entries, new, {key: entry for key, entry in current.items() if key not in new})
            if not new and not removed:
                return 0
            header = widened(header, self.key) if new else header
            merged = _updated(header, entries, new, removed, self.key)
            if sort:
                merged.sort(key=lambda row: row_rank(row[1], self.key))
            atomic_write(self.path, written_table(header, [cells for cells, _ in merged]))
        self.removed += removed
        self._stamps = None
        return len(new)

    def _current(self) -> tuple[tuple[str, ...], tuple[Entry, ...]]:
        if file_stamp(self.path) is None:
            return (), ()
        table = self._read()
        return table.header, table.entries


def _shadowed(
    entries: Iterable[Entry], new: Collection[tuple[Any, ...] | None], counts: Mapping[tuple[Any, ...], Entry]
) -> list[Entry]:
    """What goes: of keys that are written all rows but the first, which is replaced where it stands; of keys whose row
    stays, all but the one that counts."""
    removed, replaced = [], set()
    for entry in entries:
        key = entry.own_key
        if key in new:
            if key in replaced:
                removed.append(entry)
            replaced.add(key)
        elif key is not None and key in counts and entry is not counts[key]:
            removed.append(entry)
    return removed


def _updated(
    header: tuple[str, ...],
    entries: Iterable[Entry],
    new: Mapping[tuple[Any, ...], TunedRow],
    removed: Iterable[Entry],
    key: Key,
) -> list[tuple[dict[str, str], tuple[Any, ...] | None]]:
    """The cells and full keys of all rows: a new one stands where the first of its key stood, else at the end."""
    gone = {entry.line for entry in removed}
    waiting = dict(new)
    rows: list[tuple[dict[str, str], tuple[Any, ...] | None]] = []
    for entry in entries:
        row_key = entry.own_key
        if row_key is not None and row_key in waiting:
            rows.append((row_cells(header, waiting.pop(row_key), key, entry.cells), row_key))
        elif entry.line not in gone:
            rows.append((entry.cells, row_key))
    return rows + [(row_cells(header, row, key, {}), row_key) for row_key, row in waiting.items()]


def written_table(header: tuple[str, ...], rows: Iterable[Mapping[str, str]]) -> str:
    """The text of a file with these columns and rows."""
    return csv_line(header) + "".join(csv_line(row.get(name, "") for name in header) for row in rows)
