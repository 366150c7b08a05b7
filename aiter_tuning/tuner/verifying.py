"""Do the rows of a table still hold? Each is timed again, in turns with the default and with what it once replaced.

::

    row, its evidence ─▶ kernel, config, versions as they were? ─▶ contest: row, default, incumbent of the evidence
                                                                    └ wrong? fails? slower by more than the noise?
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from aiter_tuning.contest import Contest
from aiter_tuning.devices.device import Device
from aiter_tuning.keys import Shape
from aiter_tuning.pool.pool import Pool
from aiter_tuning.pool.watcher import RunEnd
from aiter_tuning.quantities import counted
from aiter_tuning.serving.versions import library_objection, staleness
from aiter_tuning.status import Status, describe
from aiter_tuning.tables.evidence import Evidence, EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tables.tuned_row import TunedRow
from aiter_tuning.task import Group
from aiter_tuning.tuner.arguments import TuneArguments, UsageError, check_readable
from aiter_tuning.tuner.catalogue import changed_config
from aiter_tuning.tuner.family import Candidate, Family
from aiter_tuning.tuner.family_reference import reference_of
from aiter_tuning.tuner.finals_rule import noise_floor
from aiter_tuning.tuner.lanes import device_name
from aiter_tuning.tuner.paired import PairedTable
from aiter_tuning.tuner.remeasuring import Remeasured, Remeasuring
from aiter_tuning.tuner.request import devices_for
from aiter_tuning.tuner.shape_contest import calls_in_a_block, paired_rule
from aiter_tuning.tuner.tasks import FamilyTasks
from aiter_tuning.tuning_policy import SAMPLE_SEED


class Doubt(StrEnum):
    """Why a row does not hold."""

    gone = "gone"
    """The family has no such kernel (any more)."""
    wrong = "wrong"
    """Its result is."""
    fails = "fails"
    """It does not run to its end."""
    slower = "slower"
    """Than the default, or than what it replaced, by more than the noise."""
    changed_config = "changed_config"
    """The kernel of its name has another config today."""
    stale = "stale"
    """It was measured under other versions than are installed."""


class Verified(NamedTuple):
    """What was found out about one row."""

    row: TunedRow
    label: str
    us: float | None
    """Microseconds now; None: it was not timed."""
    default: str
    default_us: float | None
    ahead_pct: float | None
    """How much faster than the default, in percent of it, from turns beside each other; None: it was not timed, or is
    the default."""
    doubts: tuple[tuple[Doubt, str], ...]
    """Each with a person's words."""
    measured: bool
    """False: the run ended before."""
    evidence: bool
    """Whether a record explains the row."""


@dataclass(frozen=True)
class Verification:
    """All rows of a table for one device."""

    table: Path
    family: str
    device: str
    rows: tuple[Verified, ...]
    others: int
    """Rows of other devices, which were left alone."""
    interrupted: bool
    notes: tuple[str, ...] = ()


class Verifier:
    """Verifies one table.

    Args:
        family: whose table it is.
        arguments: devices, calls, clocks, rounds.
        table: the tuned CSV.
    """

    def __init__(self, family: Family, arguments: TuneArguments, table: Path) -> None:
        check_readable(table, "a tuned CSV")
        self._family = family
        self._arguments = arguments
        self._table = table
        if evidence_path(table).exists():
            check_readable(evidence_path(table), "evidence")
        self._remeasuring = Remeasuring(family, arguments)
        self.request_stop = self._remeasuring.request_stop

    def run(self, note: Callable[[str], None] = lambda text: None, pool: Pool | None = None) -> Verification:
        """Measures; writes nothing.

        Raises:
            CsvError: the table cannot be read.
            UsageError: the family does not run on the devices that were asked for, or the table has no row for them.
            NoDeviceError: there is nothing to measure on.
        """
        family = self._family
        devices = pool.devices if pool is not None else devices_for(family, self._arguments)
        device, table = devices[0], TunedCsv(self._table, family.key)
        all_rows = table.rows()
        rows = [row for row in all_rows if _is_here(row, device)]
        if not rows:  # doing nothing must not pass for success
            more = f"; {counted(len(all_rows), 'row')} for other devices" if all_rows else ""
            raise UsageError(f"{self._table}: there is no row for {device_name(device)}{more}")
        notes = list(table.warnings)
        evidence = EvidenceIndex(read_evidence(evidence_path(self._table), warnings=notes))
        for text in notes:
            note(text)
        trials = [_Trial.of(family, row, evidence.newest_for(row), device) for row in rows]
        running = [trial for trial in trials if trial.entrants]
        kwargs = {"num_warmup": self._arguments.warmup, "num_iters": self._arguments.iters}
        tasks = FamilyTasks(family, reference_of(family), seed=SAMPLE_SEED, kwargs=kwargs)
        groups = [self._group(tasks, trial) for trial in running]
        found, outcome = self._remeasuring.measure(groups, devices, note, pool)
        by_row = {trial.row.full_key: one for trial, one in zip(running, found, strict=True)}
        verified = tuple(trial.verdict(by_row.get(trial.row.full_key)) for trial in trials)
        stopped = outcome.end is not RunEnd.done
        if outcome.reason:
            notes.append(outcome.reason)
        others = len(all_rows) - len(rows)
        return Verification(self._table, family.name, device_name(device), verified, others, stopped, tuple(notes))

    def _group(self, tasks: FamilyTasks, trial: _Trial) -> Group:
        family, shape = self._family, trial.shape
        work = family.work(shape)
        ways = [((one.kernel_id, one.split_k, one.name), tasks.way(one, work)) for one in trial.entrants]
        group = tasks.group_of(shape, trial.label, work, ways)
        us = [trial.row.us] * len(ways)
        names = [one.name for one in trial.entrants]
        rule = paired_rule(names, us, names[0], self._arguments.rounds, self._arguments.min_improvement_pct)
        return replace(group, contest=Contest(rule, SAMPLE_SEED, block_calls=calls_in_a_block(us)))


