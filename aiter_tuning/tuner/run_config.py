"""``--run_config``: what serving runs, measured and checked, and nothing else.

::

    a tuned CSV ─ its rows for this device ─┐
    -i ─ shapes, whatever serves them ──────┴▶ Family.serve, once for each shape ─▶ Benched: us, ok, error or mismatch
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.devices.device import Device
from aiter_tuning.devices.identity import Identity
from aiter_tuning.keys import Shape
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.pool import Pool
from aiter_tuning.pool.watcher import RunEnd
from aiter_tuning.serving import explain
from aiter_tuning.status import Status
from aiter_tuning.tables.merging import TunedTables, expand_tables
from aiter_tuning.tables.shapes import read_shapes
from aiter_tuning.tables.tuned_row import TunedRow
from aiter_tuning.task import Group
from aiter_tuning.tuner.arguments import TuneArguments, UsageError, check_readable, has_public_operator
from aiter_tuning.tuner.family import Family, Work
from aiter_tuning.tuner.family_reference import reference_of
from aiter_tuning.tuner.lanes import device_name
from aiter_tuning.tuner.plan import work_of
from aiter_tuning.tuner.remeasuring import Remeasuring
from aiter_tuning.tuner.request import devices_for, refusals_placed
from aiter_tuning.tuner.serving_tasks import ServeShape
from aiter_tuning.tuner.tasks import FamilyTasks
from aiter_tuning.tuning_policy import SAMPLE_SEED

SLACK = 0.05
"""Of a shape's elements so much more may be wrong than its row admits, as upstream has it."""


class _Asked(NamedTuple):
    """What is to be measured."""

    shape: Shape
    row: TunedRow | None
    """That serves it."""
    work: Work


class Benched(NamedTuple):
    """One shape as serving runs it."""

    shape: Shape
    label: str
    kernel: str
    """``kernelName`` of the row that serves it; empty: none does, its default runs."""
    us: float | None
    """Microseconds; None where it failed."""
    status: str
    """``ok``, ``error`` or ``mismatch``; ``skip``: the run ended before."""
    reason: str


@dataclass(frozen=True)
class Benchmark:
    """All of them."""

    family: str
    device: str
    gfx: str
    source: str
    """Whose shapes they are, and under what: for a person."""
    shapes: tuple[Benched, ...]
    interrupted: bool
    notes: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        return all(shape.status == "ok" for shape in self.shapes)


class RunConfig:
    """Benchmarks what one family serves.

    Args:
        family: the operator; it has a public one, ``serve``.
        arguments: devices, calls, clocks, and the shapes where no table is named.
        tables: a tuned CSV, or several as ``-o`` takes them; None: whatever serves the shapes of ``-i``.

    Raises:
        UsageError: the family has no public operator, or a file is not there.
    """

    def __init__(self, family: Family, arguments: TuneArguments, tables: str | None = None) -> None:
        if not has_public_operator(family):
            raise UsageError(
                f"--run_config times what serving calls, and {family.name} names nothing: define its serve()"
            )
        self._family = family
        self._arguments = arguments
        self._tables = None if tables is None else expand_tables(tables)
        for path in self._tables or ():
            check_readable(path, "a tuned CSV", flag="--run_config")
        self._remeasuring = Remeasuring(family, arguments)
        self.request_stop = self._remeasuring.request_stop

    def run(self, note: Callable[[str], None] = lambda text: None, pool: Pool | None = None) -> Benchmark:
        """Measures; writes nothing.

        Raises:
            UsageError, CsvError, FamilyError: it cannot be done as asked.
            NoDeviceError: there is nothing to measure on.
        """
        family, arguments = self._family, self._arguments
        devices = pool.devices if pool is not None else devices_for(family, arguments)
        device = devices[0]
        notes: list[str] = []
        asked = self._of_tables(device, notes) if self._tables is not None else self._of_shapes(device, notes)
        kwargs = {"num_warmup": arguments.warmup, "num_iters": arguments.iters}
        tasks = FamilyTasks(family, reference_of(family), seed=SAMPLE_SEED, kwargs=kwargs)
        named = None if self._tables is None else tuple(map(str, map(Path.absolute, self._tables)))

        def group(shape: Shape, row: TunedRow | None, work: Work) -> Group:
            kernel = row.kernelName if row is not None and named is not None else ""
            serve = ServeShape(tasks.reference, dict(shape), named, kernel, work)
            return tasks.group_of(shape, family.key.label(shape), work, [(("served",), serve)])

        groups = [group(*one) for one in asked]
        for text in notes:
            note(text)
        found, outcome = self._remeasuring.measure(groups, devices, note, pool)
        benched = [self._benched(shape, row, one.results[0]) for (shape, row, _), one in zip(asked, found, strict=True)]
        source = (
            f"the shapes of {arguments.untune_file}" if self._tables is None else f"the rows of {_names(self._tables)}"
        )
        stopped = outcome.end is not RunEnd.done
        if outcome.reason:
            notes.append(outcome.reason)
        return Benchmark(family.name, device_name(device), device.gfx, source, tuple(benched), stopped, tuple(notes))

    def _of_tables(self, device: Device, notes: list[str]) -> list[_Asked]:
        assert self._tables is not None
        tables = TunedTables(self._tables, self._family.key)
        rows = {}
        for row in tables.rows():
            if (row.gfx, row.cu_num) == (device.gfx, device.cu_num) and row.gpu_model in ("", device.gpu_model):
                shape = dict(row.shape)
                found = tables.find(row.gfx, row.cu_num, device.gpu_model, shape)
                rows[tuple(shape.values())] = _Asked(shape, found, work_of(self._family, shape))
        notes += tables.warnings
        return list(rows.values())

    def _of_shapes(self, device: Device, notes: list[str]) -> list[_Asked]:
        path = self._arguments.untune_file
        check_readable(path, "a CSV file of shapes", flag="--untune_file")
        file = read_shapes(path, self._family.key)
        notes += file.warnings
        identity: dict[str, Any] = Identity(device.gfx, device.cu_num, device.gpu_model)._asdict()
        with refusals_placed(self._family, file):
            works = [work_of(self._family, shape) for shape in file.shapes]
        served = [explain(self._family, **{**shape, **identity}).row for shape in file.shapes]
        return [_Asked(dict(one), row, work) for one, row, work in zip(file.shapes, served, works, strict=True)]

    def _benched(self, shape: Shape, row: TunedRow | None, found: Measurement) -> Benched:
        limit = self._arguments.err_ratio
        if row is not None:
            limit = max(limit, row.errRatio + SLACK)
        label, kernel = self._family.key.label(shape), "" if row is None else row.kernelName
        if found.status in (Status.ok, Status.mismatch):
            right = found.err_ratio <= limit and found.err_ratio < 1.0
            status, reason = ("ok", "") if right else ("mismatch", found.detail)
            return Benched(shape, label, kernel, found.us if found.us > 0 else None, status, reason)
        status = "skip" if found.status is Status.not_run else "error"
        return Benched(shape, label, kernel, None, status, f"{found.status}: {found.detail}")


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
