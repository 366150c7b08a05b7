"""What changed from one tuned table to another: rows added, removed, with another kernel, or with another latency.

Latencies are compared where both were measured in one environment, or where no evidence says where; otherwise the
numbers stand side by side and no percentage is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aiter_tuning.tables.merging import EvidenceFiles, Merge, Placed, merge_tables
from aiter_tuning.tables.preference import environment_of
from aiter_tuning.tables.tuned_reader import TunedTable
from aiter_tuning.tables.tuned_row import TunedRow


class Change(StrEnum):
    """What happened to a key."""

    added = "added"
    removed = "removed"
    kernel = "kernel"
    """Another kernel, or another config of the same one."""
    faster = "faster"
    """The same kernel with a smaller latency."""
    slower = "slower"
    details = "details"
    """Kernel and latency are the same, another column is not."""


@dataclass(frozen=True)
class Difference:
    """One key that two tables do not agree on."""

    change: Change
    shape: Mapping[str, Any]
    device: tuple[str, int, str]
    """gfx, cu_num, gpu_model."""
    before: TunedRow | None
    after: TunedRow | None
    comparable: bool = True
    """False: evidence says that the two latencies were measured in different environments."""
    tag: str = ""

    @property
    def gain_pct(self) -> float | None:
        """How much less time the new row takes, in percent of the old one; None where nothing can be said."""
        if self.before is None or self.after is None or not self.comparable:
            return None
        return (self.before.us - self.after.us) / self.before.us * 100


@dataclass(frozen=True)
class TableDifference:
    """Two tables, held against each other."""

    before: Merge
    after: Merge
    differences: tuple[Difference, ...]
    same: int
    """Keys on which both agree."""


def difference_of(before: Sequence[TunedTable], after: Sequence[TunedTable]) -> TableDifference:
    """Compares the rows that count in two lists of tables."""
    evidence = EvidenceFiles()
    merges = (merge_tables(before, evidence), merge_tables(after, evidence))
    old, new = (_by_key(merge) for merge in merges)
    found = []
    for key in dict.fromkeys((*old, *new)):
        difference = _difference(old.get(key), new.get(key), evidence)
        if difference is not None:
            found.append(difference)
    return TableDifference(*merges, tuple(found), len({*old, *new}) - len(found))


def _by_key(merge: Merge) -> dict[tuple[Any, ...], Placed]:
    return {(*one.entry.key, one.entry.tag): one for one in merge.kept if one.entry.key is not None}


def _difference(old: Placed | None, new: Placed | None, evidence: EvidenceFiles) -> Difference | None:
    before = old.entry.row if old is not None else None
    after = new.entry.row if new is not None else None
    row, tag = after or before, (new or old)
    assert row is not None and tag is not None
    change, comparable = _change(before, after), True
    if change is None:
        return None
    if old is not None and new is not None:
        records = (evidence.of(old), evidence.of(new))
        environments = {environment_of(record) for record in records if record is not None}
        comparable = len(environments) < 2
    device = (row.gfx, row.cu_num, row.gpu_model)
    return Difference(change, row.shape, device, before, after, comparable, tag.entry.tag)


def _change(before: TunedRow | None, after: TunedRow | None) -> Change | None:
    if before is None or after is None:
        return Change.added if before is None else Change.removed
    if (before.kernelName, dict(before.config)) != (after.kernelName, dict(after.config)):
        return Change.kernel
    if before.us != after.us:
        return Change.faster if after.us < before.us else Change.slower
    details = [(row.kernelId, row.splitK, row.errRatio, row.tflops, row.bw) for row in (before, after)]
    return Change.details if details[0] != details[1] else None
