"""From a choice to a row in the tuned CSV, and the proof that serving takes it and that a lookup finds it there.

::

    row, evidence ─ gather ─▶ prover: served from a staged table, in a fresh process ─ refused ─▶ evidence only
                                        └ right ─▶ under the table's lock: another run's row stays? ─▶ evidence, table

Rows gather here and are written together: at least every ``batch`` shapes, every few seconds in which a shape ended,
and at the end. The checkpoint covers what has not been written yet. Of a shape that was decided the table has one row
afterwards, also where the decision is that its row stays: others that were there, and never found, go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import Key
from aiter_tuning.measurement import Measurement
from aiter_tuning.quantities import counted
from aiter_tuning.tables.csv_reader import CsvError
from aiter_tuning.tables.evidence import Evidence, append_evidence, evidence_path
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner.family import Candidate, Work
from aiter_tuning.tuner.generation import Generation
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.proving import UNASKED, Prover

WRITE_EVERY_S = 5.0
PROVE_EVERY_S = 60.0
PROVING_SHARE = 20.0
"""Rows that have to be proven wait at least so many times as long as the last proof took."""


class WriteFailedError(RuntimeError):
    """Results could not be written; what was written before is whole."""


class LookupFailedError(WriteFailedError):
    """A row that was just written is not found."""


def rates(work: Work, us: float) -> tuple[float, float]:
    """TFLOP/s and GB/s of one call, rounded to two decimals as in upstream's tables."""
    return round(work.flops / us / 1e6, 2), round(work.bytes / us / 1e3, 2)


def tuned_row(plan: ShapePlan, candidate: Candidate, measurement: Measurement, device: Device) -> TunedRow:
    """The row that says: on this device, run this shape with this candidate."""
    tflops, bw = rates(plan.work, measurement.us)
    return TunedRow(
        gfx=device.gfx,
        cu_num=device.cu_num,
        gpu_model=device.gpu_model,
        shape=dict(plan.shape),
        kernelId=candidate.kernel_id,
        splitK=candidate.split_k,
        us=round(measurement.us, 4),
        kernelName=candidate.name,
        tflops=tflops,
        bw=bw,
        errRatio=round(measurement.err_ratio, 4),
        config=dict(candidate.config),
    )