@dataclass(frozen=True)
class _Trial:
    """One row, and whom it is held against: it comes first, the default follows unless it is the row's own."""

    row: TunedRow
    shape: Shape
    label: str
    default: Candidate | None
    """None: the family does not compute the shape."""
    entrants: tuple[Candidate, ...]
    """Empty: its kernel is gone."""
    doubts: tuple[tuple[Doubt, str], ...]
    evidence: bool

    @classmethod
    def of(cls, family: Family, row: TunedRow, evidence: Evidence | None, device: Device) -> _Trial:
        shape = dict(row.shape)
        versions = {} if evidence is None else evidence.versions
        doubts: list[tuple[Doubt, str]] = []
        if stale := staleness(versions):
            doubts.append((Doubt.stale, stale))
        label = family.key.label(shape)
        try:
            config = family.resolve(row.kernelName, row.config, shape, device)
            default = family.default(shape, device)
            listed = [default, *family.candidates(shape, device)]
            family.work(shape)
        except (Exception, SystemExit) as error:
            doubts.append((Doubt.gone, f"{family.name} does not compute it: {describe(error)}"))
            return cls(row, shape, label, None, (), tuple(doubts), evidence is not None)
        named = next((one for one in listed if one.name == row.kernelName), None)
        changed = None if named is None or config is None else changed_config(row, named)
        if changed is not None:
            doubts.append((Doubt.changed_config, changed))
        objection = None if config is None else library_objection(config, versions)
        entrants: list[Candidate] = []
        if config is None:
            doubts.append((Doubt.gone, f"{family.name} has no kernel {row.kernelName!r} for it"))
        elif objection is not None:
            doubts.append((Doubt.gone, objection))
        else:
            entrants = [Candidate(row.kernelName, config, row.kernelId, row.splitK)]
            others = [default]
            beaten = None if evidence is None else evidence.incumbent
            if beaten is not None:
                known = family.resolve(beaten.name, beaten.config, shape, device)
                others += [Candidate(beaten.name, known)] if known is not None else []
            for other in others:
                if all(_differs(one, other) for one in entrants):
                    entrants.append(other)
        return cls(row, shape, label, default, tuple(entrants), tuple(doubts), evidence is not None)

    def verdict(self, found: Remeasured | None) -> Verified:
        """What is known of the row once everybody was timed; ``found`` is None where nobody was."""
        if found is None:
            return self._verified(None, None, (), measured=bool(self.doubts))
        mine, default = found.results[0], self._default_entrant(found)
        default_us = None if default is None else found.results[default].us
        if mine.status is Status.not_run:
            return self._verified(None, default_us, (), measured=False)
        if mine.status is Status.mismatch:
            return self._verified(None, default_us, ((Doubt.wrong, mine.detail),))
        if mine.status is not Status.ok:
            return self._verified(None, default_us, ((Doubt.fails, f"{mine.status}: {mine.detail}"),))
        ahead = None
        if default:
            table = PairedTable(found.blocks, (0, default))
            ahead = -table.difference(0, default).pct if table.blocks else None
        return self._verified(mine.us, default_us, tuple(self._slower(found)), ahead_pct=ahead)

    def _default_entrant(self, found: Remeasured) -> int | None:
        """The entrant that is the default, 0 where it is the row's own kernel; None: it was not timed."""
        for index, (entrant, result) in enumerate(zip(self.entrants, found.results, strict=True)):
            if self.default is not None and not _differs(entrant, self.default) and result.status is Status.ok:
                return index
        return None

    def _slower(self, found: Remeasured) -> Sequence[tuple[Doubt, str]]:
        """Whom the row is behind by more than the noise."""
        right = [index for index, one in enumerate(found.results) if one.status is Status.ok]
        table, told = PairedTable(found.blocks, right), []
        for index in right[1:] if table.blocks else ():
            behind, noise = table.difference(0, index), noise_floor(table, index, 0)
            if behind.pct > noise:
                name = self.entrants[index].name
                text = f"{behind.pct:.1f} % slower than {name}, with a noise of {noise:.1f} %"
                told.append((Doubt.slower, text))
        return told

    def _verified(
        self,
        us: float | None,
        default_us: float | None,
        doubts: tuple[tuple[Doubt, str], ...],
        *,
        ahead_pct: float | None = None,
        measured: bool = True,
    ) -> Verified:
        every = (*self.doubts, *doubts)
        default = "" if self.default is None else self.default.name
        return Verified(self.row, self.label, us, default, default_us, ahead_pct, every, measured, self.evidence)


def _is_here(row: TunedRow, device: Device) -> bool:
    model = " ".join(device.gpu_model.split())
    return (row.gfx, row.cu_num) == (device.gfx, device.cu_num) and row.gpu_model in ("", model)


def _differs(one: Candidate, other: Candidate) -> bool:
    return json.dumps(dict(one.config), sort_keys=True) != json.dumps(dict(other.config), sort_keys=True)
