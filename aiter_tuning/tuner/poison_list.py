"""The poison list as a file: one line for each thing that happened, appended by whichever run sees it.

::

    {"event": "poisoned", "device": …, "fingerprint": …, "shape": …, …}     what stands is what was poisoned
    {"event": "cleared",  "device": …, "fingerprint": …, "shape": …, …}     and not cleared since

It belongs to the user and not to a table: a candidate that hangs a GPU does so whatever file is being tuned. Lines are
only ever appended, each by one write, so that any number of processes may share the file without a lock, and what one
of them was killed in the midst of costs that line alone. A list that cannot be read or written never stops a run.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import KeyValue
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import Clocks
from aiter_tuning.quantities import counted
from aiter_tuning.status import Status, one_line
from aiter_tuning.tables.atomic import write_all
from aiter_tuning.tuner.poison import Poisoned, is_sentence, offence_of, sentence_of, withhold
from aiter_tuning.tuner.resume import Remaining
from aiter_tuning.tuner.stale_rows import VERSIONS

HOME_VARIABLE = "AITER_TUNING_HOME"
SCHEMA = 1
_FILE = "poison.jsonl"
_MOST_DETAIL = 500


def state_directory(environ: Mapping[str, str] | None = None) -> Path:
    """What is kept between runs and belongs to no table: ``$AITER_TUNING_HOME``, else in the user's state directory.

    Raises:
        OSError: this user has no home.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(HOME_VARIABLE):
        return Path(named)
    if state := environ.get("XDG_STATE_HOME"):
        return Path(state) / "aiter_tuning"
    try:
        return Path.home() / ".local" / "state" / "aiter_tuning"
    except RuntimeError as error:
        raise OSError(f"{error}; set {HOME_VARIABLE} to a directory") from error


