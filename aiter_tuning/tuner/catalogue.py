"""What only the operator can say about its tables: kernels, buckets and archs, asked of the family as it is today.

Renamed kernels served their shapes' default for months before anybody noticed, because a lookup that finds a name which
is no kernel falls back without a word. So each row's kernel is looked for among the candidates that the family offers
for that shape on that row's device. No such device is needed: candidates are chosen from the arch and the number of
compute units, in this process, without torch.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import Shape
from aiter_tuning.quantities import counted
from aiter_tuning.tables.checking import Checked, Target
from aiter_tuning.tables.evidence_record import Evidence
from aiter_tuning.tables.findings import Code, Finding
from aiter_tuning.tables.merging import Placed
from aiter_tuning.tables.tuned_reader import EntryKind, TunedTable
from aiter_tuning.tables.tuned_row import TunedRow
from aiter_tuning.tuner.family import Candidate, Family
from aiter_tuning.tuner.family_reference import FamilyError
from aiter_tuning.tuner.fingerprint import candidate_fingerprints
from aiter_tuning.tuner.plan import serving_shapes

_SHOWN = 5


def kind_of_arch(gfx: str) -> str:
    """Which kind of device an arch name belongs to: ``cuda`` (``sm90``), ``hip`` (``gfx942``), else ``cpu``."""
    if gfx.startswith("sm") and gfx[2:3].isdigit():
        return "cuda"
    return "hip" if gfx.startswith("gfx") else "cpu"


def check_catalogue(
    family: Family, checked: Checked, *, versions: Mapping[str, str], target: Target | None = None
) -> list[Finding]:
    """Findings about rows that can be read: what of them the family does not know, or not any more.

    Args:
        family: the operator.
        checked: its tables.
        versions: of the packages installed here; compared with those that evidence names.
        target: the device whose rows have to be complete; None: each that the tables name.
    """
    asked = _Catalogue(family)
    findings: list[Finding] = []
    for table in checked.tuned:
        for entry in table.entries:
            placed = Placed(table.path, entry)
            if entry.kind is EntryKind.row and entry.row is not None:
                findings += _of_row(asked, placed, entry.row, checked.evidence.of(placed), versions)
    findings += asked.findings
    findings += _bucketed(family, checked)
    findings += _untuned(family, checked, target)
    return findings


class _Catalogue:
    """A family's candidates by shape and device, and the complaint of a family that cannot be asked."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.findings: list[Finding] = []
        self._refused: set[str] = set()

    def candidates(self, path: Path, line: int, row: TunedRow) -> dict[str, Candidate] | None:
        """What the family offers for the row's shape and device; None where it cannot say."""
        device = Device("", "", "", row.gfx, row.cu_num, row.gpu_model)
        shape: Mapping[str, Any] = dict(row.shape)
        try:
            offered = [*self.family.candidates(shape, device), self.family.default(shape, device)]
        except (Exception, SystemExit) as error:
            if str(error) not in self._refused:
                self._refused.add(str(error))
                message = f"the family has no candidates for this row: {error}"
                self.findings.append(
                    Finding(Code.unknown_kernel, path, message, line, facts={"kernel": row.kernelName})
                )
            return None
        return {candidate.name: candidate for candidate in offered}

    @functools.cached_property
    def runs_on(self) -> frozenset[str]:
        return frozenset(self.family.devices)


def _of_row(
    asked: _Catalogue, placed: Placed, row: TunedRow, record: Evidence | None, versions: Mapping[str, str]
) -> Iterable[Finding]:
    path, line = placed.path, placed.entry.line
    if kind_of_arch(row.gfx) not in asked.runs_on:
        kinds = ", ".join(sorted(asked.runs_on))
        message = f"{asked.family.name} does not run on {row.gfx}; it runs on {kinds}; delete the row"
        yield Finding(Code.foreign_arch, path, message, line, facts={"gfx": row.gfx})
        return
    known = asked.candidates(path, line, row)
    if known is None:
        return
    candidate = known.get(row.kernelName)
    facts = {"kernel": row.kernelName, "us": row.us}
    if candidate is None:
        message = f"{asked.family.name} has no kernel {row.kernelName or '(blank)'} for this shape; tune it again"
        yield Finding(Code.unknown_kernel, path, message, line, facts=facts)
        return
    if (changed := changed_config(row, candidate)) is not None:
        yield Finding(Code.changed_config, path, changed, line, facts=facts)
    if record is not None:
        yield from _stale(asked.family, placed, candidate, record, versions)


def changed_config(row: TunedRow, candidate: Candidate) -> str | None:
    """How a row's config disagrees with that of the candidate of its name; None: it does not, or the row has none."""
    if not row.config or dict(row.config) == dict(candidate.config):
        return None
    return f"the config of {row.kernelName} is {_json(candidate.config)} today, not {_json(row.config)}"


