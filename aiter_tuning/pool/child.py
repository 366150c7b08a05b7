"""The worker's side: a server that does what the parent says, one candidate at a time.

::

    main ── death signal, no core dumps ── Adopt, Hello ── imports ── Ready ─▶ wait
      Bind  → take the device, probe it                                  → Bound | BindFailed
      Open  → post "opening"; load the group                             → (OpenFailed)
      Go    → post "inputs", "reference", "compiling", "measuring"       → Measured | Unprepared
              of a contest: "finals" at every turn                       → BlockDone, Measured
      Close → drop the inputs

Every step is posted on the board before it begins, so that the parent knows what a worker was doing when it died.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import pickle
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from aiter_tuning.devices.device import Device, DeviceKind, load_kind
from aiter_tuning.measurement import UNMEASURED_US, Measurement
from aiter_tuning.pool.board import COMPILING, INPUTS, MEASURING, OPENING, REFERENCE, Board, flags_between
from aiter_tuning.pool.channel import Channel
from aiter_tuning.pool.compile_book import GroupBook
from aiter_tuning.pool.finals import Finals
from aiter_tuning.pool.messages import (
    TOKEN_VARIABLE,
    Adopt,
    Bind,
    BindFailed,
    Bound,
    Close,
    Go,
    GroupPayload,
    LogFailed,
    Open,
    OpenFailed,
    Ready,
    Unprepared,
    Unsendable,
)
from aiter_tuning.pool.output import take_output
from aiter_tuning.pool.parent_death import die_with, set_death_signal
from aiter_tuning.pool.uncollected import uncollected
from aiter_tuning.status import Status, describe
from aiter_tuning.task import Logbook, LogbookError, MpTunerTask

_NO_TASK = MpTunerTask(None, None, (), len, (), {}, None, (), {}, None)
"""In the place of a task that is loaded when it is its turn."""


def main() -> None:
    """Entry point of a worker: ``argv`` is package root, pipe, board, parent's process id, directory for messages."""
    pipe, board, parent, directory = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    die_with(parent)
    faulthandler.enable()  # a segmentation fault then names the Python line that it happened in
    # The signal is forgotten across fork, so that a candidate's forked children would outlive us.
    os.register_at_fork(after_in_child=set_death_signal)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = [""]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed must survive os._exit
    try:
        channel = Channel(socket.socket(fileno=pipe), directory)
        Server(channel, Board.inherit(board)).serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone or has closed us
    os._exit(0)


def adopt(message: Adopt) -> None:
    """Makes the parent's import path, working directory and environment ours, but for the token that is our own."""
    sys.path[:] = message.sys_path
    try:
        os.chdir(message.cwd)
    except OSError as error:
        sys.stderr.write(f"cannot enter {message.cwd}: {error}\n")
    for name in os.environ.keys() - message.environ.keys() - {TOKEN_VARIABLE}:
        del os.environ[name]
    for name, value in message.environ.items():
        if name != TOKEN_VARIABLE and os.environ.get(name) != value:
            os.environ[name] = value


