"""What is wrong with a table, one finding each: what ``aiter-tune check`` prints and a program reads as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from aiter_tuning.tables.csv_error import ConflictMarkerError, CsvError


class Code(StrEnum):
    """Kinds of findings. ``--ignore`` takes these names."""

    broken = "broken"
    """A file, row or cell that cannot be read: types, missing cells, bytes that are no text."""
    conflict_marker = "conflict_marker"
    """What a version control system left behind."""
    no_line_end = "no_line_end"
    """The last line of a tuned table does not end: the file may have been cut off in the middle of a value."""
    empty = "empty"
    """No rows, none for the device that was asked for."""
    duplicate = "duplicate"
    """A key that is there twice in one file."""
    clash = "clash"
    """A key that is there in two files with two answers."""
    unmeasured = "unmeasured"
    """No latency: such a row never serves."""
    placeless = "placeless"
    """A row that does not say for which arch it is: such a row never serves."""
    other_computation = "other_computation"
    """A flag or dtype that the family does not compute: such a row never serves."""
    foreign_arch = "foreign_arch"
    """An arch that the family does not run on."""
    unknown_kernel = "unknown_kernel"
    """A kernel that the family does not offer for this shape and device."""
    changed_config = "changed_config"
    """A kernel whose config is another one today."""
    stale = "stale"
    """Measured under other versions, or before the kernel's code changed."""
    bucketed = "bucketed"
    """A shape that another one serves: no run tunes it, and serving asks for the other one."""
    untuned = "untuned"
    """A shape of the untuned sibling without a row."""
    bad_evidence = "bad_evidence"
    """A line of evidence that cannot be read."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and where."""

    code: Code
    path: Path
    message: str
    """For a person: what was found, what was expected or what to do."""
    line: int | None = None
    column: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What a program may want to know: latencies, names, shapes."""

    def __str__(self) -> str:
        place = ":".join([os.fspath(self.path), *(str(n) for n in (self.line, self.column) if n is not None)])
        return f"{place}: {self.code}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        return {
            "code": str(self.code),
            "file": os.fspath(self.path),
            "line": self.line,
            "column": self.column,
            "message": self.message,
            **self.facts,
        }

    @classmethod
    def of(cls, error: CsvError) -> Finding:
        """The finding that an error of reading stands for."""
        code = Code.conflict_marker if isinstance(error, ConflictMarkerError) else Code.broken
        return cls(code, Path(error.path), error.found, error.line, error.column)


def lines_of(findings: Iterable[Finding]) -> list[str]:
    """Findings for a person, one line each; rows of a file that are stale for one reason share theirs.

    A new version of torch makes all rows stale at once.
    """
    alike: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        shared = (finding.path, finding.message) if finding.code is Code.stale else number
        alike.setdefault(shared, []).append(finding)
    return [
        str(first) if not more else f"{first.path}: {len(more) + 1} rows: {first.code}: {first.message}"
        for first, *more in alike.values()
    ]
