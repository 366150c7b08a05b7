"""Reading CUPTI's records where they lie: attribute access through ``cupti-python`` costs 20 us a record, this one.

Where the fields are is asked of the package itself, and believed once the first record of each kind reads alike both
ways; otherwise attributes are read as before.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from aiter_tuning.measure.gpu.activity import Record


class Layout(NamedTuple):
    """Offsets in bytes."""

    start: int
    end: int
    graph: int | None
    """None: records of this kind do not tell."""


def layouts_of(cupti: Any, kinds: Mapping[str, Iterable[int]]) -> dict[int, Layout]:
    """By kind of activity, as far as the package tells.

    Args:
        cupti: the module; it has a NumPy type for each record, ``activity_kernel10_dtype`` and so on.
        kinds: numbers of activities by the name that their type begins with, ``activity_kernel``.
    """
    found: dict[int, Layout] = {}
    for prefix, numbers in kinds.items():
        spelt = re.compile(rf"{prefix}(\d+)_dtype")
        versions = {int(match[1]): name for name in dir(cupti) if (match := spelt.fullmatch(name))}
        if not versions:
            continue
        fields = getattr(getattr(cupti, versions[max(versions)]), "fields", None) or {}
        wanted = {name: (str(fields[name][0]), int(fields[name][1])) for name in _TYPES if name in fields}
        known = {name: at for name, (kind, at) in wanted.items() if kind in _TYPES[name]}
        if not {"kind", "start", "end"} <= known.keys() or known["kind"] != 0:  # the kind is read before all else
            continue
        layout = Layout(known["start"], known["end"], known.get("graph_id"))
        found.update((int(number), layout) for number in numbers)
    return found


_LOWEST_ADDRESS = 1 << 20
"""Nothing of ours lies below; a number like that is no address."""
_TYPES = {"kind": ("int32", "uint32"), "start": ("uint64",), "end": ("uint64",), "graph_id": ("uint32",)}


class Reader:
    """Turns CUPTI's activities into records."""

    def __init__(self, wanted: Iterable[int], layouts: Mapping[int, Layout]) -> None:
        self._wanted = frozenset(wanted)
        self._layouts = dict(layouts)
        self._believed: set[int] = set()

    def read(self, activity: Any) -> Record | None:
        """None for an activity of another kind."""
        if not self._believed:
            return self._read_both_ways(activity)
        at = int(activity)
        kind = _kind_at(at)
        if kind not in self._believed:
            return self._read_both_ways(activity)
        return _at(at, self._layouts[kind])

    def _read_both_ways(self, activity: Any) -> Record | None:
        kind = int(activity.kind)
        if kind not in self._wanted:
            return None
        record = Record(int(activity.start), int(activity.end), int(getattr(activity, "graph_id", 0)))
        layout = self._layouts.get(kind)
        if layout is not None:
            try:
                at = int(activity)
                same = (
                    at > _LOWEST_ADDRESS and ctypes.c_int32.from_address(at).value == kind and _at(at, layout) == record
                )
            except (TypeError, ValueError, OverflowError):
                same = False
            if same:
                self._believed.add(kind)
            else:
                self._layouts.clear()
                self._believed.clear()
        return record


def _kind_at(at: int) -> int:
    return ctypes.c_int32.from_address(at).value


def _at(at: int, layout: Layout) -> Record:
    start = ctypes.c_uint64.from_address(at + layout.start).value
    end = ctypes.c_uint64.from_address(at + layout.end).value
    graph = 0 if layout.graph is None else ctypes.c_uint32.from_address(at + layout.graph).value
    return Record(start, end, graph)
