"""Which shapes a run tunes, and what is tried for each: decided before a worker has anything to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import Shape
from aiter_tuning.status import describe
from aiter_tuning.tuner.family import Candidate, Family, Work
from aiter_tuning.tuner.family_reference import FamilyError

if TYPE_CHECKING:
    from aiter_tuning.tables.tuned import TunedRow

Lookup = Callable[[Mapping[str, Any]], "TunedRow | None"]
"""The published row of a shape on the run's device."""


@dataclass(frozen=True)
class ShapePlan:
    """One shape with everything that may run for it."""

    shape: Shape
    label: str
    candidates: tuple[Candidate, ...]
    """In the family's order, which breaks ties; the default is among them."""
    default: str
    incumbent: str
    """The published row's candidate, else the default."""
    published: TunedRow | None
    work: Work

    def candidate(self, name: str) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(candidate.name for candidate in self.candidates)

    def measuring_order(self) -> tuple[Candidate, ...]:
        """Incumbent and default first: they are what all others are held against, and an early leader saves time."""
        first = (self.incumbent, self.default)
        return tuple(sorted(self.candidates, key=lambda c: first.index(c.name) if c.name in first else len(first)))


def serving_shapes(family: Family, shapes: Iterable[Shape]) -> tuple[list[Shape], list[str]]:
    """The distinct shapes whose rows serve ``shapes``, and a note for each shape that another one serves."""
    distinct: dict[tuple[Any, ...], Shape] = {}
    notes = []
    for shape in shapes:
        served_by = family.key.parse(family.bucket(shape))
        if served_by != shape:
            notes.append(
                f"{family.key.label(shape)}: looked up as {family.key.label(served_by)}, which is tuned instead"
            )
        distinct.setdefault(tuple(served_by.values()), served_by)
    return list(distinct.values()), notes


def plan_shape(family: Family, shape: Shape, device: Device, published: TunedRow | None = None) -> ShapePlan:
    """Asks the family what to try for one shape.

    Args:
        family: the operator.
        shape: typed fields of its key.
        device: the run's device.
        published: the row that a lookup finds today.

    Raises:
        FamilyError: the family's methods fail, or its candidates have equal names or configs that are not JSON.
    """
    label = family.key.label(shape)
    try:
        default = family.default(shape, device)
        listed = tuple(family.candidates(shape, device))
        work = family.work(shape)
    except Exception as error:
        raise FamilyError(f"family {family.name}: no candidates for {label}: {describe(error)}") from error
    candidates = {candidate.name: candidate for candidate in listed}
    if len(candidates) != len(listed):
        names = [candidate.name for candidate in listed]
        twice = next(name for name in names if names.count(name) > 1)
        raise FamilyError(f"family {family.name}: two candidates for {label} are named {twice}; names have to differ")
    if default.name not in candidates:
        candidates = {default.name: default} | candidates
    incumbent = default.name
    if published is not None and (published.kernelName in candidates or published.config):
        incumbent = published.kernelName
        if incumbent not in candidates:
            candidates[incumbent] = Candidate(incumbent, published.config, published.kernelId, published.splitK)
    for candidate in candidates.values():
        try:
            json.dumps(candidate.config)
        except (TypeError, ValueError) as error:
            raise FamilyError(f"family {family.name}: the config of {candidate.name} is not JSON: {error}") from None
    return ShapePlan(shape, label, tuple(candidates.values()), default.name, incumbent, published, work)
