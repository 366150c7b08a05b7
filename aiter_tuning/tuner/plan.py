"""Which shapes a run tunes, and what is tried for each: decided before a worker has anything to do."""

from __future__ import annotations

import hashlib
import json
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import Shape
from aiter_tuning.measure.place import described_with_place
from aiter_tuning.status import describe
from aiter_tuning.tuner.choice import Today
from aiter_tuning.tuner.family import Candidate, Family, Work
from aiter_tuning.tuner.family_reference import FamilyError
from aiter_tuning.tuner.stale_rows import RowState
from aiter_tuning.tuning_policy import SAMPLE_SEED

if TYPE_CHECKING:
    from aiter_tuning.tables.tuned import TunedRow

_SHOWN = 60
"""Letters of a wrong value that a message repeats."""

_to_json = json.JSONEncoder(allow_nan=False, sort_keys=True).encode
"""Made once: there may be a million configs to check."""

Lookup = Callable[[Mapping[str, Any]], "TunedRow | None"]
"""The published row of a shape on the run's device."""


class ShapeRefusedError(FamilyError):
    """A family raised for one shape: it does not compute that shape, or is wrong about it."""

    def __init__(self, message: str, shape: Shape) -> None:
        super().__init__(message)
        self.shape = shape


@dataclass(frozen=True)
class ShapePlan:
    """One shape with everything that may run for it."""

    shape: Shape
    label: str
    candidates: tuple[Candidate, ...]
    """In the family's order, which breaks ties; the default is among them."""
    today: Today
    """What serving runs."""
    published: TunedRow | None
    work: Work
    lists_any: bool = True
    """Whether the family has candidates for the shape; its default is measured all the same."""

    @property
    def default(self) -> str:
        return self.today.default

    @property
    def has_row(self) -> bool:
        """Whether there is a row that serving can use."""
        return self.published is not None and self.today.row == self.today.incumbent

    @property
    def row_state(self) -> RowState:
        """How urgent it is to tune the shape."""
        if self.published is None or not self.has_row:
            return RowState.none
        return RowState.stale if self.published.stale else RowState.fresh

    @property
    def incumbent(self) -> str:
        """The published row's candidate, else the default."""
        return self.today.incumbent

    def candidate(self, name: str) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(candidate.name for candidate in self.candidates)

    def measuring_order(self) -> tuple[Candidate, ...]:
        """Incumbent and default first: they are what all others are held against, and an early leader saves time."""
        first = (self.incumbent, self.default)
        if self.candidates[0].name == self.incumbent == self.default:
            return self.candidates
        return tuple(sorted(self.candidates, key=lambda c: first.index(c.name) if c.name in first else len(first)))


def serving_shapes(family: Family, shapes: Iterable[Shape]) -> tuple[list[Shape], list[str]]:
    """The distinct shapes whose rows serve ``shapes``, and a note for each shape that another one serves.

    Raises:
        ShapeRefusedError: ``bucket`` fails, or gives a shape that the key does not allow.
        FamilyError: it gives what is no shape.
    """
    if type(family).bucket is Family.bucket:  # each serves itself
        return list({tuple(shape.values()): shape for shape in shapes}.values()), []
    distinct: dict[tuple[Any, ...], Shape] = {}
    notes = []
    for shape in shapes:
        label = family.key.label(shape)
        try:
            found: object = family.bucket(shape)
            if isinstance(found, Mapping):
                served_by = family.key.parse(found)
        except (Exception, SystemExit) as error:
            raise ShapeRefusedError(
                f"family {family.name}: no bucket() for {label}: {describe(error)}", shape
            ) from error
        if not isinstance(found, Mapping):
            raise FamilyError(
                f"family {family.name}: for {label} bucket() gives {_shown(found)}; expected a shape, a mapping of "
                f"{', '.join(family.key.columns)}"
            )
        if served_by != shape:
            notes.append(f"{label}: looked up as {family.key.label(served_by)}, which is tuned instead")
        distinct.setdefault(tuple(served_by.values()), served_by)
    return list(distinct.values()), notes


def sampled(names: Iterable[str], count: int, label: str) -> frozenset[str]:
    """``count`` of the names, or all: the same ones each time, whatever their order, and among those of a larger count.

    Args:
        names: of a shape's candidates.
        count: how many to draw.
        label: of the shape, so that each shape draws others.
    """
    drawn = sorted(names, key=lambda name: (hashlib.sha256(f"{SAMPLE_SEED}:{label}:{name}".encode()).digest(), name))
    return frozenset(drawn[:count])


def plan_shape(
    family: Family, shape: Shape, device: Device, published: TunedRow | None = None, sample: int | None = None
) -> ShapePlan:
    """Asks the family what to try for one shape.

    Args:
        family: the operator.
        shape: typed fields of its key.
        device: the run's device.
        published: the row that a lookup finds today.
        sample: so many candidates, besides default and incumbent; None: all.

    Raises:
        ShapeRefusedError: the family's methods fail.
        FamilyError: they answer what cannot be measured or written down.
    """
    label = family.key.label(shape)
    asked = "default()"
    try:
        default = family.default(shape, device)
        asked = "candidates"
        answer: object = family.candidates(shape, device)
        listed = tuple(answer) if isinstance(answer, Iterable) else None
        asked = "work()"
        work = family.work(shape)
    except (Exception, SystemExit) as error:
        why = described_with_place(error)
        raise ShapeRefusedError(f"family {family.name}: no {asked} for {label}: {why}", shape) from error
    if listed is None:
        gives = f"candidates() gives {_shown(answer)}; expected Candidates in a list"
        raise FamilyError(f"family {family.name}: for {label} {gives}")
    mistake = _mistake(default, listed, work)
    if mistake is not None:
        raise FamilyError(f"family {family.name}: for {label} {mistake}")
    candidates = {candidate.name: candidate for candidate in listed}
    if default.name not in candidates:
        candidates = {default.name: default} | candidates
    incumbent = _incumbent(family, shape, device, published, candidates)
    if incumbent is not None:
        candidates[incumbent.name] = incumbent
    if sample is not None:
        kept = {default.name} if incumbent is None else {default.name, incumbent.name}
        drawn = sampled((name for name in candidates if name not in kept), sample, label) | kept
        candidates = {name: candidate for name, candidate in candidates.items() if name in drawn}
    today = Today(default.name, default.name)
    if published is not None and incumbent is None:
        today = Today(default.name, default.name, published.kernelName)
    elif incumbent is not None:
        today = Today(incumbent.name, default.name, incumbent.name)
    return ShapePlan(shape, label, tuple(candidates.values()), today, published, work, lists_any=bool(listed))


