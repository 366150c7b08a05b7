"""The processes that compile ahead: one that has imported everything, and those it forks.

::

    Precompiler ── order file ──▶ compile server: imports torch and Triton, compiles one small kernel; then only forks,
      (parent)                      │               hands out candidates, and ends who takes too long
                                    ├─ fork ▶ C compiler: what Triton talks to the driver with
                                    ├─ fork ▶ compile process: dry run ▶ Triton's cache, compile book
                                    └─ fork ▶ compile process …

A forked process compiles its first kernel in 0.4 s where a fresh one takes 3 s. None has a device. The server loads
none of the caller's code, so that nothing of it can harm more than one compile process, and ends by itself when there
is nothing left to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import os
import pickle
import resource
import selectors
import signal
import socket
import struct
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from aiter_tuning.pool.child import adopt
from aiter_tuning.pool.compile_book import CompileBook, State
from aiter_tuning.pool.messages import Adopt
from aiter_tuning.pool.parent_death import die_with
from aiter_tuning.pool.uncollected import uncollected
from aiter_tuning.task import MpTunerTask

NICENESS = 5
MOST_JOBS = 64
"""A compile process is replaced after so many candidates: Triton keeps all that it compiled in memory."""

_JOB = struct.Struct("<iii")  # group, candidate, slot
_DONE, _LATER = b"d", b"l"
_BEGUN, _ENDED = b"b", b"e"


class Place(NamedTuple):
    """A group in the file of groups."""

    offset: int
    length: int
    candidates: int
    first_slot: int


class Order(NamedTuple):
    """All that a compile server has to know."""

    surroundings: Adopt
    gfx: str
    settings: Mapping[str, str]
    cores: tuple[int, ...]
    processes: int
    timeout_s: float
    """How long one candidate may take."""
    groups: str
    """File of pickled groups."""
    places: tuple[Place, ...]
    """In the order in which lanes will need them."""
    book: str
    claims: str
    """Directory with a file for each kernel that is being compiled."""


def main() -> None:
    """Entry point: ``argv`` is package root, order file, parent's process id."""
    die_with(int(sys.argv[3]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(sys.argv[2], "rb") as file:
        order: Order = pickle.load(file)
    sys.argv = [""]
    adopt(order.surroundings)
    os.sched_setaffinity(0, order.cores)
    os.nice(NICENESS)
    warnings.simplefilter("ignore")  # "multi-threaded, use of fork()": those threads wait for work and hold nothing
    server = os.getpid()
    if os.fork() == 0:  # before torch is there; the lane needs it first of all
        _build_driver_module(server, order)
    warm_up(order)
    _Server(order).serve()
    os._exit(0)


def warm_up(order: Order) -> None:
    """Pays once what every process would pay for its first dry run."""
    with uncollected():
        from aiter_tuning.measure.triton_ahead import hashing  # isort: skip  # a second, beside the import of torch
        import torch  # noqa: F401

        from aiter_tuning.measure.compile_target import Limits, target_of
        from aiter_tuning.measure.dry_run import DryRunner
        from aiter_tuning.measure.meta_inputs import leave_tracing_out
        from aiter_tuning.measure.throw_away_kernel import throw_away_task

    leave_tracing_out()
    hashing.join()  # before the first fork: a thread would not be there afterwards, but what it holds would
    target = target_of(order.gfx)
    if target is None:
        sys.exit(f"{order.gfx!r} is no arch that Triton compiles for")
    with _other_cache(f"{order.claims}/throw-away"), DryRunner(target, Limits()) as runner:
        runner.run(throw_away_task())
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy every page that it looks at


@contextmanager
def _other_cache(directory: str) -> Iterator[None]:
    """What is thrown away does not go into the user's cache."""
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = directory
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before


class _Process:
    """A forked compile process, as the server sees it."""

    def __init__(self, pid: int, end: socket.socket) -> None:
        self.pid = pid
        self.end = end
        self.job: tuple[int, int, int] | None = None
        self.deadline = 0.0
        self.jobs = 0


class _Server:
    def __init__(self, order: Order) -> None:
        self._order = order
        self._book = CompileBook(order.book)
        self._selector = selectors.DefaultSelector()
        self._idle: list[_Process] = []
        self._busy: dict[int, _Process] = {}
        self._jobs = (
            (number, index, place.first_slot + index)
            for number, place in enumerate(order.places)
            for index in range(place.candidates)
        )
        self._later: deque[tuple[int, int, int]] = deque()
        """Those that met a kernel which another process was compiling."""
        self._again: deque[tuple[int, int, int]] = deque()
        """Those of them that may find it compiled now, since some process has finished something."""

    def serve(self) -> None:
        """Until every candidate has been looked at."""
        while True:
            self._hand_out()
            if not self._busy:
                break  # whoever waited for another has been asked again by now
            wait_s = min(process.deadline for process in self._busy.values()) - time.monotonic()
            for key, _ in self._selector.select(max(0.0, wait_s)):
                self._hear(key.data)
            self._end_overdue()
        for process in self._idle:
            self._end(process)

    def _hand_out(self) -> None:
        while self._idle or len(self._busy) < self._order.processes:
            job = self._next_job()
            if job is None:
                return
            process = self._idle.pop() if self._idle else self._fork()
            process.job = job
            process.jobs += 1
            process.deadline = time.monotonic() + self._order.timeout_s
            self._busy[process.pid] = process
            self._book.enter(job[2], State.compiling)
            with contextlib.suppress(OSError):  # it died meanwhile; its end will be heard
                process.end.send(_JOB.pack(*job))

    def _next_job(self) -> tuple[int, int, int] | None:
        """The first candidate, as far as can be told now, that no lane has come to yet."""
        while True:
            job = self._again.popleft() if self._again else next(self._jobs, None)
            if job is None or not self._book.is_taken(job[2]):
                return job
            self._book.enter(job[2], State.skipped)

    def _hear(self, process: _Process) -> None:
        try:
            answer = process.end.recv(1)
        except OSError:
            answer = b""
        job, process.job = process.job, None
        self._busy.pop(process.pid, None)
        if not answer:
            self._lose(process, job)
            return
        if answer == _LATER and job is not None:
            self._book.enter(job[2], State.waiting)
            self._later.append(job)
        else:
            self._try_again()
        if process.jobs >= MOST_JOBS:
            self._end(process)
        else:
            self._idle.append(process)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for process in [process for process in self._busy.values() if now >= process.deadline]:
            del self._busy[process.pid]
            self._lose(process, process.job)

    def _try_again(self) -> None:
        self._again.extend(self._later)
        self._later.clear()

    def _lose(self, process: _Process, job: tuple[int, int, int] | None) -> None:
        """The process is dead or overdue, which says nothing about the candidate."""
        if process in self._idle:
            self._idle.remove(process)
        self._end(process)
        if job is not None:
            self._book.enter(job[2], State.no_verdict)
        self._try_again()

    def _end(self, process: _Process) -> None:
        """Ends the process with what it started: ptxas and linkers stay in its group."""
        self._selector.unregister(process.end)
        process.end.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process.pid, 0)

    def _fork(self) -> _Process:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            _compile_process(self._order, self._book, theirs, server)
        theirs.close()
        with contextlib.suppress(OSError):  # the child does it too; whoever comes first
            os.setpgid(pid, pid)
        process = _Process(pid, ours)
        self._selector.register(ours, selectors.EVENT_READ, process)
        return process


# In the forked processes


def _build_driver_module(server: int, order: Order) -> NoReturn:
    try:
        die_with(server)
        from aiter_tuning.measure.compile_target import target_of
        from aiter_tuning.measure.launch_code import build_driver_module

        target = target_of(order.gfx)
        if target is not None:
            build_driver_module(target.backend)
    finally:
        os._exit(0)


def _compile_process(order: Order, book: CompileBook, end: socket.socket, server: int) -> NoReturn:
    """Compiles what it is told until the server closes its end, or ends it."""
    try:
        os.setpgid(0, 0)
        die_with(server)
        _work(order, book, end)
    except BaseException:  # whatever it is, this process must not return into the server's loop
        os._exit(1)
    os._exit(0)


def _work(order: Order, book: CompileBook, end: socket.socket) -> None:
    from aiter_tuning.measure.compile_target import limits_of, target_of
    from aiter_tuning.measure.dry_run import DryRunner, Outcome

    target = target_of(order.gfx)
    assert target is not None
    tasks: list[MpTunerTask] = []
    loaded = -1

    claim = functools.partial(claimed, order.claims)
    with DryRunner(target, limits_of(order.gfx, order.settings), claim) as runner:
        while packet := end.recv(_JOB.size):
            number, index, slot = _JOB.unpack(packet)
            _limit_processor_time(order.timeout_s)
            try:
                if number != loaded:
                    tasks, loaded = _load(order, number), number
                run = runner.run(tasks[index])
            except Exception:  # the caller's modules cannot be loaded here; the lane will say so
                book.enter(slot, State.no_verdict)
                end.send(_DONE)
                continue
            verdict = run.measurement()
            if verdict is not None:
                book.fail(slot, verdict)
            elif run.outcome is not Outcome.elsewhere:
                book.enter(slot, State.compiled if run.outcome is Outcome.compiled else State.no_verdict)
            end.send(_LATER if run.outcome is Outcome.elsewhere else _DONE)


def _load(order: Order, number: int) -> list[MpTunerTask]:
    place = order.places[number]
    with open(order.groups, "rb") as file:
        file.seek(place.offset)
        tasks: Any = pickle.loads(file.read(place.length))
    return [MpTunerTask(*task) for task in tasks]


def _limit_processor_time(timeout_s: float) -> None:
    """An assembler that outlives us, if everybody above it is killed at once, ends some time as well."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + 2 * timeout_s) + 10
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))


class CompilerDiedError(RuntimeError):
    """A process that compiled the same kernel died over it or took too long: not to be tried again here."""


@contextmanager
def claimed(directory: str, key: str) -> Iterator[bool]:
    """Whether the kernel is ours to compile: False while another process does.

    The file is locked for as long as that takes, and says afterwards whether it went well: shapes share kernels, and
    one that hung need not hang once for each.

    Raises:
        CompilerDiedError: whoever had it died.
    """
    fd = os.open(f"{directory}/{key}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        if os.pread(fd, 1, 0) == _BEGUN:
            raise CompilerDiedError("compiling this kernel has ended a process before")
        os.pwrite(fd, _BEGUN, 0)
        try:
            yield True
        finally:  # a compiler that raises has spoken, so it is alive
            os.pwrite(fd, _ENDED, 0)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
