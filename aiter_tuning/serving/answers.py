"""The answers that one operator's lookups get on one device, found once for each key and kept.

::

    values ─▶ shape ─▶ exact rows, else the bucket's ─▶ usable? ── yes ─▶ row (stale, if so), kept in ``known``
                                                          └─────── no ──▶ said once; the next row, else a Miss

``known`` is replaced as a whole whenever a table has changed, so that whoever reads it needs no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any, NamedTuple

from aiter_tuning.devices.device import Device
from aiter_tuning.devices.identity import Identity
from aiter_tuning.keys import DEVICE_COLUMNS, KeyFieldError, Shape
from aiter_tuning.serving import refusals
from aiter_tuning.serving.misses import Miss, follow_environment
from aiter_tuning.serving.operators import Operator
from aiter_tuning.serving.places import Tables
from aiter_tuning.serving.table_set import Found, TableSet
from aiter_tuning.serving.versions import library_objection, staleness
from aiter_tuning.status import describe
from aiter_tuning.tables.tuned_row import TunedRow

logger = logging.getLogger("aiter_tuning")

LOOK_EVERY_S = 0.5
"""How long a changed table may go unnoticed."""
_MOST_KNOWN = 1 << 16
"""Keys whose answer is kept; a server with more distinct ones starts again."""


class Seen(NamedTuple):
    """An answer that was found while somebody watched."""

    family: str
    shape: Shape
    row: TunedRow | None


watchers: list[list[Seen]] = []
"""Who is told of every answer that is found, though not of those that were known already."""


class Question(NamedTuple):
    """What a lookup asks, understood."""

    device: Identity
    shape: Shape
    """As asked."""
    served_by: Shape
    """The bucket that serves it; the shape itself where the family declares none."""


class Answers:
    """What lookups of one operator find in one set of tables.

    Args:
        operator: what is looked up.
        device: where it runs; a lookup that names ``gfx``, ``cu_num`` or ``gpu_model`` itself asks for that device.
        tuned: the tables, see :class:`TableSet`.
    """

    def __init__(self, operator: Operator, device: Identity, tuned: Tables = None) -> None:
        self.operator = operator
        self.device = device
        self.tables = TableSet(operator.name, operator.key, tuned)
        self.known: dict[Any, TunedRow | Miss] = {}
        self.due = 0.0
        """When the tables are looked at again, by ``time.monotonic``."""
        self._columns = operator.key.columns
        self._fields = frozenset((*operator.key.columns, *DEVICE_COLUMNS))
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._looked = False

    def refresh(self) -> None:
        """Looks at the tables; one thread does, others go on with what is known, unless nothing is yet."""
        if not self._lock.acquire(blocking=not self._looked):
            return
        try:
            if monotonic() < self.due:  # another thread has just done it
                return
            follow_environment()
            if self.tables.refresh():
                self.known = {}
            self.due = monotonic() + LOOK_EVERY_S
            self._looked = True
        finally:
            self._lock.release()

    def look_now(self) -> None:
        """Looks at the tables although it is not time yet."""
        self.due = 0.0
        self.refresh()

    def find(self, values: tuple[Any, ...], fields: Mapping[str, Any]) -> TunedRow | Miss:
        """The answer to a question that was not asked before.

        Raises:
            KeyFieldError: a field is missing, unknown, or has a value that it cannot have.
        """
        known = self.known
        asked = self.ask(values, fields)
        row = next((row for row, _ in self.usable(asked)), None)
        answer = Miss(self.operator.name, asked.served_by) if row is None else row
        for seen in watchers:
            seen.append(Seen(self.operator.name, asked.shape, row))
        try:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[values, *fields, *fields.values()] = answer
        except TypeError:  # a value that cannot be hashed: found again each time
            pass
        return answer

    def ask(self, values: tuple[Any, ...], fields: Mapping[str, Any]) -> Question:
        """What values in the order of the key, and named ones, ask for.

        Raises:
            KeyFieldError: a field is missing, unknown, or has a value that it cannot have.
        """
        named = self._named(values, fields)
        shape = self.operator.key.parse(named)
        return Question(self._device(named), shape, self.operator.key.parse(self.operator.bucket(shape)))

    def usable(self, asked: Question) -> Iterator[Found]:
        """Rows that may serve, the best first; those that may not are said once each."""
        for shape in (asked.shape, asked.served_by) if asked.served_by != asked.shape else (asked.shape,):
            for found in self.tables.find(asked.device, shape):
                row = self._checked(found)
                if row is not None:
                    yield Found(row, found.table)

    def objection(self, found: Found) -> str | None:
        """Why a row that was found does not serve; None if it does."""
        return self._resolved(found)[1]

    def forget(self) -> None:
        """Finds every answer anew."""
        self.known = {}

    def renew_lock(self) -> None:
        """In a forked child: the thread that held the lock is not in it."""
        self._lock = threading.Lock()

    def _checked(self, found: Found) -> TunedRow | None:
        row, objection = self._resolved(found)
        if objection is not None:
            text = (
                f"{found.table.path}: {self.operator.key.label(found.row.shape)}: {objection}; the row does not serve"
            )
            if text not in self._said:
                self._said.add(text)
                logger.warning("%s", text)
        return row

    def _resolved(self, found: Found) -> tuple[TunedRow | None, str | None]:
        row, operator = found.row, self.operator
        device = Device("", "", "", row.gfx, row.cu_num, row.gpu_model or self.device.gpu_model)
        try:
            config = operator.resolve(row.kernelName, row.config, row.shape, device)
        except Exception as error:
            return None, f"{operator.name} has no kernels for it: {describe(error)}"
        if config is None:
            if not row.kernelName:
                return None, f"it names no kernel, only id {row.kernelId}"
            return None, f"{operator.name} has no kernel {row.kernelName!r} for it"
        evidence = found.table.evidence_of(row)
        versions = {} if evidence is None else evidence.versions
        objection = library_objection(config, versions)
        if objection is not None:
            return None, objection
        serves = replace(row, config=dict(config), stale=staleness(versions))
        refusal = refusals.refusal_of(operator.name, serves)
        return (serves, None) if refusal is None else (None, refusal)

    def _device(self, named: Mapping[str, Any]) -> Identity:
        """The device that is asked for: this one, but for the fields that were named."""
        gfx, units, model = (named.get(column, here) for column, here in zip(DEVICE_COLUMNS, self.device, strict=True))
        if not str(units).strip().isdecimal():
            raise KeyFieldError("cu_num", repr(units), "a whole number")
        return Identity(str(gfx).strip(), int(units), " ".join(str(model).split()))

    def _named(self, values: tuple[Any, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
        if len(values) > len(self._columns):
            raise KeyFieldError("key", f"{len(values)} values", f"{len(self._columns)}: {', '.join(self._columns)}")
        named = dict(zip(self._columns, values, strict=False))
        twice = next((name for name in fields if name in named), None)
        if twice is not None:
            raise KeyFieldError(twice, "given twice", "by position or by name")
        unknown = next((name for name in fields if name not in self._fields), None)
        if unknown is not None:
            raise KeyFieldError(unknown, "no field", f"one of {', '.join((*self._columns, *DEVICE_COLUMNS))}")
        return {**named, **fields}