def _stale(
    family: Family, placed: Placed, candidate: Candidate, record: Evidence, versions: Mapping[str, str]
) -> Iterable[Finding]:
    """Versions that are named on both sides and differ, or a kernel whose code did."""
    differ = [
        (name, measured, here)
        for name, here in versions.items()
        if is_known(measured := record.versions.get(name, "")) and is_known(here) and measured != here
    ]
    if differ:
        names, measured_under, installed = (", ".join(column) for column in zip(*differ, strict=True))
        then_now = ", ".join(f"{name} {measured} -> {here}" for name, measured, here in differ)
        message = f"{then_now} since it was measured; tune again"
        facts = {"version_of": names, "measured_under": measured_under, "installed": installed}
        yield Finding(Code.stale, placed.path, message, placed.entry.line, facts=facts)
    then = record.fingerprints.get("winner")
    if is_known(then):
        now = candidate_fingerprints(family, [candidate])[candidate.name]
        if then != now:
            message = f"the code or config of {candidate.name} has changed since ({then}, now {now}); tune again"
            yield Finding(Code.stale, placed.path, message, placed.entry.line, facts={"kernel": candidate.name})


def is_known(version: str | None) -> bool:
    """Whether a version says anything; what a machine could not tell is no reason to distrust a row."""
    return version is not None and version.strip().lower() not in ("", "unknown", "none", "null")


def _bucketed(family: Family, checked: Checked) -> Iterable[Finding]:
    """Shapes that others serve: no run tunes them, and no other shape's lookup finds them."""
    if type(family).bucket is Family.bucket:
        return
    places: list[tuple[Path, int, Mapping[str, Any]]] = []
    for table in checked.tuned:
        places += ((table.path, e.line, e.row.shape) for e in table.entries if e.kind is EntryKind.row and e.row)
    for file in checked.shapes:
        places += ((file.path, line, shape) for line, shape in zip(file.lines, file.shapes, strict=True))
    for path, line, shape in places:
        served_by, notes = serving_shapes(family, [dict(shape)])
        if notes:
            label = family.key.label(served_by[0])
            message = f"{family.key.label(shape)} is served by {label}, which is what a run tunes; name that instead"
            yield Finding(Code.bucketed, path, message, line, facts={"served_by": served_by[0]})


def _untuned(family: Family, checked: Checked, target: Target | None) -> Iterable[Finding]:
    """Shapes of the files of shapes that have no row on a device for which there are rows."""
    wanted: dict[tuple[Any, ...], tuple[Path, int, Shape]] = {}
    for file in checked.shapes:
        for line, shape in zip(file.lines, file.shapes, strict=True):
            try:
                served_by, _ = serving_shapes(family, [shape])
            except FamilyError:
                continue
            wanted.setdefault(family.key.values(served_by[0]), (file.path, line, shape))
    rows = [row for row in checked.merge.served().values() if target is None or target.is_met(row.gfx, row.cu_num)]
    devices = sorted({(row.gfx, row.cu_num, row.gpu_model) for row in rows})
    for gfx, cu_num, model in devices:
        there = {family.key.values(row.shape) for row in rows if (row.gfx, row.cu_num) == (gfx, cu_num)}
        missing = [place for values, place in wanted.items() if values not in there]
        if missing:
            path, line, _ = missing[0]
            yield Finding(
                Code.untuned,
                path,
                f"{_some(family, [shape for _, _, shape in missing])} without a row on {gfx}/{cu_num} {model}".rstrip(),
                line,
                facts={"device": f"{gfx}/{cu_num} {model}".rstrip(), "shapes": [shape for _, _, shape in missing]},
            )


def _some(family: Family, shapes: Sequence[Shape]) -> str:
    labels = "; ".join(family.key.label(shape) for shape in shapes[:_SHOWN])
    more = f"; {len(shapes) - _SHOWN} more" if len(shapes) > _SHOWN else ""
    return f"{counted(len(shapes), 'shape')} ({labels}{more})"


def _json(config: Mapping[str, Any]) -> str:
    return json.dumps(dict(config), sort_keys=True, separators=(",", ":"), default=str)


def untuned_sibling(table: TunedTable) -> Path | None:
    """The file of shapes that belongs to a tuned table, where there is one: ``…untuned…`` for ``…tuned…``.

    Beside it, or in ``configs`` where the table lies in ``tuned_csv``.
    """
    name = table.path.name.replace("tuned", "untuned", 1)
    if "untuned" in table.path.name or name == table.path.name:
        return None
    folders = [table.path.parent]
    if table.path.resolve().parent.name == "tuned_csv":
        folders.append(table.path.resolve().parent.parent / "configs")
    return next((folder / name for folder in folders if (folder / name).is_file()), None)
