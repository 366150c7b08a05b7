"""Columns of a table that the family does not know, and whether one of them changes what a row means.

A table made for a richer operator holds rows that a poorer one must not take for its own: ``scaleAB`` true is another
computation, ``outdtype`` other than ``dtype`` is another kernel. Whatever else is unknown (a batch, a tag) is left out
with a warning that names it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from aiter_tuning.keys import CALLS_COLUMN, DEVICE_COLUMNS, Key, KeyValue, is_missing, normalise_dtype, parse_flag
from aiter_tuning.tables.tuned_row import RESULT_COLUMNS

_FLAG_NAMES = frozenset({"scaleAB", "bpreshuffle", "use_g1u1", "doweight_stage1"})
_FLAG_PREFIXES = ("is_", "use_", "has_", "with_", "do_")


class UnknownColumns:
    """The unknown columns of one table.

    Args:
        header: the table's columns.
        rows: all its rows; whether a column of 1s holds flags or sizes can only be told from the whole column.
        key: the family's key.
    """

    def __init__(self, header: Sequence[str], rows: Collection[Mapping[str, str]], key: Key) -> None:
        known = {*key.columns, *DEVICE_COLUMNS, CALLS_COLUMN, *RESULT_COLUMNS}
        self.names = tuple(name for name in header if name not in known)
        self._dtypes = tuple(name for name in self.names if "dtype" in name.lower())
        self._flags = tuple(
            name for name in self.names if name not in self._dtypes and _holds_flags(name, (row[name] for row in rows))
        )
        dtype_fields = [field.name for field in key.fields if field.is_dtype]
        self._own_dtype = "dtype" if "dtype" in dtype_fields else next(iter(dtype_fields), None)

    def warning(self) -> str | None:
        """One sentence that names them, or None."""
        if not self.names:
            return None
        columns = "column" if len(self.names) == 1 else "columns"
        return f"{columns} {', '.join(self.names)} unknown to this family, ignored"

    def objection(self, cells: Mapping[str, str], shape: Mapping[str, KeyValue]) -> tuple[str, str] | None:
        """The column whose value makes the row mean something else, and a sentence that says so; None if none does."""
        for name in self._flags:
            if parse_flag(cells[name]):
                return name, (
                    f"{name} is {cells[name]}, which this family does not know; expected False, or no such column; "
                    "tune this row with a family that has it"
                )
        if self._own_dtype is None:
            return None
        own = shape[self._own_dtype]
        for name in self._dtypes:
            if not is_missing(cells[name]) and normalise_dtype(cells[name]) != own:
                return name, (
                    f"{name} is {cells[name]} where {self._own_dtype} is {own}; this family has one dtype; "
                    f"expected {own}; tune this row with a family that knows {name}"
                )
        return None


def _holds_flags(name: str, cells: Iterable[str]) -> bool:
    """Whether a column holds flags rather than sizes: nothing but flags, and a word or a 0 or its name to prove it."""
    found = {cell.lower() for cell in cells if not is_missing(cell)}
    if not found or any(parse_flag(cell) is None for cell in found):
        return False
    return bool(found - {"1", "1.0"}) or name in _FLAG_NAMES or name.lower().startswith(_FLAG_PREFIXES)
