"""``lookup`` and its bound form: an answer that is known costs one hash, one look at a clock, and no lock.

A bound lookup points at the answers of its operator, device and tables. ``serve_from`` lets those that were bound
without tables of their own point elsewhere for a while, so that one process can compare what serving runs with one
table and with another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from aiter_tuning.devices.identity import Identity
from aiter_tuning.serving import refusals
from aiter_tuning.serving.answers import Answers, Seen, logger, watchers
from aiter_tuning.serving.here import DeviceLike, identity_here
from aiter_tuning.serving.misses import Miss
from aiter_tuning.serving.operators import FamilyLike, Operator, operator_of
from aiter_tuning.serving.places import Tables
from aiter_tuning.tables.tuned_row import TunedRow

_answers: dict[tuple[Operator, Identity, Any], Answers] = {}
_bound: dict[tuple[Any, ...], BoundLookup] = {}
_instead: dict[str, Tables] = {}
"""Tables that serve a family for a while, by its name."""


class BoundLookup:
    """Looks up rows of one operator on one device; call it with values in the order of the key, or by name.

    ::

        tuned = bind("gemm_bf16")
        row = tuned(64, 4096, 4096, "bf16", False)       # or tuned(M=64, N=4096, K=4096)
        if row is not None: launch(row.config)
    """

    __slots__ = ("_answers", "_tuned", "device", "operator")

    def __init__(self, operator: Operator, device: Identity, tuned: Tables) -> None:
        self.operator = operator
        self.device = device
        self._tuned = tuned
        self.point()

    def __call__(self, *values: Any, **fields: Any) -> TunedRow | None:
        """The row that serves; None: there is none, run the operator's default. Do not change its config.

        Raises:
            ValueError: a field is missing, unknown, or has a value that it cannot have.
        """
        answers = self._answers
        if monotonic() >= answers.due:
            answers.refresh()
        try:
            found = answers.known[values, *fields, *fields.values()]
        except (KeyError, TypeError):
            found = answers.find(values, fields)
        if found.__class__ is Miss:
            found.count()
            return None
        return found  # type: ignore[return-value]  # what is no Miss is a row; isinstance would cost as much as the hash

    @property
    def answers(self) -> Answers:
        """Where it looks now."""
        return self._answers

    def point(self) -> None:
        """Looks where lookups of its operator look now."""
        tuned = _instead.get(self.operator.name) if self._tuned is None else self._tuned
        place = (self.operator, self.device, tuned)
        if place not in _answers:
            _answers[place] = Answers(*place)
        self._answers = _answers[place]


def bind(family: FamilyLike, tuned: Tables = None, device: DeviceLike = None) -> BoundLookup:
    """A lookup for a place that looks up often; the same one for the same arguments.

    Args:
        family: a name from ``aiter-tune families``, ``path/to/op.py:ClassName``, or a family's class.
        tuned: the tables to look into; None: those that :mod:`~aiter_tuning.serving.places` finds.
        device: what torch calls the device; None: this process's first or current one.

    Raises:
        ValueError: there is no such family or device.
    """
    if tuned is not None and not isinstance(tuned, str | os.PathLike | tuple):
        tuned = tuple(tuned)
    asked = (family, tuned, device)
    bound = _bound.get(asked)
    if bound is None:
        operator = operator_of(family)
        bound = _bound.setdefault(asked, BoundLookup(operator, identity_here(operator.devices, device), tuned))
    return bound


def lookup(family: FamilyLike, *, tuned: Tables = None, **key: Any) -> TunedRow | None:
    """The tuned row for a shape on this device, or None: ``lookup("gemm_bf16", M=64, N=4096, K=4096, dtype="bf16")``.

    Fields with a default may be left out. ``gfx``, ``cu_num`` and ``gpu_model`` among them ask for another device.

    Args:
        family: a name from ``aiter-tune families``, ``path/to/op.py:ClassName``, or a family's class.
        tuned: tuned CSVs to look into; None: those that :mod:`~aiter_tuning.serving.places` finds.
        key: the fields of the shape.

    Raises:
        ValueError: there is no such family, or a field is missing, unknown, or has a value that it cannot have.
    """
    try:
        bound = _bound[family, tuned, None]
    except (KeyError, TypeError):
        bound = bind(family, tuned)
    return bound(**key)


def is_tuned(family: FamilyLike, *, tuned: Tables = None, **key: Any) -> bool:
    """Whether a lookup with these arguments finds a row. Raises as :func:`lookup` does."""
    return lookup(family, tuned=tuned, **key) is not None


def refuse(family: FamilyLike, row: TunedRow, reason: str) -> None:
    """Tells that a row which a lookup gave cannot be launched in this process: no lookup finds it again, said once."""
    operator = operator_of(family)
    refusals.remember(operator.name, row, reason)
    logger.warning("%s: %s does not run here: %s", operator.key.label(row.shape), row.kernelName, reason)
    for answers in _answers_of(operator):
        answers.forget()


@contextmanager
def serve_from(family: FamilyLike, tuned: Tables) -> Iterator[None]:
    """Inside, lookups of this family that name no tables look into these: for comparing, and for proving a new table.

    It holds for the whole process; entering and leaving it costs a few microseconds.
    """
    operator = operator_of(family)
    before = _instead.get(operator.name)
    point(operator, tuned)
    try:
        yield
    finally:
        point(operator, before)


@contextmanager
def watch(family: FamilyLike) -> Iterator[list[Seen]]:
    """Gives the list of what lookups of this family find inside, each key once."""
    seen: list[Seen] = []
    for answers in _answers_of(operator_of(family)):
        answers.forget()
    watchers.append(seen)
    try:
        yield seen
    finally:
        watchers.remove(seen)


def point(operator: Operator, tuned: Tables) -> None:
    """From now on, lookups of an operator that name no tables look into these; None: where they usually do."""
    if tuned is None:
        _instead.pop(operator.name, None)
    else:
        _instead[operator.name] = tuned
    for bound in list(_bound.values()):
        if bound.operator.name == operator.name:
            bound.point()


def answers_in(operator: Operator, tuned: Tables) -> list[Answers]:
    """The answers that lookups of an operator get from these tables, on any device, as far as somebody asked."""
    asked = list(_answers.items())
    return [found for (one, _, place), found in asked if one.name == operator.name and place == tuned]


def _answers_of(operator: Operator) -> list[Answers]:
    return [answers for answers in list(_answers.values()) if answers.operator.name == operator.name]


def _after_fork() -> None:
    for answers in _answers.values():
        answers.renew_lock()


os.register_at_fork(after_in_child=_after_fork)
