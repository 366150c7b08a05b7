"""What a run was asked to do, checked and typed.

Upstream's tuners pass an ``argparse.Namespace`` around; scripts that call ``TunerCommon.run`` still may. It becomes one
frozen value here, once, so that nothing further down meets a flag that is missing or means nothing.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from aiter_tuning.status import Status
from aiter_tuning.tables.lock import FileLock
from aiter_tuning.tables.merging import expand_tables
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuning_policy import (
    CANDIDATE_TIMEOUT_S,
    DEFAULT_FINALISTS,
    DEFAULT_MEASUREMENT,
    DEFAULT_PROMOTION,
    DEFAULT_RUN,
    MeasurementPolicy,
    PromotionPolicy,
    RunPolicy,
)

STRATEGIES = ("finals", "race")

ARG_DEFAULTS: dict[str, Any] = {
    "untune_file": None,
    "tune_file": None,
    "profile_file": "",
    "mp": 0,
    "shape_grouped": True,
    "sort": False,
    "errRatio": None,
    "batch": DEFAULT_RUN.batch,
    "all": False,
    "compare": False,
    "update_improved": False,
    "probe": None,
    "confirm": True,
    "run_config": False,
    "warmup": DEFAULT_MEASUREMENT.warmup,
    "iters": DEFAULT_MEASUREMENT.iters,
    "timeout": DEFAULT_MEASUREMENT.timeout,
    "candidate_timeout": CANDIDATE_TIMEOUT_S,
    "compile_timeout": None,
    "timer": "auto",
    "full_iters": False,
    "strategy": "finals",
    "finalists": DEFAULT_FINALISTS.finalists,
    "rounds": DEFAULT_FINALISTS.rounds,
    "min_improvement_pct": DEFAULT_PROMOTION.min_improvement_pct,
    "delta": None,
    "candidate_sample": None,
    "budget": None,
    "checkpoint": None,
    "fresh": False,
    "retry": (),
    "device": None,
    "dry_run": False,
    "json": False,
    "verbose": False,
}
"""Every flag by its long name, upstream's spelling. None: decided by the family, or off."""

_RENAMED = {"errRatio": "err_ratio", "all": "retune", "json": "as_json"}


class UsageError(ValueError):
    """A run that cannot be done as asked; one line, nothing was written."""


