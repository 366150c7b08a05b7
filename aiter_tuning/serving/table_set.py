"""All tables that one family's lookups are answered from.

::

    places ─▶ group ─▶ group ─▶ group        the first group that has a usable row for a key answers
                │
                └ table, table, …            one table in several files: ``tables.preference`` decides between rows

Which files there are is found out anew each time that the tables are looked at: a table may appear later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.devices.identity import Identity
from aiter_tuning.keys import Key, full_key
from aiter_tuning.serving.places import Tables, named_places, usual_places
from aiter_tuning.serving.served_table import ServedTable
from aiter_tuning.tables.preference import Contender, prefer
from aiter_tuning.tables.tuned_row import TunedRow


class Found(NamedTuple):
    """A row and the table that it is in."""

    row: TunedRow
    table: ServedTable


class TableSet:
    """The tables of one family.

    Args:
        family: its name.
        key: its key.
        tuned: the tables that were asked for; None: those of the environment, else where they usually lie.
    """

    def __init__(self, family: str, key: Key, tuned: Tables = None) -> None:
        self._family = family
        self._key = key
        self._tuned = tuned
        self._tables: dict[Path, ServedTable] = {}
        self._groups: tuple[tuple[ServedTable, ...], ...] = ()

    def refresh(self) -> bool:
        """Reads what has changed; returns whether answers may be others than before. Does not raise."""
        named = named_places(self._family, self._tuned)
        places = usual_places(self._family) if named is None else named
        tables = {
            path: self._tables.get(path) or ServedTable(path, self._key, expected=named is not None)
            for group in places
            for path in group
        }
        groups = tuple(tuple(tables[path] for path in group) for group in places)
        changed = [table.refresh() for table in tables.values()]
        if groups == self._groups and not any(changed):
            return False
        self._tables, self._groups = tables, groups
        return True

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, whether they are there or not, in the order in which they are asked."""
        return tuple(self._tables)

    def find(self, device: Identity, shape: Mapping[str, Any]) -> Iterator[Found]:
        """What the groups have for a shape on a device, at most one row each; those that name no model come last."""
        for group in self._groups:
            for model in dict.fromkeys((device.gpu_model, "")):
                found = _counts(group, full_key(device.gfx, device.cu_num, model, shape))
                if found is not None:
                    yield found

    def rows(self) -> Iterator[Found]:
        """Every measured row."""
        for table in self._tables.values():
            for same in table.rows.values():
                yield from (Found(row, table) for row in same)


def _counts(group: tuple[ServedTable, ...], key: tuple[Any, ...]) -> Found | None:
    """The one of a group's rows with this key that counts."""
    found = [Found(row, table) for table in group for row in table.rows.get(key, ())]
    if len(found) < 2:
        return found[0] if found else None
    return found[prefer([Contender(row, table.evidence_of(row)) for row, table in found]).winner]
