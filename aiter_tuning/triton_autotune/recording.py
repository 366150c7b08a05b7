"""What Triton's own timing found, on file as it is found.

::

    <prefix>.rank<N>.json            {"format": …, arch: {kernel: {tuning key: winner}}}
    <prefix>.rank<N>.timings.jsonl   a line for the machine, then one for each tuning: every candidate with its times

The first is what older readers know: they take ``format`` for an architecture without entries. A run never writes over
another's: the next one's files are ``<prefix>.rank<N>.run2.…``. A line is in the second file before the launch goes
on; the first is replaced, atomically, as it grows, and on SIGTERM, at exit, and when the policy changes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.atomic_file import write_json
from aiter_tuning.triton_autotune.choices import Place, distinct_names
from aiter_tuning.triton_autotune.config_json import compact, config_record
from aiter_tuning.triton_autotune.environment import environment
from aiter_tuning.triton_autotune.identity import Fingerprint
from aiter_tuning.triton_autotune.rank import current_rank

logger = logging.getLogger(__name__)

FORMAT = "aiter_tuning.recording/2"
_FORMAT_FIELD = "format"
_SHARE_OF_TIME = 0.1
"""Replacing the file of winners may take this share of the time at most; the timings are always written at once."""

Times = tuple[float, ...]
"""Milliseconds: median, 20th and 80th percentile (what Triton's benchmarker gives); infinite: did not run."""
Winners = dict[str, dict[str, dict[str, dict[str, Any]]]]
"""``{arch: {kernel: {tuning key: config}}}``"""


class Tuning(NamedTuple):
    """One kernel tuned for one launch, in one process."""

    times: Mapping[str, Times]
    """By config (compact JSON)."""
    fingerprint: Fingerprint
    from_disk: bool
    """Whether the times came from Triton's disk cache, not from now."""


class Recording(NamedTuple):
    """One process's recording. Without timings where it is of another origin, or its second file is missing."""

    path: str
    winners: Winners
    tunings: Mapping[tuple[str, str, str], Tuning]
    """By (arch, kernel, tuning key)."""
    environment: Mapping[str, str]


class Recorder:
    """Writes one process's recording. Nothing here raises at a launch: what cannot be written is logged."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._entries: dict[Place, dict[str, Any]] = {}
        self._stem: Path | None = None
        self._owner = 0
        self._unwritten = False
        self._last_end = 0.0
        self._last_cost_s = 0.0

    def add(
        self, place: Place, winner: Any, times: Mapping[Any, Any] | None, print_: Fingerprint, from_disk: bool = False
    ) -> None:
        """Keeps a winner and the times (by live config) that made it one."""
        if self._owner != os.getpid():  # also in a child that inherited this object: it has files of its own
            self._owner, self._stem = os.getpid(), None
            self._entries.clear()
            self._last_end = 0.0
        self._entries[place] = config_record(winner)
        self._unwritten = True
        try:
            if self._stem is None:
                self._stem = _claim(self.prefix, current_rank())
                self._append({"format": FORMAT, "environment": environment()})
            self._append(_line(place, winner, times, print_, from_disk))
        except OSError as error:
            logger.error("cannot record %s under %s: %s", place.kernel, self.prefix, error)
            return
        if time.monotonic() - self._last_end >= self._last_cost_s / _SHARE_OF_TIME:
            self.flush()

    def flush(self) -> None:
        """Puts the winners on file; logs what prevents it."""
        if not self._unwritten or self._owner != os.getpid() or self._stem is None:
            return
        begin = time.monotonic()
        path = f"{self._stem}.json"
        try:
            write_json(path, self._content())
        except OSError as error:
            logger.error("cannot write the recording %s: %s", path, error)
            return
        self._unwritten = False
        self._last_end = time.monotonic()
        self._last_cost_s = self._last_end - begin
        logger.info("recorded %d choice(s) in %s", len(self._entries), path)

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {_FORMAT_FIELD: {FORMAT: {}}}
        entries = dict(self._entries)
        names = distinct_names((place.kernel, place.tag) for place in entries)
        for place, record in entries.items():
            kernels = content.setdefault(place.arch, {})
            kernels.setdefault(names[place.kernel, place.tag], {})[place.key] = record
        return content

    def _append(self, line: Mapping[str, Any]) -> None:
        data = (compact(line) + "\n").encode()
        fd = os.open(f"{self._stem}.timings.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)


def check_writable(prefix: str) -> None:
    """Makes the directory of a record path.

    Raises:
        PermissionError: recordings could not be written there.
    """
    directory = Path(os.path.abspath(prefix)).parent
    directory.mkdir(parents=True, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(f"record_path={prefix!r}: {directory} is not writable")


def read_winners(path: str | os.PathLike[str]) -> Winners:
    """``{arch: {kernel: {tuning key: config}}}`` of a recording of either origin.

    Raises:
        OSError: it cannot be read.
        ValueError: it is something else; the text names the file.
    """
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error}); may be truncated") from error
    if isinstance(data, dict) and "kernels" in data and isinstance(data.get("arch"), str):
        raise ValueError(f"{path}: this is a tuned table, not a per-rank recording")
    if not isinstance(data, dict) or not all(_is_nested(kernels) for kernels in data.values()):
        raise ValueError(f"{path}: expected {{arch: {{kernel: {{tuning key: config}}}}}}")
    is_ours = _FORMAT_FIELD in data
    made_as = next(iter(data.pop(_FORMAT_FIELD, {FORMAT: {}})), FORMAT)
    if made_as != FORMAT:
        raise ValueError(f"{path}: written as {made_as}, this program reads {FORMAT}")
    if is_ours:  # a killed process may have had no time to put its last winners into this file
        _, lines = _read_timings(path)
        for (arch, kernel, key), line in lines.items():
            data.setdefault(arch, {}).setdefault(kernel, {}).setdefault(key, line["winner"])
    return data


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Winners and, where the file beside it has them, times.

    Raises:
        OSError, ValueError: as :func:`read_winners`.
    """
    machine, lines = _read_timings(path)
    tunings = {}
    for place, line in lines.items():
        times = {
            compact(record): tuple(math.inf if value is None else float(value) for value in values)
            for record, values in line["times"]
        }
        tunings[place] = Tuning(times, Fingerprint(line["source"], line["candidates"]), line["from_disk"])
    return Recording(str(path), read_winners(path), tunings, machine)


def _read_timings(
    path: str | os.PathLike[str],
) -> tuple[dict[str, str], dict[tuple[str, str, str], dict[str, Any]]]:
    """The machine, and the last line for each (arch, kernel, tuning key), of the file beside a recording, if any."""
    machine: dict[str, str] = {}
    lines: list[tuple[Place, dict[str, Any]]] = []
    with contextlib.suppress(FileNotFoundError), open(_timings_path(path), encoding="utf-8") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:  # the end of a process that was killed while it wrote
                continue
            if "environment" in line:
                machine = line["environment"]
            else:
                lines.append((Place(line["arch"], line["kernel"], line["tag"], line["key"]), line))
    names = distinct_names((place.kernel, place.tag) for place, _ in lines)
    return machine, {(place.arch, names[place.kernel, place.tag], place.key): line for place, line in lines}


def _timings_path(path: str | os.PathLike[str]) -> str:
    return os.fspath(path).removesuffix(".json") + ".timings.jsonl"


def _claim(prefix: str, rank: int) -> Path:
    """The stem of files that no other run has, however many start at once."""
    run = 1
    while True:
        stem = Path(f"{prefix}.rank{rank}" + (f".run{run}" if run > 1 else ""))
        try:
            if not os.path.exists(f"{stem}.json"):
                os.close(os.open(f"{stem}.timings.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
                return stem
        except FileExistsError:
            pass
        run += 1


def _line(
    place: Place, winner: Any, times: Mapping[Any, Any] | None, print_: Fingerprint, from_disk: bool
) -> dict[str, Any]:
    return {
        **place._asdict(),
        **print_._asdict(),
        "winner": config_record(winner),
        "times": [[config_record(config), _finite(values)] for config, values in (times or {}).items()],
        "from_disk": from_disk,
    }


def _finite(values: Any) -> list[float | None]:
    numbers: Iterable[Any] = values if isinstance(values, Iterable) else [values]
    return [float(value) if math.isfinite(value) else None for value in numbers]


def _is_nested(kernels: Any) -> bool:
    return isinstance(kernels, dict) and all(
        isinstance(entries, dict) and all(isinstance(config, dict) for config in entries.values())
        for entries in kernels.values()
    )
