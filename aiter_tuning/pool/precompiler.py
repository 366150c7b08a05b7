"""Compiling coming candidates on spare cores while lanes time: the parent's side.

::

    run ── groups, in the lanes' order ──▶ Precompiler ── starts, and ends ──▶ compile server ─ fork ▶ compile processes
                                                                                                             │
    a lane's worker ◀── compile book: what the compiler said ◀───────────────────────────────────────────────┤
                    ◀── Triton's cache on disk: what it made ◀───────────────────────────────────────────────┘

The parent starts it and ends it, and never listens or waits: nothing here can hold up its loop. Whatever goes wrong
with it, a candidate of which nothing is known compiles in its lane, as it would without.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from aiter_tuning.devices.device import Device
from aiter_tuning.devices.visibility import HIDE_ALL
from aiter_tuning.pool.compile_book import CompileBook, Slots, State
from aiter_tuning.pool.compile_server import Order, Place
from aiter_tuning.pool.feed import order_of
from aiter_tuning.pool.messages import TOKEN_VARIABLE
from aiter_tuning.pool.pickling import dumps
from aiter_tuning.pool.process import interpreter_flags, kill_by_token, surroundings
from aiter_tuning.task import Group

FEWEST_CANDIDATES = 12
"""Below this a lane has compiled everything itself by the time the compile server has imported torch."""
DEFAULT_TIMEOUT_S = 120.0
_PROCESS_BYTES = 1 << 30
"""What a compile process may need; fewer are started where memory is short."""
_KILL_PATIENCE_S = 10.0
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from aiter_tuning.pool.compile_server import main; main()"

_serial = count()


def can_precompile(devices: Sequence[Device]) -> bool:
    """Whether there is something to compile for: GPUs of one arch, and real ones."""
    arches = {device.gfx for device in devices}
    is_gpu = all(gfx.startswith(("sm", "gfx")) for gfx in arches)
    return len(arches) == 1 and is_gpu and os.environ.get("TRITON_INTERPRET", "0") in ("", "0")


def spare_cores(devices: Sequence[Device], cgroup: Path = Path("/sys/fs/cgroup")) -> tuple[int, ...]:
    """The cores that no lane needs for launching: all that this process may use, less those of each lane.

    Args:
        devices: the lanes; one without cores of its own keeps one all the same.
        cgroup: where a container's processor quota is looked up; beyond it cores are worth nothing.
    """
    allowed = sorted(os.sched_getaffinity(0))
    for device in devices:
        own = [core for core in device.cores if core in allowed]
        for core in own or allowed[:1]:
            allowed.remove(core)
    quota = _processor_quota(cgroup)
    return tuple(allowed[: max(0, int(quota) - len(devices))] if math.isfinite(quota) else allowed)


def _processor_quota(cgroup: Path) -> float:
    try:
        used, period = (cgroup / "cpu.max").read_text().split()
        return math.inf if used == "max" else int(used) / int(period)
    except (OSError, ValueError):
        return math.inf


class Precompiler:
    """The compile server of one run. Starting it takes a few milliseconds; nothing waits for it.

    Args:
        groups: what the lanes will measure.
        devices: the lanes; see :func:`can_precompile`.
        spawner: what starts processes: a process ends with the thread that it was started from.
        directory: where its files go; a directory is made there.
        cores: what to compile on; default :func:`spare_cores`.
        timeout_s: how long one candidate may take; past it, it compiles in its lane, under the lane's clocks.
        fewest: with fewer candidates nothing is started.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        devices: Sequence[Device],
        spawner: Executor,
        directory: str,
        *,
        cores: Sequence[int] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        fewest: int = FEWEST_CANDIDATES,
    ) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        self._book: CompileBook | None = None
        self._places: dict[int, Place] = {}
        cores = spare_cores(devices) if cores is None else tuple(cores)
        candidates = sum(len(group.tasks) for group in _until(groups, fewest))
        if candidates < fewest or not cores or not can_precompile(devices):
            return
        self.token = f"{os.getpid()}.compile.{next(_serial)}.{time.monotonic():.6f}"
        self._directory = tempfile.mkdtemp(prefix="compile.", dir=directory)
        os.mkdir(f"{self._directory}/claims")
        self._places = self._write_groups(groups)
        total = sum(place.candidates for place in self._places.values())
        self._book = CompileBook.create(f"{self._directory}/book", total)
        memory = int(psutil.virtual_memory().available) // _PROCESS_BYTES
        order = Order(
            surroundings=surroundings(HIDE_ALL),
            gfx=devices[0].gfx,
            settings=dict(devices[0].settings),
            cores=tuple(cores),
            processes=max(1, min(len(cores), memory, total)),
            timeout_s=timeout_s,
            groups=self._groups_file,
            places=tuple(self._places.values()),
            book=self._book.path,
            claims=f"{self._directory}/claims",
        )
        with open(f"{self._directory}/order", "wb") as file:
            pickle.dump(order, file)
        self._popen = spawner.submit(self._start).result()

    @property
    def _groups_file(self) -> str:
        return f"{self._directory}/groups"

    def _write_groups(self, groups: Sequence[Group]) -> dict[int, Place]:
        """Writes what a dry run needs of each group; where it is, by the group's number, in the order of the lanes."""
        places: dict[int, Place] = {}
        offset, slot = 0, 0
        with open(self._groups_file, "wb") as file:
            for number in order_of(groups):
                # Neither names nor references: only what makes the inputs and what is called.
                tasks: list[tuple[Any, ...]] = [(None, *task[1:6], None, (), {}, None) for task in groups[number].tasks]
                try:
                    packed = dumps(tasks)
                except Exception:  # its lane will say what is wrong with it
                    continue
                file.write(packed)
                places[number] = Place(offset, len(packed), len(tasks), slot)
                offset += len(packed)
                slot += len(tasks)
        return places

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = (_PACKAGE_ROOT, f"{self._directory}/order", str(os.getpid()))
        return subprocess.Popen(
            [sys.executable, *interpreter_flags(), "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **HIDE_ALL, TOKEN_VARIABLE: self.token},
            start_new_session=True,
        )

    @property
    def started(self) -> bool:
        """Whether there is a compile server at all."""
        return self._popen is not None

    @property
    def running(self) -> bool:
        """Whether it still has something to do; it ends by itself."""
        return self._popen is not None and self._popen.poll() is None

    @property
    def pid(self) -> int | None:
        return None if self._popen is None else self._popen.pid

    def slots(self, number: int) -> Slots | None:
        """Where the candidates of the group at ``number`` stand in the book; None: nowhere."""
        place = self._places.get(number)
        return None if place is None or self._book is None else Slots(self._book.path, place.first_slot)

    def counts(self) -> Counter[State]:
        """How many candidates are in which state."""
        return Counter() if self._book is None else self._book.counts()

    def close(self) -> None:
        """Ends all its processes, whatever they are doing. Safe to call twice."""
        popen, self._popen = self._popen, None
        if popen is None:
            return
        popen.kill()  # those that it forked die with it
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(_KILL_PATIENCE_S)
        kill_by_token(self.token)  # and assemblers and linkers that these had started
        if self._book is not None:
            self._book.close()
            self._book = None


def _until(groups: Sequence[Group], fewest: int) -> Iterator[Group]:
    """As many groups as it takes to have enough candidates: counting them all would make them all."""
    counted = 0
    for group in groups:
        if counted >= fewest:
            return
        counted += len(group.tasks)
        yield group
