"""One tuned CSV as serving reads it: again whenever it has changed, and never worse than before.

::

    stat ── as before ─▶ nothing to do
      └── changed ─▶ read ── whole ──▶ its rows serve from now on
                        └── damaged ─▶ the rows of the last good reading; if there is none, those that can be read

Rows that cannot be understood, or hold no measured latency, cost nobody but themselves. What a person should know of a
reading is one line in the log, not one for each row.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiter_tuning.keys import Key
from aiter_tuning.tables.csv_reader import CsvError
from aiter_tuning.tables.evidence import Evidence, EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.tuned_reader import TunedTable, read_tuned
from aiter_tuning.tables.tuned_row import TunedRow

logger = logging.getLogger("aiter_tuning")

Rows = Mapping[tuple[Any, ...], Sequence[TunedRow]]


class ServedTable:
    """The rows of one file. The file need not exist.

    Args:
        path: the CSV.
        key: the family's key.
        expected: whether somebody named the file, so that its absence is worth a warning.
    """

    def __init__(self, path: Path, key: Key, *, expected: bool = False) -> None:
        self.path = path
        self.rows: Rows = {}
        """The measured rows of each full key, in the order of the file."""
        self._key = key
        self._expected = expected
        self._stamp: tuple[int, ...] | None = ()
        """What the file looked like when it was read; None: it was not there."""

    def refresh(self) -> bool:
        """Reads the file if it has changed; returns whether its rows may have. Does not raise."""
        try:
            stamp = _stamp_of(self.path)
        except OSError as error:
            stamp = (error.errno or 0,)
            if stamp != self._stamp:
                self._say(f"cannot be read ({error.strerror}); {self._what_serves()}")
            self._stamp = stamp
            return False
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        if stamp is not None:
            self._read()
        else:
            self.rows = {}
            if self._expected:
                self._say("no such file; a lookup finds nothing in it")
        vars(self).pop("_evidence", None)
        return True

    def evidence_of(self, row: TunedRow) -> Evidence | None:
        """The record that explains one of its rows; None if there is none."""
        return self._evidence.newest_for(row)

    @functools.cached_property
    def _evidence(self) -> EvidenceIndex:
        damage: list[str] = []
        path = evidence_path(self.path)
        records: list[Evidence] = []
        try:
            records = read_evidence(path, warnings=damage)
        except OSError as error:
            damage = [f"{path}: cannot be read ({error.strerror})"]
        if damage:
            logger.warning("%s%s", damage[0], _and_more(damage))
        return EvidenceIndex(records)

    def _read(self) -> None:
        if not self._stamp or not self._stamp[2]:  # an empty file (touch) holds no rows, and is none the worse for it
            self.rows = {}
            return
        refused: list[CsvError] = []
        try:
            table = read_tuned(self.path, self._key, refused=refused.append)
        except (CsvError, OSError) as error:
            self._say(f"damaged: {error}; {self._what_serves()}")
            return
        if refused and self.rows:
            self._say(f"damaged: {refused[0]}{_and_more(refused)}; {self._what_serves()}")
            return
        self.rows = _by_key(table)
        left_out = [f"{table.place(entry)}: {entry.problem}" for entry in table.entries if entry.problem]
        complaints = [*map(str, refused), *left_out]
        if complaints:
            logger.warning("%s; not served%s", complaints[0], _and_more(complaints))

    def _what_serves(self) -> str:
        return f"its last good state, {len(self.rows)} rows, serves" if self.rows else "none of its rows serves"

    def _say(self, text: str) -> None:
        logger.warning("%s: %s", self.path, text)


def _by_key(table: TunedTable) -> Rows:
    rows: dict[tuple[Any, ...], list[TunedRow]] = {}
    for entry in table.entries:
        if entry.own_key is not None and entry.row is not None:
            rows.setdefault(entry.own_key, []).append(entry.row)
    return rows


def _and_more(complaints: Sequence[object]) -> str:
    return f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""


def _stamp_of(path: Path) -> tuple[int, ...] | None:
    """What changes whenever a file does; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