def work_of(family: Family, shape: Shape) -> Work:
    """What one call for a shape has to do.

    Raises:
        ShapeRefusedError: ``work`` fails.
    """
    try:
        return family.work(shape)
    except (Exception, SystemExit) as error:
        label = family.key.label(shape)
        raise ShapeRefusedError(f"family {family.name}: no work() for {label}: {describe(error)}", shape) from error


def is_known(family: Family, row: TunedRow, device: Device) -> bool:
    """Whether serving has a kernel for a row; one that it has none for is no row to it.

    Raises:
        ShapeRefusedError: ``resolve`` fails.
    """
    try:
        return family.resolve(row.kernelName, row.config, row.shape, device) is not None
    except (Exception, SystemExit) as error:
        raise _unresolved(family, row.kernelName, row.shape, error) from error


def _unresolved(family: Family, name: str, shape: Mapping[str, Any], error: BaseException) -> ShapeRefusedError:
    label = family.key.label(shape)
    return ShapeRefusedError(
        f"family {family.name}: no resolve() of {name} for {label}: {describe(error)}", dict(shape)
    )


def _incumbent(
    family: Family,
    shape: Shape,
    device: Device,
    published: TunedRow | None,
    candidates: Mapping[str, Candidate],
) -> Candidate | None:
    """What serving launches for the published row; None: there is no row, or it names what serving does not know.

    A row may launch another config than the candidate of its name, which then is a candidate beside it.
    """
    if published is None:
        return None
    name = published.kernelName
    known = candidates.get(name)
    try:
        if type(family).resolve is not Family.resolve:
            config = family.resolve(name, published.config, shape, device)
        else:  # what it does, without listing all candidates once more
            config = None if known is None else published.config or known.config
    except (Exception, SystemExit) as error:
        raise _unresolved(family, name, shape, error) from error
    if config is None:
        return None
    incumbent = Candidate(name, config, published.kernelId, published.splitK)
    mistake = _candidates_mistake("resolve()", incumbent)
    if mistake is not None:
        raise FamilyError(f"family {family.name}: for {family.key.label(shape)} {mistake}")
    if known is None:
        return incumbent
    same = _to_json(dict(known.config)) == _to_json(dict(config))
    return known if same else replace(incumbent, name=f"{name} as published")


def _mistake(default: object, listed: tuple[object, ...], work: object) -> str | None:
    """What a family may not answer, in words that follow the shape; None where all is well.

    Types are checked because the answers come from a file that somebody wrote without a type checker.
    """
    names = set()
    for candidate in listed:
        mistake = _candidates_mistake("candidates()", candidate)
        if mistake is not None:
            return mistake
        name = getattr(candidate, "name", "")
        if name in names:
            return f"two candidates are named {name}; names have to differ"
        names.add(name)
    mistake = _candidates_mistake("default()", default) if default not in listed else None
    if mistake is not None:
        return mistake
    if isinstance(default, Candidate) and default.name in names and default not in listed:
        same = next(one for one in listed if isinstance(one, Candidate) and one.name == default.name)
        if _to_json(dict(same.config)) != _to_json(dict(default.config)):
            return (
                f"default() and candidates() both name {default.name}, with different configs; names have to differ, "
                "or configs be the same"
            )
    if not isinstance(work, Work):
        return f"work() gives {_shown(work)}; expected Work(flops, bytes)"
    for field in ("flops", "bytes", "workspace_bytes"):
        value = getattr(work, field)
        if not isinstance(value, numbers.Real) or not math.isfinite(value) or value < 0:
            return f"work() gives {field}={_shown(value)}; expected a finite number of 0 or more"
    return None


def _candidates_mistake(method: str, candidate: object) -> str | None:
    if not isinstance(candidate, Candidate):
        return f"{method} gives {_shown(candidate)}; expected a Candidate"
    name: object = candidate.name
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        return f"{method} names a candidate {_shown(name)}; expected one line of text"
    columns: tuple[tuple[str, object], ...] = (("kernel_id", candidate.kernel_id), ("split_k", candidate.split_k))
    for column, number in columns:
        if type(number) is not int and not isinstance(number, numbers.Integral):
            return f"{column} of {name} is {_shown(number)}; expected a whole number"
    config: object = candidate.config
    if not isinstance(config, Mapping):
        return f"the config of {name} is {_shown(config)}; expected a mapping"
    try:
        _to_json(config if isinstance(config, dict) else dict(config))
    except (TypeError, ValueError, RecursionError) as error:
        return f"the config of {name} is not JSON: {error}"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