@dataclass(frozen=True)
class TuneArguments:
    """The flags of ``aiter-tune tune``; see its ``--help`` for what each one means."""

    untune_file: Path
    tune_files: tuple[Path, ...]
    """Where to look for rows that exist; the first is the one that is written."""
    profile_file: Path | None
    mp: int
    sort: bool
    err_ratio: float
    batch: int
    retune: bool
    """``--all``, ``--compare``: shapes that have a row are tuned again."""
    compare: bool
    """What serving makes of each decision is compared with what it runs today."""
    update_improved: bool
    """What came out better of a comparison is written."""
    probe: bool
    """Rows are served once by a fresh process before they are published; wherever it is known what serving calls."""
    confirm: bool
    """What is promoted is timed again in another process."""
    warmup: int
    iters: int
    timeout: float
    candidate_timeout: float
    compile_timeout: float | None
    """None: ``COMPILE_TIMEOUT_S`` (tuning_policy) for families that compile, for others none of its own."""
    timer: str
    full_iters: bool
    """Every candidate is timed ``iters`` times; no early stop."""
    strategy: Literal["finals", "race"]
    finalists: int
    """How many of the screening are timed again, besides what runs today; below 2: nobody."""
    rounds: int
    min_improvement_pct: float
    delta: float
    """Percent; the bar unless it was given."""
    candidate_sample: int | None
    """So many candidates of each shape, besides what runs today; None: all."""
    budget: float | None
    checkpoint: Path | None
    fresh: bool
    retry: frozenset[Status]
    device: str | None
    dry_run: bool
    as_json: bool
    verbose: bool

    @property
    def tune_file(self) -> Path:
        return self.tune_files[0]

    @property
    def checkpoint_file(self) -> Path:
        """Where the checkpoint lies: beside the tuned CSV, unless ``--checkpoint`` says otherwise.

        That of a comparison has a name of its own: what it decided must not be written by a run that compares nothing.
        """
        kind = ".compare" if self.compare else ""
        return self.checkpoint or self.tune_file.parent / f"{self.tune_file.stem}{kind}.checkpoint.csv"

    @property
    def candidate_file(self) -> Path:
        """The table that a comparison proposes, where it may not write the tuned CSV itself."""
        return self.tune_file.parent / f"{self.tune_file.stem}.candidate.csv"

    @classmethod
    def of(cls, args: argparse.Namespace | Mapping[str, Any], family: Family) -> TuneArguments:
        """Typed arguments from flags; what is missing or None takes the family's default.

        Raises:
            UsageError: a flag's value means nothing. Names that are no flags are left alone.
        """
        given = dict(args) if isinstance(args, Mapping) else vars(args)
        flags = ARG_DEFAULTS | dict(family.arg_defaults) | {k: v for k, v in given.items() if v is not None}
        if flags["errRatio"] is None:
            flags["errRatio"] = family.tolerance.err_ratio
        if flags["delta"] is not None and flags["strategy"] != "race":
            raise UsageError("--delta says what a race takes for equal; add --strategy race")
        if flags["delta"] is None:
            flags["delta"] = flags["min_improvement_pct"]
        for name, holds in (("untune_file", "a CSV file of shapes"), ("tune_file", "a CSV file to write")):
            if flags[name] is not None and not str(flags[name]).strip():
                raise UsageError(f"--{name} is empty; expected {holds}")
        flags["untune_file"] = Path(flags["untune_file"] or f"configs/{family.name}_untuned.csv")
        tuned = str(flags["tune_file"] or f"tuned_csv/{family.name}_tuned.csv")
        flags["tune_files"] = expand_tables(tuned)
        flags["profile_file"] = Path(flags["profile_file"]) if flags["profile_file"] else None
        flags["checkpoint"] = Path(flags["checkpoint"]) if flags["checkpoint"] else None
        flags["retry"] = frozenset(map(Status, flags["retry"]))
        if flags["update_improved"] and not flags["compare"]:
            raise UsageError("--update_improved writes what --compare finds better; add --compare")
        if flags["compare"] and not has_public_operator(family):
            raise UsageError(
                f"--compare times what serving calls, and {family.name} names nothing: define its serve(), "
                "or tune without --compare"
            )
        if flags["probe"] is None:
            flags["probe"] = has_public_operator(family)
        flags["all"] = flags["all"] or flags["compare"]
        flags = {_RENAMED.get(name, name): value for name, value in flags.items()}
        arguments = cls(**{field.name: flags[field.name] for field in fields(cls)})
        arguments._check()
        return arguments

    def _check(self) -> None:
        try:
            MeasurementPolicy(self.warmup, self.iters, self.err_ratio, self.timeout)
            RunPolicy(self.batch)
            PromotionPolicy(self.min_improvement_pct)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if not self.tune_files:
            raise UsageError("--tune_file names no file")
        if self.mp < 0:
            raise UsageError(f"--mp is {self.mp}; expected 0 (every device) or more")
        for name, least in (("finalists", 0), ("rounds", 1), ("candidate_sample", 0)):
            count = getattr(self, name)
            if count is not None and count < least:
                raise UsageError(f"--{name} is {count}; expected {least} or more")
        if self.strategy not in STRATEGIES:
            raise UsageError(f"--strategy is {self.strategy!r}; expected {' or '.join(STRATEGIES)}")
        if self.strategy == "race" and not 0 < self.delta < 100:
            raise UsageError(
                f"--delta is {self.delta:g}; expected percent above 0 and under 100"
                + ("; with --min_improvement_pct 0 a race needs one" if self.delta == 0 else "")
            )
        for name in ("candidate_timeout", "compile_timeout", "budget"):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"--{name} is {seconds}; expected seconds above 0")
        self._check_roles()

    def _check_roles(self) -> None:
        """No file that is written may have a second role, under whatever name: its content would be lost.

        But a tuned file's own shapes may be tuned again in place (``--all``): its rows are merged, never overwritten.
        """
        written = {"--tune_file": self.tune_file, "--checkpoint": self.checkpoint_file}
        if self.compare and not self.update_improved:
            written["the candidate table"] = self.candidate_file
        if self.profile_file is not None:
            written["--profile_file"] = self.profile_file
        read = [("--untune_file", self.untune_file), *(("--tune_file", path) for path in self.tune_files[1:])]
        roles = [*written.items(), *read]
        for number, (flag, path) in enumerate(roles[: len(written)]):
            for other, other_path in roles[number + 1 :]:
                in_place = self.retune and {flag, other} == {"--tune_file", "--untune_file"}
                if flag != other and not in_place and os.path.realpath(path) == os.path.realpath(other_path):
                    raise UsageError(f"{flag} {path} and {other} {other_path} are one file; expected two files")


def has_public_operator(family: Family) -> bool:
    """Whether it is known what serving calls."""
    return type(family).serve is not Family.serve


def check_readable(path: Path, holds: str, *, flag: str = "") -> None:
    """Makes sure that ``path`` is a file; ``flag`` is what it was given for, if there is one.

    Raises:
        UsageError: it is not there, or something other than a file.
    """
    where = f"{flag} {path}".lstrip()
    if path.is_dir():
        raise UsageError(f"{where}: is a directory; expected {holds}")
    if path.exists() and not path.is_file():
        raise UsageError(f"{where}: is a device or a pipe; expected {holds}")
    if not path.is_file():
        raise UsageError(f"{where}: no such file; expected {holds}")


def check_writable(path: Path, flag: str) -> None:
    """Makes sure that ``path`` can be written, without leaving anything behind.

    Raises:
        UsageError: its directory is missing or not writable, or it is something other than a file.
    """
    directory = path.parent
    if path.is_dir():
        raise UsageError(f"{flag} {path}: is a directory; expected a file")
    if path.exists() and not path.is_file():
        raise UsageError(f"{flag} {path}: is a device or a pipe; expected a file")
    if not directory.is_dir():
        raise UsageError(f"{flag} {path}: cannot be written, there is no directory {directory}; create it first")
    # A lock that somebody else made, and lets nobody else write to, locks us out for ever.
    for file in (path, FileLock.beside(path).path):
        try:
            os.close(os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"{flag} {file}: cannot be written, {error.strerror or error}") from None
    # Not by permission bits: root passes those, and a read-only file system is only found by trying.
    probe = directory / f".{path.name}.{os.getpid()}.probe"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        probe.unlink()
    except OSError as error:
        raise UsageError(f"{flag} {path}: cannot be written, {error.strerror or error}") from None
