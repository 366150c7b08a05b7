"""Why each row of a tuned table is there: one record for every decision, promoted or not, beside the table.

::

    a decision ─▶ Evidence ─▶ one line of strict JSON, appended under the table's lock, before the table is replaced
                                   │  <tuned stem>.evidence.jsonl
    check, verify, lookup, merge ◀─┘  read_evidence, newest_for

Records are never changed and never removed; the newest one that names a row's key and kernel explains the row. A
decision that was made twice, because its run was killed before the table was replaced, has two records that agree.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aiter_tuning.tables.atomic import write_all
from aiter_tuning.tables.csv_reader import CsvError
from aiter_tuning.tables.evidence_record import SCHEMA, Evidence, Timed
from aiter_tuning.tables.lock import FileLock
from aiter_tuning.tables.tuned_row import TunedRow

__all__ = [
    "SCHEMA",
    "Evidence",
    "EvidenceIndex",
    "Timed",
    "append_evidence",
    "evidence_path",
    "newest_for",
    "read_evidence",
]


def evidence_path(tuned_path: str | os.PathLike[str]) -> Path:
    """Where the evidence of a tuned CSV lies: ``<stem>.evidence.jsonl`` beside it, wherever a link to it is."""
    target = Path(os.path.realpath(tuned_path))
    return target.with_name(f"{target.stem}.evidence.jsonl")


def read_evidence(path: str | os.PathLike[str], *, warnings: list[str] | None = None) -> list[Evidence]:
    """The records of a file, oldest first; none if there is no such file.

    Args:
        path: the evidence file, see :func:`evidence_path`.
        warnings: takes a sentence for each line that is damaged, which is then skipped; None: such a line is an error.

    Raises:
        CsvError: a line is no record (``file:line: …``), and there is no list for warnings.
        OSError: the file cannot be read.
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return []
    records = []
    lines = data.split(b"\n")
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            if number == len(lines) and not _is_whole(raw):
                raise ValueError("the line was never finished; its run was killed, and the next one will write it anew")
            records.append(Evidence.from_json(raw.decode()))
        except ValueError as error:  # a UnicodeDecodeError is one
            damage = CsvError(path, f"no record of evidence: {error}", line=number)
            if warnings is None:
                raise damage from None
            warnings.append(f"{damage}; skipped")
    return records


def append_evidence(
    tuned_path: str | os.PathLike[str],
    records: Iterable[Evidence],
    *,
    lock_timeout: float | None = 60.0,
    locked: bool = False,
) -> None:
    """Appends records to the evidence of a tuned CSV, on disk when this returns.

    Args:
        tuned_path: the table.
        records: oldest first.
        lock_timeout: seconds that it waits for another writer.
        locked: whether the caller holds the table's lock.

    Raises:
        ValueError: a record cannot be written as strict JSON; nothing was written.
        OSError: the disk did not take it (the file then ends as it did before), or the table's lock is held too long.
    """
    data = "".join(record.to_json() + "\n" for record in records).encode()
    if not data:
        return
    path = evidence_path(tuned_path)
    lock = contextlib.nullcontext() if locked else FileLock.beside(tuned_path, timeout=lock_timeout)
    with lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            size = _end_of_last_line(descriptor)
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def newest_for(records: Sequence[Evidence], row: TunedRow) -> Evidence | None:
    """The newest record that explains a row: it is about the row's key, and its winner is the row's kernel.

    None: there is no such record, for instance because somebody edited the row by hand. For many rows make an
    :class:`EvidenceIndex` once.
    """
    return EvidenceIndex(records).newest_for(row)


class EvidenceIndex:
    """Records by what they explain."""

    def __init__(self, records: Iterable[Evidence]) -> None:
        self._newest: dict[tuple[str, ...], Evidence] = {}
        for record in records:
            if record.winner is not None:
                self._newest[_explained(record.key, record.winner.name)] = record

    def newest_for(self, row: TunedRow) -> Evidence | None:
        """See :func:`newest_for`."""
        key = {"gfx": row.gfx, "cu_num": row.cu_num, "gpu_model": row.gpu_model, **row.shape}
        return self._newest.get(_explained(key, row.kernelName))


def _explained(key: Mapping[str, Any], kernel: str) -> tuple[str, ...]:
    """A key and a kernel as text, in which ``64`` of a CSV and ``64`` of JSON are the same."""
    return kernel, *(f"{name}={' '.join(str(value).split())}" for name, value in sorted(key.items()))


def _is_whole(line: bytes) -> bool:
    """Whether a last line without its newline is a record all the same: an editor may have removed that."""
    try:
        Evidence.from_json(line.decode())
    except ValueError:
        return False
    return True


def _end_of_last_line(descriptor: int) -> int:
    """Ends a last line that lacks its newline, or cuts it off where it was never finished; the file's size then."""
    size = os.fstat(descriptor).st_size
    if not size or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start = size
    while start:  # backwards in pieces: records may hold thousands of samples, files of them millions
        step = min(start, 1 << 16)
        newline = os.pread(descriptor, step, start - step).rfind(b"\n")
        if newline >= 0:
            start = start - step + newline + 1
            break
        start -= step
    if _is_whole(os.pread(descriptor, size - start, start)):
        write_all(descriptor, b"\n")
        return size + 1
    os.ftruncate(descriptor, start)
    return start