class PoisonFile:
    """The list on disk.

    Args:
        path: the file; None: in :func:`state_directory`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_directory() / _FILE
        self.warnings: list[str] = []
        """Lines that the last reading left out."""

    def read(self) -> list[Poisoned]:
        """What stands, oldest first.

        Raises:
            OSError: it is there and cannot be read.
        """
        self.warnings = []
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        standing: dict[tuple[Any, ...], Poisoned] = {}
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                event, record = _parsed(line)
            except (ValueError, TypeError, KeyError) as error:
                self.warnings.append(f"{self.path}:{number}: no record of the poison list ({error}); left out")
                continue
            standing.pop(record.identity, None)
            if event == "poisoned":
                standing[record.identity] = record
        return list(standing.values())

    def add(self, records: Iterable[Poisoned]) -> None:
        """Puts records on the list.

        Raises:
            OSError: the file cannot be written.
        """
        self._append("poisoned", records)

    def clear(self, records: Iterable[Poisoned]) -> None:
        """Takes records off the list.

        Raises:
            OSError: the file cannot be written.
        """
        self._append("cleared", records)

    def _append(self, event: str, records: Iterable[Poisoned]) -> None:
        text = "".join(json.dumps({"schema": SCHEMA, "event": event, **asdict(record)}) + "\n" for record in records)
        if not text:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(fd).st_size
            torn = size and os.pread(fd, 1, size - 1) != b"\n"
            write_all(fd, (("\n" if torn else "") + text).encode())
        finally:
            os.close(fd)


def _parsed(line: bytes) -> tuple[str, Poisoned]:
    found = json.loads(line)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"expected an object of schema {SCHEMA}")
    if found["event"] not in ("poisoned", "cleared"):
        raise ValueError(f"event is {found['event']!r}")
    values = {field.name: found[field.name] for field in fields(Poisoned) if field.name in found}
    for name in ("device", "versions", "shape"):
        if not isinstance(values.get(name), dict):
            raise ValueError(f"{name} is no object")
    for name in ("fingerprint", "family", "candidate", "detail", "when"):
        if not isinstance(values.get(name), str):
            raise ValueError(f"{name} is no text")
    clock_s = values.get("clock_s")
    if clock_s is not None and (isinstance(clock_s, bool) or not isinstance(clock_s, int | float)):
        raise ValueError("clock_s is no number")
    return found["event"], Poisoned(**{**values, "status": Status(values["status"])})


class PoisonList:
    """The list as one run uses it: what is known of its candidates on its device, and what it adds.

    Args:
        family: the operator's name.
        device: the run's device; any of one model.
        versions: ``driver``, ``torch`` and ``triton`` of the run.
        clocks: of the run.
        path: see :class:`PoisonFile`.
    """

    def __init__(
        self, family: str, device: Device, versions: Mapping[str, str], clocks: Clocks, path: Path | None = None
    ) -> None:
        self._family = family
        self._device = {"gfx": device.gfx, "cu_num": device.cu_num, "gpu_model": device.gpu_model}
        self._versions = {name: str(versions.get(name, "")) for name in VERSIONS}
        self._clocks = clocks
        self._by_fingerprint: dict[str, list[Poisoned]] = {}
        self._withheld: list[str] = []
        self._trouble = ""
        self._file: PoisonFile | None = None
        try:
            file = PoisonFile(path)
            for record in file.read():
                if record.device == self._device:
                    self._by_fingerprint.setdefault(record.fingerprint, []).append(record)
            self._file = file
        except OSError as error:
            self._trouble = f"the poison list cannot be read, {error}"

    def still_counting(
        self, shape: Mapping[str, KeyValue], fingerprints: Mapping[str, str], finished: Mapping[str, Measurement]
    ) -> dict[str, Measurement]:
        """Results on record without those that say ``poisoned`` of a candidate which is not, any more."""
        return {
            name: measurement
            for name, measurement in finished.items()
            if not is_sentence(measurement) or self._sentence(shape, fingerprints[name]) is not None
        }

    def withhold(
        self,
        left: Remaining,
        shape: Mapping[str, KeyValue],
        fingerprints: Mapping[str, str],
        attempts: Mapping[str, int],
        retry: frozenset[Status],
    ) -> Remaining:
        """What is left to measure without the poisoned; see :func:`~aiter_tuning.tuner.poison.withhold`."""
        if not self._by_fingerprint:
            return left
        sentences = {
            candidate.name: sentence
            for candidate in left.todo
            if (sentence := self._sentence(shape, fingerprints[candidate.name])) is not None
        }
        kept = withhold(left, sentences, attempts, retry)
        self._withheld += [name for name in kept.convicted if name not in left.convicted]
        return kept

    def saw(self, shape: Mapping[str, KeyValue], candidate: str, fingerprint: str, measurement: Measurement) -> None:
        """A verdict of the run: one that offends goes on the list, one that works is taken off it. Never raises."""
        offence = offence_of(measurement)
        if offence is not None:
            record = Poisoned(
                device=self._device,
                fingerprint=fingerprint,
                versions=self._versions,
                family=self._family,
                candidate=candidate,
                shape=dict(shape),
                status=measurement.status,
                detail=one_line(measurement.detail, _MOST_DETAIL),
                when=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                host=socket.gethostname(),
                clock=offence.clock,
                clock_s=offence.clock_s,
            )
            self._write(PoisonFile.add, [record])
        elif measurement.status is Status.ok and fingerprint in self._by_fingerprint:
            known = self._by_fingerprint.pop(fingerprint)
            self._by_fingerprint[fingerprint] = [record for record in known if record.shape != dict(shape)]
            self._write(PoisonFile.clear, [record for record in known if record.shape == dict(shape)])

    def notes(self) -> tuple[str, ...]:
        """What a person should know, told once."""
        notes = []
        if self._withheld:
            names = list(dict.fromkeys(self._withheld))
            count = counted(len(self._withheld), "candidate")
            shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
            notes.append(
                f"{count} not run, since {'they' if len(self._withheld) != 1 else 'it'} killed or hung a worker "
                f"before ({shown}); `aiter-tune poison` tells more, --retry crash,timeout runs them"
            )
        if self._trouble:
            notes.append(self._trouble)
        self._withheld, self._trouble = [], ""
        return tuple(notes)

    def _sentence(self, shape: Mapping[str, KeyValue], fingerprint: str) -> Measurement | None:
        records = self._by_fingerprint.get(fingerprint)
        return sentence_of(records, dict(shape), self._versions, self._clocks) if records else None

    def _write(self, write: Callable[[PoisonFile, list[Poisoned]], None], records: list[Poisoned]) -> None:
        if self._file is None or not records:
            return
        try:
            write(self._file, records)
        except OSError as error:
            self._trouble = f"the poison list cannot be written, {error}"
            self._file = None  # told once
