"""Rows that other runs write while this one measures: which of them its own rows may replace.

::

    this run     reads the table ─────── measures ─────── writes: is the key's row still the one that it saw?
    another run           └─ writes a row ─┘                 yes ─▶ replaced: it was measured against it
                                                             no  ─▶ the faster one stays, if both are of one environment

A row that was seen was measured again beside its challenger, so its own latency protects nothing. One that came later
was not: within one environment (device, versions) the latencies are all there is to go by; between environments they
say nothing, and what was verified last wins. The environment of a row stands in its evidence; a row without is taken
for one of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.quantities import counted
from aiter_tuning.tables.evidence import EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedRow
from aiter_tuning.tuner.stale_rows import changed_versions


class Clash(NamedTuple):
    """A key that another run wrote meanwhile."""

    theirs: TunedRow
    ours: TunedRow
    stays: bool
    """Whether theirs was left in the table."""


class Generation:
    """What a run knows of the table's rows.

    Args:
        versions_of: the versions that a row of the table was measured with; None or missing ones: unknown.
        versions: those of this run.
    """

    def __init__(
        self,
        versions_of: Callable[[TunedRow], Mapping[str, Any] | None] = lambda row: None,
        versions: Mapping[str, str] | None = None,
    ) -> None:
        self._versions_of = versions_of
        self._versions = dict(versions or {})
        self._seen: dict[tuple[Any, ...], tuple[str, float]] = {}
        self._clashes: dict[tuple[Any, ...], Clash] = {}

    def saw(self, rows: Iterable[TunedRow]) -> None:
        """Rows that the run read, or wrote itself."""
        self._seen.update((row.full_key, _stamp(row)) for row in rows)

    def stays(self, current: TunedRow, new: TunedRow) -> bool:
        """For :meth:`TunedCsv.update`: whether the row in the file is to stay."""
        if self._seen.get(current.full_key) == _stamp(current):
            return False
        stays = current.us <= new.us and self._same_environment(current)
        self._clashes[current.full_key] = Clash(current, new, stays)
        return stays

    @property
    def clashes(self) -> tuple[Clash, ...]:
        """The newest one of each key."""
        return tuple(self._clashes.values())

    def yielded(self, row: TunedRow) -> bool:
        """Whether the table kept another run's row in the place of this one."""
        clash = self._clashes.get(row.full_key)
        return clash is not None and clash.stays and _stamp(clash.ours) == _stamp(row)

    def notes(self, path: Path) -> tuple[str, ...]:
        """What a person should know about the clashes, one sentence for each way they ended."""
        notes = []
        for stays, what in ((True, "which are faster and stay"), (False, "which were slower, or of other versions")):
            some = [clash for clash in self.clashes if clash.stays is stays]
            if some:
                first = some[0]
                notes.append(
                    f"{path}: another run wrote {counted(len(some), 'row')} of this run's shapes meanwhile, {what}; "
                    f"first {first.theirs.kernelName} at {first.theirs.us} us, here {first.ours.kernelName} at "
                    f"{first.ours.us} us"
                )
        return tuple(notes)

    def _same_environment(self, row: TunedRow) -> bool:
        return not changed_versions(self._versions_of(row) or {}, self._versions)


def versions_in_evidence(tuned: Path) -> Callable[[TunedRow], Mapping[str, Any] | None]:
    """Looks versions up in a table's evidence; the file is read for each row asked about, which is a rare thing."""

    def versions_of(row: TunedRow) -> Mapping[str, Any] | None:
        try:
            record = EvidenceIndex(read_evidence(evidence_path(tuned), warnings=[])).newest_for(row)
        except OSError:
            return None
        return None if record is None else record.versions

    return versions_of


def _stamp(row: TunedRow) -> tuple[str, float]:
    """Enough to tell a row from another of its key; latencies are compared as the file holds them."""
    return row.kernelName, round(row.us, 4)
