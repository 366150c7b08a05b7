"""One worker process as the parent sees it: how it is started, heard, and ended.

The interpreter starts from an entry point of ours (never from the user's script), in a session of its own, with the
lane's environment already there at exec. Three descriptors lead back: the private pipe (results), a file that takes
whatever candidates print, and the sentinel, readable when the process is gone.

Ending means everything it started as well. Children in its process group go by ``killpg``; children that made a group
or session of their own are found through ``psutil`` while the worker lives, and once it is dead (its children belong
to init by then) by a token that every descendant carries in its environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from aiter_tuning.pool.board import Board
from aiter_tuning.pool.channel import Channel
from aiter_tuning.pool.messages import TOKEN_VARIABLE, Adopt, Hello
from aiter_tuning.pool.output import read_output

_MOST_OUTPUT_BYTES = 64 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from aiter_tuning.pool.child import main; main()"

_serial = count()


def surroundings(lane_environment: Mapping[str, str]) -> Adopt:
    """What the parent's code sees around it now, with the lane's own variables."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:  # a deleted working directory is the parent's own trouble, not a reason to fail here
        cwd = "/"
    return Adopt(tuple(sys.path), cwd, {**os.environ, **lane_environment})


def describe_exit(returncode: int | None) -> str:
    """``exited with code 7`` or ``was killed by signal 11 (SIGSEGV)``."""
    if returncode is None:
        return "is gone"
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"was killed by signal {-returncode}"


class WorkerProcess:
    """A started worker. All methods return at once, except :meth:`reap`."""

    def __init__(self, hello: Hello, environment: Mapping[str, str], spawner: Executor, directory: str) -> None:
        self.started_at = time.monotonic()
        self.token = f"{os.getpid()}.{next(_serial)}.{self.started_at:.6f}"
        self.ready = False
        self.cores: tuple[int, ...] = ()
        """Host cores it is bound to; empty: any."""
        self.adopted: Adopt
        """What it was told of the parent's surroundings."""
        self.bound_bytes: int | None = None
        """Its resident memory when it had taken its device."""
        self.worked = False
        """Whether it was sent a group that any worker may carry out; see ``Group.fresh``."""
        self.mute = False
        """Its pipe is closed; nothing more will come."""
        self.killed_here = False
        self._directory = directory
        channel, theirs = Channel.pair(directory)
        self.board, board_fd = Board.create()
        output = _output_file(directory)
        try:
            # PR_SET_PDEATHSIG fires when the *thread* that created a process ends, so one long-lived thread makes all.
            self._popen = spawner.submit(self._start, theirs.fileno(), board_fd, output, environment).result()
        except BaseException:
            channel.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(board_fd)
        self.channel = channel
        self._output_fd = output
        self.sentinel = _sentinel(self._popen.pid)
        self._returncode: int | None = None
        self.adopted = surroundings(environment)
        self.send(self.adopted, hello)

    def _start(self, pipe: int, board: int, output: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        arguments = (_PACKAGE_ROOT, str(pipe), str(board), str(os.getpid()), self._directory)
        return subprocess.Popen(
            [sys.executable, *interpreter_flags(), "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment, TOKEN_VARIABLE: self.token},
            pass_fds=(pipe, board),
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the signal's negative; None before :meth:`reap`."""
        return self._returncode

    def send(self, *messages: Any) -> None:
        """Hands messages over. To a dead process nothing is sent; its sentinel tells that it is dead."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.channel.send(*messages)

    def has_message(self) -> bool:
        """Whether it said something that was not read yet."""
        return not self.mute and self.channel.has_message()

    def resident_bytes(self) -> int:
        """Its resident memory; 0 once it is gone."""
        try:
            with open(f"/proc/{self.pid}/statm", "rb") as file:
                return int(file.read().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError, ValueError):
            return 0

    def last_output(self) -> str:
        """The end of what was printed since the worker last told."""
        return read_output(self._output_fd)

    def bound_output(self) -> None:
        """Forgets what was printed where it has become too much: a candidate may print for ever."""
        if os.fstat(self._output_fd).st_size > _MOST_OUTPUT_BYTES:
            os.ftruncate(self._output_fd, 0)

    def hurry(self) -> bool:
        """Lets a standby that is still importing have the processor like any other; False where that is not allowed."""
        try:
            for task in os.listdir(f"/proc/{self.pid}/task"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(task), os.SCHED_OTHER, os.sched_param(0))
        except (PermissionError, FileNotFoundError):
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the worker, its process group and every descendant. Returns without waiting."""
        self.killed_here = True
        if self._returncode is not None:
            return
        descendants: Sequence[psutil.Process] = ()
        with contextlib.suppress(psutil.Error):
            descendants = psutil.Process(self.pid).children(recursive=True)
        self._kill_group()
        for process in descendants:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _kill_group(self) -> None:
        # Only before the worker is reaped: as a zombie it keeps its number, and so its group's, from being reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self, timeout_s: float | None = None) -> int | None:
        """Collects the exit code once the sentinel has fired, and ends what the worker left behind."""
        if self._returncode is None:
            self._kill_group()
            try:
                self._returncode = self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None
            kill_by_token(self.token)
        return self._returncode

    def close(self) -> None:
        """Closes the descriptors. The process must be reaped or given up."""
        self.channel.close()
        self.board.close()
        for fd in (self._output_fd, self.sentinel):
            with contextlib.suppress(OSError):
                os.close(fd)


def _output_file(directory: str) -> int:
    """A nameless file for a worker's stdout and stderr: writing to it never blocks, and it outlives the worker."""
    path = f"{directory}/output-{next(_serial)}"
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd


def interpreter_flags() -> list[str]:
    # What multiprocessing itself starts its spawned interpreters with; there is no public name for it.
    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


def _sentinel(pid: int) -> int:
    """A descriptor that becomes readable when the process has ended."""
    return os.pidfd_open(pid)


def kill_by_token(token: str) -> None:
    """Ends every process whose environment carries the token, whatever session it moved to."""
    needle = f"{TOKEN_VARIABLE}={token}\0".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                found = needle in file.read()
        except OSError:
            continue
        if found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)
