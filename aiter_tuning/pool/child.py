"""The worker's side: a server that does what the parent says, one candidate at a time.

::

    main ── death signal, no core dumps ── Adopt, Hello ── imports ── Ready ─▶ wait
      Bind  → take the device, probe it                → Bound | BindFailed
      Open  → Opened; load the group                   → (OpenFailed)
      Go    → Preparing… → Started → FirstCallDone     → Measured | Unprepared
      Close → drop the inputs

Every answer goes out before the step that it announces, so that the parent knows what a worker was doing when it died.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from aiter_tuning.devices.device import DeviceKind, load_kind
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.channel import Channel
from aiter_tuning.pool.messages import (
    Adopt,
    Bind,
    BindFailed,
    Bound,
    Close,
    FirstCallDone,
    Go,
    GroupPayload,
    Measured,
    Open,
    Opened,
    OpenFailed,
    Preparing,
    Ready,
    Started,
    Unprepared,
)
from aiter_tuning.status import describe

_PR_SET_PDEATHSIG = 1
_BACKGROUND_NICE = 10


def main() -> None:
    """Entry point of a worker: ``argv`` is package root, pipe, parent's process id, directory for large messages."""
    pipe, parent, directory = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    _die_with(parent)
    faulthandler.enable()  # a segmentation fault then names the Python line that it happened in
    # The signal is forgotten across fork, so that a candidate's forked children would outlive us.
    os.register_at_fork(after_in_child=_set_death_signal)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = [""]
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed must survive os._exit
    try:
        _Server(Channel(socket.socket(fileno=pipe), directory)).serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone or has closed us
    os._exit(0)


def _set_death_signal() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _die_with(parent: int) -> None:
    _set_death_signal()
    if os.getppid() != parent:  # it died before the signal was set
        os._exit(0)


def adopt(message: Adopt) -> None:
    """Makes the parent's import path, working directory and environment ours."""
    sys.path[:] = message.sys_path
    try:
        os.chdir(message.cwd)
    except OSError as error:
        sys.stderr.write(f"cannot enter {message.cwd}: {error}\n")
    for name in os.environ.keys() - message.environ.keys():
        del os.environ[name]
    for name, value in message.environ.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _import_all(names: tuple[str, ...]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            sys.stderr.write(f"cannot import {name}: {error}\n")


def _import_in_background(names: tuple[str, ...]) -> None:
    """Imports in a thread of low priority, so that a standby takes little from the lane being timed.

    Priorities belong to threads here, and an unprivileged process cannot raise one again: the main thread, which will
    run candidates, never gives up its own.
    """

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND_NICE)
        _import_all(names)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    # Threads that libraries made meanwhile inherited the low priority; root may give it back.
    for task in os.listdir("/proc/self/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(task), 0)
        except (PermissionError, ProcessLookupError):
            return


class _Server:
    def __init__(self, channel: Channel) -> None:
        self._send = channel.send
        self._receive = channel.receive
        self._kind: DeviceKind | None = None
        self._device_id = ""
        self._torch_device = "cpu"
        self._bench: Any = None
        self._surroundings: Any = None

    def serve(self) -> None:
        surroundings, hello = self._receive()
        adopt(surroundings)
        started = time.monotonic()
        self._kind = load_kind(hello.kind)
        if hello.device is not None:
            self._kind.prepare_process(hello.device)
        if hello.background:
            _import_in_background(hello.preload)
        else:
            _import_all(hello.preload)
        gc.collect()
        gc.freeze()  # a full collection over torch's modules costs 0.1 s each time; frozen they are not looked at
        self._send(Ready(time.monotonic() - started))
        handlers: dict[type, Callable[[Any], None]] = {
            Adopt: adopt,
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
            self._send(BindFailed(describe(error)))
            return
        self._device_id = uuid
        self._torch_device = message.device.torch_device
        self._send(Bound(uuid, time.monotonic() - started))

    def _open(self, message: Open) -> None:
        self._send(Opened(message.group))
        self._close(None)
        assert self._kind is not None
        try:
            from aiter_tuning.measure.group import GroupBench

            payload: GroupPayload = pickle.loads(message.payload)
            self._bench = GroupBench(
                payload.tasks,
                payload.inputs_ids,
                payload.reference_ids,
                payload.data,
                payload.plan,
                self._kind,
                self._torch_device,
                device_id=self._device_id,
                surroundings=self._captured_surroundings(),
            )
        except Exception as error:
            self._bench = None
            self._send(OpenFailed(message.group, describe(error)))

    def _close(self, message: Close | None) -> None:
        bench, self._bench = self._bench, None
        if bench is not None:
            bench.close()

    def _go(self, message: Go) -> None:
        bench, index = self._bench, message.candidate
        if bench is None:  # OpenFailed is under way and has settled the group
            return
        phase = "inputs"

        def announce(name: str) -> None:
            nonlocal phase
            phase = name
            self._send(Preparing(index, name))

        def first_call_done() -> None:
            if message.announce_first_call:
                self._send(FirstCallDone(index))

        unprepared: Measurement | None = bench.prepare(index, announce)
        if unprepared is not None:
            leaving = bench.fault is not None
            self._send(Unprepared(index, phase, self._signed(unprepared, message), leaving))
            self._leave_if(leaving)
            return
        self._send(Started(index))
        measurement, fault = bench.measure(index, first_call_done, message.leader_us)
        self._send(Measured(index, self._signed(measurement, message), fault is not None))
        self._leave_if(fault is not None)

    @staticmethod
    def _signed(measurement: Measurement, message: Go) -> Measurement:
        return measurement if message.attempt == 1 else replace(measurement, attempt=message.attempt)

    def _leave_if(self, leaving: bool) -> None:
        if leaving:  # every later answer from this context would be a lie
            os._exit(0)
