"""What a run has measured so far, on disk before the next candidate starts.

::

    started ─► finished ─► started ─► …      one os.write each, to a file opened for appending
        └──── killed: a suspect ──┐
    open ◄────────────────────────┘          the next run reads what is whole and goes on

A row that was written is in the page cache and survives the death of every process; it is synced to disk once a second
and when the caller says so (a sync for each row would cost a hundred times the write).

The file is locked for as long as a run has it open. Which file a run takes, where there are several or one of another
environment, is in :mod:`~aiter_tuning.tables.checkpoint_slots`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from aiter_tuning.keys import Key
from aiter_tuning.measurement import Measurement
from aiter_tuning.tables import checkpoint_file
from aiter_tuning.tables.checkpoint_file import BusyError, CheckpointFile
from aiter_tuning.tables.checkpoint_record import BlockRows, Record
from aiter_tuning.tables.checkpoint_row import FINALS, SCREEN, STARTED, STOPPED, RowFormat
from aiter_tuning.tables.checkpoint_slots import (
    RunFingerprint,
    SetAside,
    checkpoints_beside,
    free_slot,
    profiles_of,
    take_slot,
    unused_name,
)
from aiter_tuning.tables.csv_reader import CsvError
from aiter_tuning.tables.logbook import CheckpointLogbook

__all__ = ["Checkpoint", "RunFingerprint", "SetAside", "checkpoints_beside", "profiles_of"]

SYNC_EVERY_S = 1.0


class Checkpoint:
    """The record of one run, made by :meth:`open`; a context manager that closes it, keeping the file."""

    def __init__(self, file: CheckpointFile, rows: RowFormat, record: Record, tuned: Path) -> None:
        self._file = file
        self._rows = rows
        self._record = record
        self._tuned = tuned
        self._others: list[CheckpointFile] = []
        self._synced = time.monotonic()
        self.set_aside: SetAside | None = None

    @classmethod
    def open(
        cls,
        tuned_path: str | os.PathLike[str],
        key: Key,
        run: RunFingerprint,
        *,
        path: str | os.PathLike[str] | None = None,
        fresh: bool = False,
        with_profile: bool = False,
    ) -> Checkpoint:
        """Goes on with the checkpoint of a tuned table, or begins one.

        Args:
            tuned_path: the tuned CSV; the checkpoint lies beside it.
            key: the family's key.
            run: the environment of this run.
            path: a checkpoint of another name.
            fresh: set aside what is there and begin anew.
            with_profile: count the profiles of completed runs in the same environment as on record too.

        Raises:
            CsvError: ``path`` is a file, and no checkpoint.
            OSError: the checkpoint cannot be opened or written.
        """
        tuned = Path(tuned_path)
        base = tuned.with_name(f"{tuned.stem}.checkpoint.csv") if path is None else Path(path)
        rows = RowFormat(key)
        start = rows.header() + rows.run(run.digest, run.fields)
        while True:
            file, aside = take_slot(base, rows, run, fresh)
            if file is None:
                file = checkpoint_file.create(free_slot(base), start)
                if file is None:  # another process made it meanwhile: look again
                    continue
            break
        file.cut_tail()
        checkpoint = cls(file, rows, Record(rows), tuned)
        checkpoint.set_aside = aside
        if not fresh:
            checkpoint._read_others(base, run, with_profile)
        checkpoint._record.add(file.path, file.fd)
        return checkpoint

    def _read_others(self, base: Path, run: RunFingerprint, with_profile: bool) -> None:
        """Takes in what other runs of the same environment have put on record for the same output."""
        for path in profiles_of(self._tuned, base.parent, run) if with_profile else ():
            self._read_other(path, run, running=False)
        for path in checkpoints_beside(base):
            if path == self.path:
                continue
            try:
                free = checkpoint_file.claim(path)
            except BusyError:
                self._read_other(path, run, running=True)
            except (CsvError, OSError):
                continue
            else:
                if free is not None:
                    free.close()
                    self._read_other(path, run, running=False)

    def _read_other(self, path: Path, run: RunFingerprint, *, running: bool) -> None:
        file = checkpoint_file.share(path)
        if file is None:
            return
        if file.digest != run.digest or file.columns != self._rows.columns:
            file.close()
            return
        self._others.append(file)
        self._record.add(path, file.fd, running=running)

    # What is known

    @property
    def path(self) -> Path:
        return self._file.path

    @property
    def is_there(self) -> bool:
        """Whether the file still exists, under whatever name: what is written to a deleted one is lost."""
        return self._file.is_there

    @property
    def dropped_tail(self) -> str | None:
        """The unterminated last line that was cut off when the file was opened."""
        return self._file.dropped_tail

    @property
    def warnings(self) -> list[str]:
        """Lines that could not be read, one sentence each."""
        return self._record.warnings

    def finished_results(
        self, shape: Mapping[str, object], fingerprints: Mapping[str, str], phase: str = SCREEN
    ) -> dict[str, Measurement]:
        """Results that earlier runs put on record for the shape, the newest of each candidate.

        Args:
            shape: the shape.
            fingerprints: each candidate's fingerprint of today; a result under another one does not count.
            phase: ``screen``, ``finals`` or, of a single turn, ``finalist:<block>``.
        """
        return self._record.finished(shape, fingerprints, phase)

    def blocks(
        self, shape: Mapping[str, object], fingerprints: Mapping[str, str], contest: str = FINALS
    ) -> list[BlockRows]:
        """The whole blocks that earlier runs put on record for a contest of the shape, numbered from 1 without a gap.

        Args:
            shape: the shape.
            fingerprints: of its candidates today; the row of blocks ends before one with a turn under another.
            contest: its phase, ``finals``, ``confirmation`` or ``comparison``.
        """
        return self._record.blocks(shape, fingerprints, contest)

    def suspects(
        self, shape: Mapping[str, object], fingerprints: Mapping[str, str] | None = None, phase: str = SCREEN
    ) -> dict[str, int]:
        """Candidates that earlier runs started and never saw the end of, and how often since their last end."""
        return self._record.suspects(shape, fingerprints, phase)

    def attempts(self, shape: Mapping[str, object], phase: str = SCREEN) -> dict[str, int]:
        """The highest attempt on record of each candidate, whatever its fingerprint: a new one has to be above it."""
        return self._record.attempts(shape, phase)

    # Putting on record

    def logbook(
        self,
        shape: Mapping[str, object],
        names: Sequence[str],
        fingerprints: Mapping[str, str],
        attempts: Mapping[str, int],
        *,
        phase: str = SCREEN,
    ) -> CheckpointLogbook:
        """What a worker writes its own rows with.

        Args:
            shape: the shape.
            names: its candidates in the order in which the worker counts them.
            fingerprints: of each candidate.
            attempts: of each candidate in earlier runs; none: 0.
            phase: ``screen``, or of a contest ``finals``, ``confirmation`` or ``comparison``.
        """
        status = os.fstat(self._file.fd)
        return CheckpointLogbook(
            os.path.abspath(self.path),
            (status.st_dev, status.st_ino),
            self._rows.key,
            dict(shape),
            phase,
            tuple(names),
            tuple(fingerprints[name] for name in names),
            tuple(attempts.get(name, 0) for name in names),
        )

    def repair(self) -> None:
        """Cuts off half a row that a full disk left at the end. Only once no worker writes any more."""
        self._file.cut_tail()

    def started(
        self, shape: Mapping[str, object], candidate: str, *, phase: str = SCREEN, attempt: int = 1, fingerprint: str
    ) -> None:
        """The candidate is about to be handed out.

        Raises:
            OSError: the row could not be written; the file holds whole rows only.
        """
        self._file.append(self._rows.mark(STARTED, shape, candidate, phase, attempt, fingerprint))

    def finished(
        self,
        shape: Mapping[str, object],
        candidate: str,
        measurement: Measurement,
        *,
        phase: str = SCREEN,
        fingerprint: str,
    ) -> None:
        """The candidate's verdict.

        Raises:
            ValueError: it is ``not_run``, which is no verdict.
            OSError: as for :meth:`started`.
        """
        if not measurement.status.is_terminal:
            raise ValueError(f"{candidate} was not run: there is nothing to put on record")
        self._file.append(self._rows.finished(shape, candidate, phase, fingerprint, measurement))
        self.sync_if_due()

    def sync_if_due(self) -> None:
        """:meth:`sync`, if the last was a second ago."""
        if time.monotonic() - self._synced >= SYNC_EVERY_S:
            self.sync()

    def stopped(
        self, shape: Mapping[str, object], candidate: str, *, phase: str = SCREEN, attempt: int = 1, fingerprint: str
    ) -> None:
        """The run was ended by a person while the candidate ran, which casts no suspicion on it.

        Raises:
            OSError: as for :meth:`started`.
        """
        self._file.append(self._rows.mark(STOPPED, shape, candidate, phase, attempt, fingerprint))

    def sync(self) -> None:
        """Puts what was written on the disk itself.

        Raises:
            OSError: the disk did not take it.
        """
        os.fdatasync(self._file.fd)
        self._synced = time.monotonic()

    # The end

    def complete(self) -> Path:
        """Everything is measured: the file becomes a profile, ``<stem>.profile.<run>.csv``; returns its path.

        Raises:
            OSError: it could not be synced or renamed; it is still a checkpoint then.
        """
        self.sync()
        run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
        target = unused_name(self.path.with_name(f"{self._tuned.stem}.profile.{run}.csv"))
        self._file.move(target)
        self.close()
        return target

    def close(self) -> None:
        """Gives the file back; it stays for the next run."""
        self._record.close()
        for file in (*self._others, self._file):
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
