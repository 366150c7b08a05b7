"""What a run has been asked to do: everything that can be wrong with it is found before anything is started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from aiter_tuning.devices.device import Device, NoDeviceError
from aiter_tuning.devices.discovery import MixedModelsError, device_notes, discover, kind_of, require_one_model
from aiter_tuning.devices.torch_facts import torch_build
from aiter_tuning.keys import DEVICE_COLUMNS, Shape
from aiter_tuning.measure.timer import check_timer
from aiter_tuning.pool.pool import Pool
from aiter_tuning.quantities import counted
from aiter_tuning.tables.evidence import evidence_path, read_evidence
from aiter_tuning.tables.merging import TunedTables
from aiter_tuning.tables.shapes import ShapeFile, read_shapes
from aiter_tuning.tables.tuned_row import TunedRow
from aiter_tuning.tuner.arguments import TuneArguments, UsageError, check_readable
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.family_reference import FamilyError
from aiter_tuning.tuner.fingerprint import versions_here
from aiter_tuning.tuner.plan import ShapeRefusedError, is_known, serving_shapes
from aiter_tuning.tuner.stale_rows import is_provisional, marked, stale_note


@dataclass(frozen=True)
class Request:
    """What a run has been asked to do, on which devices, and what serving finds there today."""

    arguments: TuneArguments
    file: ShapeFile
    devices: tuple[Device, ...]
    shapes: tuple[Shape, ...]
    published: tuple[TunedRow | None, ...]
    """The row of each shape, its ``stale`` filled in; None also for a provisional one."""
    provisional: tuple[TunedRow, ...]
    """Rows that a run wrote whose budget ended before it had decided: they serve, but nothing is held against them."""
    notes: tuple[str, ...]
    open: tuple[bool, ...]
    """Which shapes have no row, or one that serving passes over since the family does not know its kernel."""
    calls: tuple[float, ...] = ()
    """How often serving asks for each shape; empty if the file does not tell."""

    @property
    def device(self) -> Device:
        return self.devices[0]

    @property
    def untuned(self) -> int:
        return sum(self.open)

    @property
    def stale(self) -> tuple[str, ...]:
        """Why rows that serving can use are stale, one for each of them."""
        rows = zip(self.published, self.open, strict=True)
        return tuple(row.stale for row, is_open in rows if row is not None and row.stale and not is_open)


def read_request(family: Family, arguments: TuneArguments, pool: Pool | None = None) -> Request:
    """Reads shapes and tables and finds the devices; nothing is started or written.

    Raises:
        UsageError, CsvError, FamilyError: the run cannot be done as asked.
        NoDeviceError: there is nothing to measure on.
    """
    check_readable(arguments.untune_file, "a CSV file of shapes", flag="--untune_file")
    try:
        file = read_shapes(arguments.untune_file, family.key)
    except OSError as error:
        raise UsageError(f"--untune_file {arguments.untune_file}: {error.strerror or error}") from error
    devices = pool.devices if pool is not None else devices_for(family, arguments)
    try:
        require_one_model(devices)
    except MixedModelsError as error:
        raise UsageError(str(error)) from None
    device = devices[0]
    try:
        check_timer(arguments.timer, "cpu" if device.torch_device == "cpu" else "cuda")
    except ValueError as error:
        raise UsageError(f"--timer {arguments.timer}: {error}") from None
    with refusals_placed(family, file):
        shapes, notes = serving_shapes(family, file.shapes)
    _refuse_rows_of_others(family, arguments)
    tables = TunedTables(arguments.tune_files, family.key)
    tables.rows()  # what is wrong with a table is told even where no shape is looked up in it
    found = [tables.find(device.gfx, device.cu_num, device.gpu_model, shape) for shape in shapes]
    here, published, provisional = versions_here(device), [], []
    for row in found:
        record = None if row is None else tables.evidence_of(row)
        # With --compare whatever serves is what is compared with.
        if row is not None and is_provisional(record) and not arguments.compare:
            provisional.append(row)
            row = None
        published.append(row and marked(row, record, here))
    warnings = [*file.warnings, *tables.warnings]
    if file.duplicates:
        repeating = f"{counted(file.duplicates, 'row')} {'repeats' if file.duplicates == 1 else 'repeat'} a shape"
        distinct = counted(len(file.shapes), "distinct shape")
        warnings.append(f"{file.path}: {repeating}; {distinct} in {file.rows} rows")
    if not file.shapes:
        warnings.append(f"{file.path}: holds no shape; expected a line for each below the column names")
    if provisional:
        which = f"{counted(len(provisional), 'row')} {'is' if len(provisional) == 1 else 'are'}"
        warnings.append(f"{which} the best so far of a run whose --budget ended; tuned to the end now")
    notes = [*device_notes(devices), *_part_notes(devices), *notes]
    with refusals_placed(family, file):
        is_open = tuple(row is None or not is_known(family, row, device) for row in published)
    request = Request(
        arguments,
        file,
        devices,
        tuple(shapes),
        tuple(published),
        tuple(provisional),
        (*warnings, *notes),
        is_open,
        _calls(family, file, shapes),
    )
    rows, untuned = len(shapes) - request.untuned, request.untuned
    note = stale_note(request.stale, rows, without=untuned, retunes=arguments.retune)
    return request if note is None else replace(request, notes=(*request.notes, note))


def _refuse_rows_of_others(family: Family, arguments: TuneArguments) -> None:
    """A table of another family may have columns that read as this one's, whose rows would stand among them.

    Raises:
        UsageError: the table's evidence tells of another family with another key.
    """
    path, columns = arguments.tune_file, {*family.key.columns, *DEVICE_COLUMNS}
    try:
        records = read_evidence(evidence_path(path), warnings=[])
    except OSError:
        return
    for record in records:
        if record.family != family.name and record.key.keys() != columns:
            raise UsageError(
                f"--tune_file {path}: its rows are of the family {record.family}, as its evidence says; "
                f"name another file for those of {family.name}"
            )


@contextmanager
def refusals_placed(family: Family, file: ShapeFile) -> Iterator[None]:
    """Says in which line of a file the shape is that a family refuses.

    Raises:
        FamilyError: it refuses one.
    """
    try:
        yield
    except ShapeRefusedError as error:
        line = _line_of(family, file, error.shape)
        raise FamilyError(f"{file.path}{'' if line is None else f':{line}'}: {error}") from error


def _line_of(family: Family, file: ShapeFile, shape: Shape) -> int | None:
    """Where a shape is, or the first one that it serves."""
    places = list(zip(file.shapes, file.lines, strict=True))
    for own, line in places:
        if own == shape:
            return line
    return next((line for own, line in places if family.key.parse(family.bucket(own)) == shape), None)


def _part_notes(devices: Sequence[Device]) -> list[str]:
    """Says that rows of a part of the CPU are none for all of it."""
    if len(devices) == 1 or devices[0].torch_device != "cpu":
        return []
    each = counted(devices[0].cu_num, "core")
    rows = f"{len(devices)} lanes of {each}: the rows are for processes on {each}"
    return [f"{rows}, and one on all of them finds none of these; --mp 1 tunes for it"]


def _calls(family: Family, file: ShapeFile, shapes: Sequence[Shape]) -> tuple[float, ...]:
    """Calls of the shapes that are tuned: of all those that they serve."""
    if not file.calls:
        return ()
    total: dict[tuple[object, ...], float] = {}
    for shape, calls in zip(file.shapes, file.calls, strict=True):
        served_by = tuple(family.key.parse(family.bucket(shape)).values())
        total[served_by] = total.get(served_by, 0) + calls
    return tuple(total[tuple(shape.values())] for shape in shapes)


def devices_for(family: Family, arguments: TuneArguments) -> tuple[Device, ...]:
    """The devices that a family is to be measured on.

    Raises:
        UsageError: the ones that were asked for are none of its kinds.
        NoDeviceError: there is none.
    """
    wanted, runs_on = arguments.device, tuple(family.devices)
    if wanted is not None:
        lanes = wanted.split(",")
        if lanes[1:] and set(lanes) == {"cpu"}:
            raise UsageError(f"--device {wanted}: --device cpu --mp {len(lanes)} makes {len(lanes)} lanes of the CPU")
        asked = {wanted} if wanted in ("cpu", "cuda", "hip") else {"cuda", "hip"}  # else it names GPUs
        interpreted = wanted == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
        try:
            if asked & set(runs_on) or interpreted:
                devices = discover(wanted, arguments.mp)
                if kind_of(devices[0]) in runs_on or interpreted:
                    return devices
        except ValueError as error:
            raise UsageError(f"--device {wanted}: {error}") from None
        interpret = "; TRITON_INTERPRET=1 runs its Triton kernels on the CPU, to see that they are right"
        hint = interpret if wanted == "cpu" and family.precompiles else ""
        raise UsageError(f"--device {wanted}: {family.name} runs on {', '.join(runs_on)} only{hint}")
    reasons = {}
    for kind in runs_on:
        try:
            return discover(kind, arguments.mp)
        except NoDeviceError as error:
            reasons[kind] = str(error)
    # Of the kinds that the installed torch does not drive there is nothing to say.
    reason = reasons.get(torch_build().kind) or next(iter(reasons.values()), "it names no kind of device")
    raise NoDeviceError(f"{family.name} runs on {', '.join(runs_on)}: {reason}")