class Publisher:
    """Writes rows in batches, and checks them at the end."""

    def __init__(
        self,
        path: Path,
        key: Key,
        *,
        batch: int,
        sort: bool = False,
        generation: Generation | None = None,
        every_s: float = WRITE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
        evidence_of: Path | None = None,
        prover: Prover | None = None,
    ) -> None:
        """Args: the table; ``evidence_of``: the table whose evidence it is, if another one; ``prover``: asked about
        rows before they are written."""
        self._evidence_of = evidence_of or path
        self._table = TunedCsv(path, key, evidence_of=self._evidence_of)
        self._crowded = self._table.crowded_keys()
        """Full keys of which the table had several rows when the run began: so few that each is seen to at once."""
        self._path = path
        self._key = key
        self._batch = batch
        self._sort = sort
        self._generation = generation or Generation()
        self._every_s = every_s
        self._clock = clock
        self._prover = prover
        self._waiting: list[tuple[TunedRow | None, Evidence | None]] = []
        self._last_write = clock()
        self._proving_s = 0.0
        """What the last proof took."""
        self.written: list[TunedRow] = []
        self.refused: dict[tuple[Any, ...], str] = {}
        """Why serving does not take a row, by its full key; those rows were not written."""
        self.kept_out: set[tuple[Any, ...]] = set()
        """Full keys of rows in whose place another run's stays."""
        self.unproven = 0
        """Rows that nobody came to prove, since the run was stopped; the record has them."""

    def add(self, row: TunedRow | None, evidence: Evidence | None = None) -> None:
        """Takes a decision; it is on disk at the latest a batch later.

        Args:
            row: what it writes, if anything.
            evidence: its record.
        """
        if row is not None or evidence is not None:
            self._waiting.append((row, evidence))
        if row is not None and self._prover is not None:
            self._prover.get_ready()
        self.write_if_due()

    def tell(self, evidence: Evidence, settled: Collection[tuple[Any, ...]] = ()) -> None:
        """Writes the record of a decision that changes no row, at once: what is decided is not looked at again.

        Args:
            evidence: the record.
            settled: full keys of which the row that counts is to be left, and no other.

        Raises:
            WriteFailedError: it could not be written.
        """
        self._append([evidence])
        if crowded := self._crowded.intersection(settled):
            self._update([], crowded)

    def write_if_due(self) -> None:
        """Writes what waits if there is enough of it or it has waited long enough."""
        if len(self._waiting) >= self._batch or self._clock() - self._last_write >= self._patience_s():
            self.write()

    def _patience_s(self) -> float:
        """How long rows wait: where they have to be proven, the proofs take a small part of a run."""
        if self._prover is None or all(row is None for row, _ in self._waiting):
            return self._every_s
        return max(PROVE_EVERY_S, PROVING_SHARE * self._proving_s)

    def write(self) -> None:
        """Writes what waits and serves: the evidence first, so that no row is ever without.

        Raises:
            WriteFailedError: a file could not be written; the table is as it was.
        """
        if not self._waiting:
            return
        keys = {row.full_key for row, _ in self._waiting if row is not None}
        waiting = self._proven(self._waiting)
        rows = [row for row, _ in waiting if row is not None]
        if rows:
            self._write_rows(rows, waiting)
        else:
            self._append([one for _, one in waiting if one is not None])
        if crowded := (self._crowded & keys & self.refused.keys()):
            self._update([], crowded)
        self._waiting = []
        self._last_write = self._clock()

    def _write_rows(self, rows: list[TunedRow], waiting: Sequence[tuple[TunedRow | None, Evidence | None]]) -> None:
        def tell(written: Sequence[TunedRow]) -> None:
            """Under the table's lock, so that no record calls a row published that another run's kept out."""
            keys = {row.full_key for row in written}
            self._append(
                [
                    replace(one, published=False) if one.published and row and row.full_key not in keys else one
                    for row, one in waiting
                    if one is not None
                ],
                locked=self._evidence_of == self._path,
            )

        self._update(rows, self._crowded.intersection(row.full_key for row in rows), tell)
        written = [row for row in rows if not self._generation.yielded(row)]
        self.kept_out |= {row.full_key for row in rows} - {row.full_key for row in written}
        self._generation.saw(written)
        self.written += written

    def _update(
        self,
        rows: Sequence[TunedRow],
        settled: Collection[tuple[Any, ...]],
        tell: Callable[[Sequence[TunedRow]], None] | None = None,
    ) -> None:
        stays = self._generation.stays
        try:
            self._table.update(rows, sort=self._sort and bool(rows), stays=stays, before=tell, settled=settled)
        except OSError as error:
            raise WriteFailedError(f"{self._path}: could not be written: {error.strerror or error}") from error
        except CsvError as error:  # it could be read when the run began
            raise WriteFailedError(f"could not be written, since it was changed meanwhile: {error}") from error

    def _append(self, evidence: Sequence[Evidence], *, locked: bool = False) -> None:
        try:
            append_evidence(self._evidence_of, evidence, locked=locked)
        except OSError as error:
            path = evidence_path(self._evidence_of)
            raise WriteFailedError(f"{path}: could not be written: {error.strerror or error}") from error

    def _proven(
        self, waiting: list[tuple[TunedRow | None, Evidence | None]]
    ) -> list[tuple[TunedRow | None, Evidence | None]]:
        """What may be written, and the evidence of what may not."""
        rows = [row for row, _ in waiting if row is not None]
        if self._prover is None or not rows:
            return waiting
        began = self._clock()
        try:
            objections = self._prover.objections(rows, [one for _, one in waiting if one is not None])
        except OSError as error:
            raise WriteFailedError(f"rows could not be staged: {error.strerror or error}") from error
        self._proving_s = self._clock() - began
        proven: list[tuple[TunedRow | None, Evidence | None]] = []
        for row, one in waiting:
            objection = objections.get(row.full_key) if row is not None else None
            if row is None or objection is None:
                proven.append((row, one))
            elif objection == UNASKED:
                self.unproven += 1
            else:
                self.refused[row.full_key] = objection
                reason = f"{row.kernelName} is not published, serving does not take it: {objection}"
                verdict = str(Verdict.not_served)
                proven.append(
                    (None, one and replace(one, published=False, verdict=verdict, reason=reason, winner=None))
                )
        return proven

    def check(self) -> tuple[str, ...]:
        """Looks up every written row as serving would, in a table read afresh.

        A row of the same key that somebody else put there since is theirs to answer for: a note, no failure.

        Returns:
            What a person should know about it.

        Raises:
            LookupFailedError: a row is missing, or the table cannot be read.
        """
        clashes = (*self._removed(), *self._generation.notes(self._path))
        if not self.written:
            return clashes
        latest = {(*self._key.values(row.shape), row.gfx, row.cu_num, row.gpu_model): row for row in self.written}
        try:
            table = TunedCsv(self._path, self._key)
            pairs = [(row, table.find(row.gfx, row.cu_num, row.gpu_model, row.shape)) for row in latest.values()]
        except OSError as error:
            raise LookupFailedError(f"{self._path}: could not be read back: {error.strerror or error}") from error
        except CsvError as error:
            raise LookupFailedError(f"could not be read back, since it was changed meanwhile: {error}") from error
        replaced = []
        for row, found in pairs:
            label = f"{self._key.label(row.shape)} on {row.gfx}/{row.cu_num} {row.gpu_model}"
            # A lookup may fall back to a row that names no model: ours is gone all the same.
            if found is None or found.gpu_model != " ".join(row.gpu_model.split()):
                raise LookupFailedError(
                    f"{self._path}: a lookup of {label} does not find {row.kernelName} at {row.us} us, "
                    "which this run wrote; was the file changed meanwhile?"
                )
            if (found.kernelName, found.us) != (row.kernelName, row.us):
                replaced.append(f"{label} now has {found.kernelName} at {found.us} us")
        if not replaced:
            return clashes
        rows = counted(len(replaced), "row")
        return (*clashes, f"{self._path}: somebody else replaced {rows} of this run meanwhile; {replaced[0]}")

    def _removed(self) -> tuple[str, ...]:
        """What went from the table since another row of its shape counts; of a proposal nothing is told."""
        removed = self._table.removed
        if not removed or self._evidence_of != self._path:
            return ()
        first = removed[0].cells
        rows = f"{counted(len(removed), 'row')} {'was' if len(removed) == 1 else 'were'}"
        told = f"{first.get('kernelName') or 'no kernel'} at {first['us']} us for {self._key.label(first)}"
        why = "since another row of the same shape and device counts"
        return (f"{self._path}: {rows} taken out, {why}: {told}" + (" and others" if len(removed) > 1 else ""),)
