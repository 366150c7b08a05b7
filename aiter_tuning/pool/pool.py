"""The pool: lanes, their workers and standbys, kept open over any number of runs."""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from aiter_tuning.devices.device import Device
from aiter_tuning.devices.discovery import DeviceRequest, discover
from aiter_tuning.devices.monitor import Monitor
from aiter_tuning.pool.board import STANDBY, bits_of
from aiter_tuning.pool.lane import KILL_PATIENCE_S, MOST_FAILED_STARTS, Lane
from aiter_tuning.pool.ledger import OnFault
from aiter_tuning.pool.messages import Bind, Hello
from aiter_tuning.pool.precompiler import Precompiler
from aiter_tuning.pool.process import WorkerProcess, surroundings
from aiter_tuning.pool.watcher import NO_CLOCKS, Clocks, RunOutcome, Watcher
from aiter_tuning.task import Group

DEFAULT_STARTUP_TIMEOUT_S = 120.0

_open_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


class Pool:
    """One worker process per device, with a standby behind each.

    Workers start at once, in the background; :meth:`run` waits for those it needs. A context manager; closed at
    interpreter exit at the latest.

    Args:
        devices: None: all visible GPUs, else one CPU lane; ``"cpu"``, ``"cuda"``, ``"hip"``; indices, UUIDs, or
            :class:`~aiter_tuning.devices.device.Device` objects.
        mp_num: how many lanes; under 1: all GPUs, or one CPU lane of all physical cores.
        startup_timeout: seconds that a worker may take to import torch, and again to take its device.
        preload: modules that workers import before they are needed.
        standbys: whether a second process waits behind each lane, its imports done, for the first to die. Without
            them there are half as many processes, and a death costs an import of torch.

    Raises:
        NoDeviceError: there is no such device.
        ValueError: an argument means nothing.
    """

    def __init__(
        self,
        devices: DeviceRequest = None,
        mp_num: int = 0,
        startup_timeout: float = DEFAULT_STARTUP_TIMEOUT_S,
        preload: Sequence[str] = ("torch",),
        *,
        standbys: bool = True,
    ) -> None:
        if startup_timeout <= 0:
            raise ValueError(f"startup_timeout must be above 0 seconds, not {startup_timeout}")
        self.devices: tuple[Device, ...] = discover(devices, mp_num)
        self.startup_timeout_s = startup_timeout
        self.lanes = [Lane(device) for device in self.devices]
        self.directory = tempfile.mkdtemp(prefix="aiter_tuning.")
        self.selector = selectors.DefaultSelector()
        self._preload = tuple(preload)
        self._wants_standbys = standbys
        self._standbys: dict[str, WorkerProcess] = {}
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aiter_tuning.spawner")
        self._in_use = threading.Lock()
        self._owner = os.getpid()
        self._closed = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.selector.register(self._wake_read, selectors.EVENT_READ, None)
        self.stop_requested = False
        self.monitor = Monitor(self.devices)
        _open_pools.add(self)
        try:
            self.monitor.start()
            for lane in self.lanes:
                self.start_lane(lane)
        except BaseException:
            self.close()
            raise

    # What a caller uses

    def run(
        self,
        groups: Sequence[Group],
        plan: Any,
        clocks: Clocks = NO_CLOCKS,
        *,
        on_fault: OnFault = "abandon",
        retries: int = 0,
        watcher: Watcher | None = None,
        budget_s: float | None = None,
        quiet_start: bool = False,
        precompile: bool = False,
    ) -> RunOutcome:
        """Measures every candidate of every group; verdicts go to the ``watcher``, each exactly once.

        A list or tuple of groups is worked off with the costliest first; any other sequence in its own order, one
        group in memory per lane.

        Args:
            groups: the work.
            plan: the :class:`~aiter_tuning.measure.plan.MeasurePlan` for all of it.
            clocks: seconds after which something is killed.
            on_fault: ``"abandon"`` the rest of a group at a fault, or ``"continue"`` with it on a fresh worker.
            retries: how often a candidate that killed its worker is tried again.
            watcher: sees the run; an exception it raises ends the run and is passed on.
            budget_s: seconds after which the run ends with what it has.
            quiet_start: whether to wait, ten seconds at most, until standbys have done their imports on the cores that
                are measured on.
            precompile: whether spare cores compile coming candidates meanwhile: only where their functions may be
                called on meta tensors. It changes no result.

        Raises:
            RuntimeError: the pool is closed, or busy with another run.
        """
        from aiter_tuning.pool.run import Run

        if self._closed:
            raise RuntimeError("this pool is closed")
        if not self._in_use.acquire(blocking=False):
            raise RuntimeError("this pool is busy with another run; use one pool for each thread")
        try:
            return Run(
                self, groups, plan, clocks, on_fault, retries, watcher or Watcher(), budget_s, quiet_start, precompile
            ).loop()
        finally:
            self.stop_requested = False
            self._in_use.release()

    @property
    def standbys_ready(self) -> bool:
        """Whether a standby that has finished its imports stands behind every lane, as far as the last run saw."""
        keys = {self._standby_key(lane) for lane in self.lanes if not lane.retired}
        return all(key in self._standbys and self._standbys[key].ready for key in keys)

    def request_stop(self) -> None:
        """Ends the current run: nothing more is handed out, what is running is killed. From any thread or handler."""
        self.stop_requested = True
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def close(self) -> None:
        """Ends every process of the pool. Safe to call twice."""
        if self._closed or os.getpid() != self._owner:  # a forked copy must not end the owner's workers
            return
        self._closed = True
        _open_pools.discard(self)
        self.monitor.close()
        workers = [lane.worker for lane in self.lanes if lane.worker is not None] + list(self._standbys.values())
        for worker in workers:
            worker.kill()
        deadline = time.monotonic() + KILL_PATIENCE_S
        for worker in workers:
            worker.reap(max(0.0, deadline - time.monotonic()))
            worker.close()
        self._standbys.clear()
        self._spawner.shutdown(wait=True)
        self.selector.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What the loop uses

    def start_lane(self, lane: Lane) -> None:
        """Gives the lane its standby, or a new process, and lets it take the device."""
        worker = self._take_standby(lane) or self._spawn(lane, background=False)
        lane.worker = worker
        left_s = self.startup_timeout_s - (time.monotonic() - worker.started_at)
        # A standby that has used up its time at a low priority gets a second more, unless less was asked for.
        lane.enter("starting", "start-up", max(left_s, min(1.0, self.startup_timeout_s)))
        if worker.ready:
            self.bind(lane)

    def _take_standby(self, lane: Lane) -> WorkerProcess | None:
        """The lane's standby, unless it still imports at a low priority that cannot be raised."""
        key = self._standby_key(lane)
        standby = self._standbys.get(key)
        if standby is None or not (standby.ready or standby.hurry()):
            return None
        del self._standbys[key]
        return standby

    def precompiler(self, groups: Sequence[Group]) -> Precompiler:
        """What compiles the groups' candidates ahead; the run that it is for closes it."""
        return Precompiler(groups, self.devices, self._spawner, self.directory)

    def bind(self, lane: Lane) -> None:
        """The worker has imported everything; now it takes the device."""
        assert lane.worker is not None
        lane.enter("binding", "start-up", self.startup_timeout_s)
        self.adopt(lane)
        lane.worker.send(Bind(lane.device))

    def adopt(self, lane: Lane) -> None:
        """Tells the lane's worker what the parent's surroundings are, if they changed since it was told."""
        assert lane.worker is not None
        now = surroundings(lane.kind.exec_environment(lane.device))
        if now != lane.worker.adopted:
            lane.worker.adopted = now
            lane.worker.send(now)

    def ensure_standby(self, lane: Lane, *, background: bool) -> None:
        """Starts a standby behind the lane where there is none, ``background`` if the lane measures meanwhile."""
        key = self._standby_key(lane)
        if self._wants_standbys and key not in self._standbys:
            self._standbys[key] = self._spawn(lane, background=background)
            self.post_circumstances()

    def post_circumstances(self) -> None:
        """Lets every worker know what else goes on around its lane."""
        workers = [(lane, lane.worker) for lane in self.lanes if lane.worker is not None]
        self.monitor.know((lane.device.uuid, worker.pid) for lane, worker in workers)
        for lane, worker in workers:
            standby = STANDBY if self.standby_starting(lane) else 0
            worker.board.surround(standby | bits_of(self.monitor.flags(lane.device)))

    def standby_starting(self, lane: Lane) -> bool:
        """Whether a standby is importing on cores that the lane measures on; a GPU's timings do not mind."""
        if lane.device.torch_device != "cpu":
            return False
        return any(
            not standby.ready
            and (not standby.cores or not lane.device.cores or set(standby.cores) & set(lane.device.cores))
            for standby in self._standbys.values()
        )

    def lane_of(self, worker: WorkerProcess) -> Lane | None:
        """The lane that the worker serves; None for a standby."""
        for lane in self.lanes:
            if lane.worker is worker:
                return lane
        return None

    def drop_standby(self, worker: WorkerProcess) -> None:
        """Forgets a standby that died."""
        self._standbys = {key: standby for key, standby in self._standbys.items() if standby is not worker}
        self.release(worker)

    def release(self, worker: WorkerProcess) -> None:
        """Stops listening to a worker that is dead or given up."""
        for fd in (worker.channel.fileno(), worker.sentinel):
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(fd)
        worker.close()

    def drain_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def failed_start(self, lane: Lane, reason: str) -> None:
        """Counts a start that failed."""
        lane.failed_starts += 1
        lane.last_failure = reason

    def out_of_starts(self, lane: Lane) -> bool:
        """Whether the lane has had its last chance."""
        return lane.failed_starts >= MOST_FAILED_STARTS

    def _standby_key(self, lane: Lane) -> str:
        """Lanes with equal keys share a standby: all lanes of a kind that is bound late, else each its own."""
        return lane.name if lane.kind.bound_at_exec else lane.device.kind

    def _spawn(self, lane: Lane, *, background: bool) -> WorkerProcess:
        device = lane.device if lane.kind.bound_at_exec else None
        environment = lane.kind.exec_environment(lane.device) if device is not None else {}
        hello = Hello(device, lane.device.kind, self._preload, background)
        worker = WorkerProcess(hello, environment, self._spawner, self.directory)
        worker.cores = lane.device.cores if device is not None else ()
        for fd, what in ((worker.channel, "message"), (worker.sentinel, "death")):
            self.selector.register(fd, selectors.EVENT_READ, (worker, what))
        return worker


@atexit.register
def _close_open_pools() -> None:
    for pool in tuple(_open_pools):
        pool.close()
