"""What serving runs, as tasks that a worker can time beside each other.

::

    ServeShape(tables today)  ─▶ pinned tables ─▶ Family.serve ─▶ lookup ─▶ what runs today
    ServeShape(staged table)  ─▶ pinned tables ─▶ Family.serve ─▶ lookup ─▶ the new row: found, launched, or it fails

The first call looks up and proves that the row which is meant serves; every later one finds the same row by one
dictionary, without a look at a file. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aiter_tuning.serving import explain, refusals
from aiter_tuning.serving.answers import Seen
from aiter_tuning.serving.pinned import pinned, release
from aiter_tuning.tuner.family import Family, Inputs, Work
from aiter_tuning.tuner.family_reference import load_family


class NotServedError(RuntimeError):
    """The public operator does not run the row that it should."""


@dataclass(slots=True)
class _Proof:
    """Whether it has been seen that the row serves. Lives in the worker only, beside a call's arguments."""

    pending: bool = True


@dataclass(frozen=True, slots=True)
class ServeShape:
    """The public operator of a family, while lookups look into some tables.

    Raises, when called first:
        NotServedError: ``kernel`` is not what serves.
    """

    family: str
    """Its reference, see :mod:`~aiter_tuning.tuner.family_reference`."""
    shape: Mapping[str, Any]
    tables: tuple[str, ...] | None
    """None: those that a lookup finds where it usually looks."""
    kernel: str = ""
    """``kernelName`` of the row that has to serve; empty: whatever does, the default too."""
    work: Work | None = field(default=None)
    """For latencies that cannot be."""

    def prepare(self, inputs: Inputs) -> tuple[Inputs, _Proof]:
        return inputs, _Proof()

    def __call__(self, inputs: Inputs, proof: _Proof) -> Any:
        family = load_family(self.family)
        tables = pinned(family, self.tables)
        if not proof.pending:
            tables.use()
            return family.serve(inputs)
        with tables.watched() as seen:
            result = family.serve(inputs)
            if self.kernel:
                why_not = not_served(family, self.shape, self.kernel, seen)
                if why_not:
                    release(family)
                    raise NotServedError(why_not)
        proof.pending = False
        return result


def not_served(family: Family, shape: Mapping[str, Any], kernel: str, seen: list[Seen]) -> str:
    """Why a kernel is not what served a shape, from what its lookups found; empty if it is."""
    asked = [one for one in seen if family.key.values(one.shape) == family.key.values(shape)]
    if not asked:
        return "its public operator did not look this shape up"
    row = asked[-1].row
    if row is None:
        near = explain(family, **shape).near
        reason = near[0].objection or f"another key: {', '.join(near[0].differs)}" if near else "there is none"
        return f"a lookup finds no row for it: {reason}"
    if row.kernelName != kernel:
        return f"a lookup finds {row.kernelName} instead of {kernel}"
    refusal = refusals.refusal_of(family.name, row)
    return f"its operator fell back to the default: {refusal}" if refusal else ""