def _import_all(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.stderr.write(f"cannot import {name}: {error}\n")


def _import_in_background(names: tuple[str, ...]) -> None:
    """Imports in a thread that runs only when its cores have nothing else to do, so that the lane's timings stay clean.

    Policies belong to threads: the main thread, which will run candidates, never gives up its own, and threads that
    libraries make meanwhile are born with the normal one.
    """

    def work() -> None:
        policy = os.SCHED_IDLE | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(threading.get_native_id(), policy, os.sched_param(0))
        _import_all(names)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class ParentDecides(Exception):  # noqa: N818  # no error: the worker waits for what comes next
    """How to go on is up to the parent, who has been told."""


class Server:
    """A worker, from its start to its end."""

    def __init__(self, channel: Channel, board: Board) -> None:
        self._output = os.dup(1)
        self.post = board.post
        self.circumstances = board.circumstances
        self._pipe = channel.fileno()
        self.send = channel.send
        self._receive = channel.receive
        self._kind: DeviceKind | None = None
        self._device_id = ""
        self._device: Device | None = None
        self._bench: Any = None
        self._finals: Finals | None = None
        self._surroundings: Any = None
        self._logbook: Logbook | None = None
        self._tasks: list[MpTunerTask] = []
        self._unloaded: dict[int, bytes | Unsendable] = {}
        self._compile_book: GroupBook | None = None

    def serve(self) -> None:
        surroundings, hello = self._receive()
        adopt(surroundings)
        started = time.monotonic()
        self._kind = load_kind(hello.kind)
        if hello.device is not None:
            self._kind.prepare_process(hello.device)
        with uncollected():
            if hello.background:
                _import_in_background(hello.preload)
            else:
                _import_all(hello.preload)
        self._printed()  # what imports had to say concerns no candidate
        self.send(Ready(time.monotonic() - started))
        handlers: dict[type, Callable[[Any], None]] = {
            Adopt: self._adopt,
            Bind: self._bind,
            Open: self._open,
            Go: self._go,
            Close: self._close,
        }
        while True:
            for message in self._receive():
                handlers[type(message)](message)

    def _adopt(self, message: Adopt) -> None:
        adopt(message)
        if self._surroundings is not None:
            self._surroundings.close()
            self._surroundings = None

    def _captured_surroundings(self) -> Any:
        """What candidates are to find, as it was when the parent last told; looked at before any of them runs."""
        from aiter_tuning.measure.surroundings import Surroundings

        if self._surroundings is None:
            self._surroundings = Surroundings.capture()
        return self._surroundings

    def _bind(self, message: Bind) -> None:
        assert self._kind is not None
        started = time.monotonic()
        try:
            uuid = self._kind.bind(message.device)
            self._kind.probe()
        except Exception as error:
            self.send(BindFailed(describe(error)))
            return
        self._device_id = uuid
        self._device = message.device
        self.send(Bound(uuid, time.monotonic() - started))

    def _open(self, message: Open) -> None:
        self.post(OPENING)
        self._close(None)
        assert self._kind is not None
        assert self._device is not None
        try:
            from aiter_tuning.measure.contest import ContestBench
            from aiter_tuning.measure.group import GroupBench

            payload: GroupPayload = pickle.loads(message.payload)
            self._unloaded = {i: task for i, task in enumerate(payload.tasks) if isinstance(task, bytes | Unsendable)}
            self._tasks = [_NO_TASK if i in self._unloaded else MpTunerTask(*t) for i, t in enumerate(payload.tasks)]
            self._logbook = payload.logbook
            self._compile_book = payload.slots.open() if payload.slots is not None else None
            contest = payload.contest.on(self._device_id) if payload.contest is not None else None
            new_bench = GroupBench if contest is None else partial(ContestBench, contest)
            self._bench = new_bench(
                self._tasks,
                payload.inputs_ids,
                payload.reference_ids,
                payload.data,
                payload.plan,
                self._kind,
                self._device.torch_device,
                on=self._device,
                device_id=self._device_id,
                surroundings=self._captured_surroundings(),
            )
            if contest is not None:
                self._finals = Finals(self, self._bench, contest, self._logbook)
        except Exception as error:
            self._bench = None
            self.send(OpenFailed(message.group, describe(error)))

    def _close(self, message: Close | None) -> None:
        bench, self._bench, self._finals = self._bench, None, None
        if bench is not None:
            bench.close()
        book, self._compile_book = self._compile_book, None
        if book is not None:
            book.close()

    def _go(self, message: Go) -> None:
        if self._bench is None:  # OpenFailed is under way and has settled the group
            return
        try:
            if self._finals is not None:
                self._finals.go(message.candidates)
            else:
                self._measure_all(message)
        except ParentDecides:
            pass
        except LogbookError as error:
            self.send(LogFailed(error.errno or 0, str(error.strerror)))

    def _measure_all(self, message: Go) -> None:
        leader_us = message.leader_us
        for index, attempt in message.candidates:
            measurement = self._measure(index, attempt, leader_us)
            if measurement.status is Status.ok and not measurement.censored:
                leader_us = min(leader_us, measurement.us)

    def _measure(self, index: int, attempt: int, leader_us: float) -> Measurement:
        said = self.prepare(index, attempt)
        if said is not None:
            return self.conclude(index, said, None)
        self.post(COMPILING, index)
        before = self.circumstances()
        measurement, fault = self._bench.measure(index, lambda: self.post(MEASURING, index), leader_us)
        flags = flags_between(before, self.circumstances())
        if flags or attempt != 1:
            measurement = replace(measurement, attempt=attempt, flags=measurement.flags + flags)
        return self.conclude(index, measurement, fault)

    def prepare(self, index: int, attempt: int) -> Measurement | None:
        """All that comes before a candidate's first call; its verdict if it does not come to that.

        Raises:
            ParentDecides: its inputs or reference cannot be made, which concerns others too.
        """
        phase = "inputs"

        def announce(name: str) -> None:
            nonlocal phase
            phase = name
            self.post(INPUTS if name == "inputs" else REFERENCE, index)

        if self._logbook is not None:
            self.written(self._logbook.started, index, attempt)
        said = self._compile_book.take(index) if self._compile_book is not None else None
        if said is not None:  # the compiler has spoken already; asking it again could cost this process
            return replace(said, attempt=attempt, device=self._device_id)
        if index in self._unloaded:
            self.post(COMPILING, index)
            failure = self._load(index)
            if failure:
                return Measurement.failed(Status.crash, failure, us=UNMEASURED_US)
        unprepared: Measurement | None = self._bench.prepare(index, announce)
        if unprepared is not None:
            leaving = self._bench.fault is not None
            self.send(Unprepared(index, phase, _of_attempt(unprepared, attempt), leaving))
            self.leave_if(leaving)
            raise ParentDecides
        return None

    def _load(self, index: int) -> str:
        """Loads a task that travelled apart from the others; why it cannot be, if it cannot."""
        packed = self._unloaded[index]
        if isinstance(packed, Unsendable):
            return f"it cannot be sent to a worker: {packed.detail}"
        try:
            self._tasks[index] = MpTunerTask(*pickle.loads(packed))
        except BaseException as error:  # whatever the user's module or object raises
            return f"it cannot be loaded in a worker: {describe(error)}"
        del self._unloaded[index]
        return ""

    def conclude(self, index: int, measurement: Measurement, fault: BaseException | None) -> Measurement:
        """Writes and tells the verdict, and returns it.

        Raises:
            ParentDecides: how to go on is up to the parent.
        """
        final = fault is None and not measurement.may_be_the_process
        if final and self._logbook is not None and measurement.status.is_terminal:
            self.leave_unless_heard()  # a verdict on file that the parent never hears of would be a second one
            self.written(self._logbook.finished, index, measurement)
        self.send((index, measurement.packed(), fault is not None, self._printed()))
        self.leave_if(fault is not None or bool(self._bench.unclean))
        if not final:
            raise ParentDecides
        return measurement

    def leave_unless_heard(self) -> None:
        """Ends the process if the pipe is gone: a candidate may have closed every descriptor."""
        self.leave_if(not self._can_answer())

    def _can_answer(self) -> bool:
        try:
            os.fstat(self._pipe)
        except OSError:
            return False
        return True

    def _printed(self) -> str:
        """What was printed since the last time, and the file is empty again."""
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (ValueError, OSError):
            pass  # one of them was closed; what it held is lost with it
        return take_output(self._output)

    def leave_if(self, leaving: bool) -> None:
        """Ends the process."""
        if leaving:  # every later answer from this process would be a lie, or could be one
            os._exit(0)

    @staticmethod
    def written(write: Callable[..., None], *what: Any) -> None:
        """Lets the logbook write; raises LogbookError when it cannot."""
        try:
            write(*what)
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            raise LogbookError(error.errno, f"{place}could not be written: {error.strerror}") from error


def _of_attempt(measurement: Measurement, attempt: int) -> Measurement:
    return measurement if attempt == 1 else replace(measurement, attempt=attempt)
