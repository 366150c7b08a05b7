"""Rows that are about to be published, served once from a staged table by a process that knows nothing of the tuning.

::

    a run's first row ─▶ get_ready: on a GPU's host the fresh process imports torch meanwhile
    rows to publish   ─▶ staged: the table as it would be ─▶ dispatch_probe ─▶ objections, by row
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import Key
from aiter_tuning.tables.evidence import Evidence, append_evidence, evidence_path
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner.dispatch_probe import StartedProcess, probe

UNASKED = "the run was stopped before it could be proven"


class Prover:
    """Proves rows of one family; a context manager that ends the process which may be waiting.

    Args:
        reference: of the family.
        key: of the family.
        table: the tuned CSV that the rows are for.
        device: where they were tuned.
        seed: of the inputs.
        stop: asked a few times a second whether to give up.
        err_ratio: largest accepted fraction of wrong elements; None: what the family tolerates.
    """

    def __init__(
        self,
        reference: str,
        key: Key,
        table: Path,
        device: Device,
        *,
        seed: int,
        stop: Callable[[], bool],
        err_ratio: float | None = None,
    ) -> None:
        self._reference = reference
        self._key = key
        self._table = table
        self._device = device
        self._seed = seed
        self._stop = stop
        self._err_ratio = err_ratio
        self._waiting: StartedProcess | None = None

    def get_ready(self) -> None:
        """There will be rows to prove. On a CPU the lanes need the cores; a process is started when it is asked."""
        if self._waiting is None and self._device.torch_device != "cpu":
            self._waiting = StartedProcess(self._device)

    def objections(self, rows: Sequence[TunedRow], evidence: Sequence[Evidence]) -> dict[tuple[Any, ...], str]:
        """Why rows must not be published, by full key; :data:`UNASKED` if that was not found out.

        Raises:
            OSError: they could not be staged.
        """
        latest = {row.full_key: row for row in rows}
        with tempfile.TemporaryDirectory(prefix="aiter_tuning_staged_") as directory:
            staged = Path(directory) / self._table.name
            if self._table.is_file():
                shutil.copyfile(self._table, staged)
            if evidence_path(self._table).is_file():
                shutil.copyfile(evidence_path(self._table), evidence_path(staged))
            TunedCsv(staged, self._key).update(latest.values())
            append_evidence(staged, evidence)
            started, self._waiting = self._waiting, None
            results = probe(
                self._reference,
                staged,
                [row.shape for row in latest.values()],
                self._device,
                seed=self._seed,
                err_ratio=self._err_ratio,
                stop=self._stop,
                started=started,
            )
        told = {}
        for row, result in zip(latest.values(), results, strict=True):
            if result.verified and result.chosen == row.kernelName:
                continue
            reason = result.reason or f"a lookup finds {result.chosen}"
            told[row.full_key] = UNASKED if self._stop() and reason.startswith("not tried") else reason
        return told

    def __enter__(self) -> Prover:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._waiting is not None:
            self._waiting.close()
