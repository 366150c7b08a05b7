"""CUPTI's buffers of records, read as they are handed over.

::

    CUPTI ── wants a buffer ──▶ ask     (one of ours, lent)
          ── has filled it ───▶ take ─▶ records, a few fields of each ─▶ list; the buffer is free again

``cupti-python`` makes an object of every record before anybody looks at it, at 80 us each: a hundred kernels cost 8 ms,
more than most candidates run for. Here a record costs 4 us. The package still does all the rest, and tells where in a
record the fields are.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.measure.gpu.activity import Record

BUFFER_BYTES = 1 << 20
"""One for each collection; holds thousands of records."""
_SUCCESS = 0

_Ask = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Layout(NamedTuple):
    """Offsets in bytes; what kind of activity a record is stands at 0."""

    start: int
    end: int
    graph: int | None
    """None: records of this kind do not tell."""


_TYPES = {"kind": ("int32", "uint32"), "start": ("uint64",), "end": ("uint64",), "graph_id": ("uint32",)}


def layouts_of(cupti: Any, kinds: Mapping[str, tuple[int, ...]]) -> dict[int, Layout]:
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
        known = {}
        for name, types in _TYPES.items():
            kind, at = fields.get(name, ("", 0))[:2]
            if str(kind) in types:
                known[name] = int(at)
        if {"kind", "start", "end"} <= known.keys() and known["kind"] == 0:
            layout = Layout(known["start"], known["end"], known.get("graph_id"))
            found.update((number, layout) for number in numbers)
    return found


def loaded_library(maps: Path = Path("/proc/self/maps")) -> ctypes.CDLL | None:
    """The one CUPTI in this process; None if there is none, or more than one to choose from."""
    try:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps.read_text().splitlines() if "/libcupti.so" in line}
    except (OSError, IndexError):
        return None
    if len(paths) != 1:
        return None
    try:
        library = ctypes.CDLL(paths.pop())
        library.cuptiActivityRegisterCallbacks.argtypes = (_Ask, _Take)
        library.cuptiActivityFlushAll.argtypes = (ctypes.c_uint32,)
        found = ctypes.POINTER(ctypes.c_void_p)
        library.cuptiActivityGetNextRecord.argtypes = (ctypes.c_void_p, ctypes.c_size_t, found)
    except (OSError, AttributeError):
        return None
    return library


class RefusedError(RuntimeError):
    """CUPTI refused; the text has its code."""


class Buffers:
    """Lends buffers to CUPTI and hands on what it writes into them.

    Args:
        library: see :func:`loaded_library`; a test has its own.
        layouts: see :func:`layouts_of`; records of other kinds are passed over.
        take: is given each record.
    """

    def __init__(self, library: Any, layouts: Mapping[int, Layout], take: Callable[[Record], None]) -> None:
        self._library = library
        self._layouts = layouts
        self._hand_on = take
        self._all: dict[int, Any] = {}
        self._free: list[int] = []
        self._ask, self._take = _Ask(self._lend), _Take(self._read)  # kept: CUPTI calls them as long as it likes

    def register(self) -> None:
        """Makes CUPTI use these buffers. Raises RefusedError."""
        self._check(self._library.cuptiActivityRegisterCallbacks(self._ask, self._take))

    def flush(self) -> None:
        """Has all finished records handed on. Raises RefusedError."""
        self._check(self._library.cuptiActivityFlushAll(0))

    @staticmethod
    def _check(code: int) -> None:
        if code != _SUCCESS:
            raise RefusedError(f"CUPTI error {code}")

    # Called by CUPTI, from whatever thread it likes

    def _lend(self, buffer: Any, size: Any, most_records: Any) -> None:
        if self._free:
            address = self._free.pop()
        else:
            memory = (ctypes.c_uint64 * (BUFFER_BYTES // 8))()  # aligned as CUPTI wants it
            address = ctypes.addressof(memory)
            self._all[address] = memory
        buffer[0], size[0], most_records[0] = address, BUFFER_BYTES, 0

    def _read(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        record = ctypes.c_void_p(None)
        following, layouts = self._library.cuptiActivityGetNextRecord, self._layouts
        while valid and following(buffer, valid, ctypes.byref(record)) == _SUCCESS:
            at = record.value
            if at is None:
                break
            layout = layouts.get(ctypes.c_int32.from_address(at).value)
            if layout is not None:
                self._hand_on(_record_at(at, layout))
        self._free.append(buffer)


def _record_at(at: int, layout: Layout) -> Record:
    start = ctypes.c_uint64.from_address(at + layout.start).value
    end = ctypes.c_uint64.from_address(at + layout.end).value
    graph = 0 if layout.graph is None else ctypes.c_uint32.from_address(at + layout.graph).value
    return Record(start, end, graph)
