"""What a candidate may disturb and its neighbours must not notice.

Candidates share a process. One that changes the working directory, closes stdout, leaves a default dtype, an alarm or
an affinity behind would change what the next ones measure. The surroundings are captured once, before anything of the
user's runs, and compared after each candidate; putting back is rare, looking has to be cheap.
"""

from __future__ import annotations

# signal.getsignal turns each answer into an enum and costs ten times as much as the module beneath it.
import _signal  # type: ignore[import-not-found]  # typeshed leaves it out
import contextlib
import gc
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

_SIGNALS = tuple(
    int(getattr(signal, name))
    for name in (
        *("SIGHUP", "SIGINT", "SIGQUIT", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV"),
        *("SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGCHLD"),
    )
    if hasattr(signal, name)
)
_OUTPUTS = (1, 2)
_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")


def _identity(fd: int) -> tuple[int, int] | None:
    """What an open descriptor refers to; None if it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return (status.st_dev, status.st_ino)


def _directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _environment() -> dict[Any, Any]:
    """The environment as os.environ stores it: comparing that takes 0.3 us, decoding it a hundred times as long."""
    stored: dict[Any, Any] | None = getattr(os.environ, "_data", None)
    return dict(os.environ) if stored is None else stored


def _umask() -> int:
    mask = os.umask(0o022)  # it can only be read by setting it
    os.umask(mask)
    return mask


def _affinity() -> frozenset[int] | set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else frozenset()


def _clocks() -> tuple[object, ...]:
    return tuple(getattr(time, name, None) for name in _CLOCKS)


class _TorchState:
    """Torch's process-wide settings that change results or times."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # A default device is a mode on this stack; asking for the device itself costs fifty times as much.
        self._modes = getattr(torch._C, "_len_torch_function_stack", torch.get_default_device)
        self.seen = self.look()
        self._device = torch.get_default_device()

    def look(self) -> tuple[Any, ...]:
        torch = self._torch
        return (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.is_grad_enabled(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            self._modes(),
        )

    def put_back(self, names: list[str]) -> None:
        torch, now = self._torch, self.look()
        setters: tuple[tuple[str, Callable[[Any], object]], ...] = (
            ("default_dtype", torch.set_default_dtype),
            ("num_threads", torch.set_num_threads),
            ("grad_mode", torch.set_grad_enabled),
            ("matmul_precision", torch.set_float32_matmul_precision),
            ("deterministic", torch.use_deterministic_algorithms),
            # Set to None it leaves the stack; set to what it was it would stay there.
            ("default_device", lambda modes: torch.set_default_device(self._device if modes else None)),
        )
        for (name, setter), was, found in zip(setters, self.seen, now, strict=True):
            if was != found:
                if name != "num_threads":  # which a candidate may well set: it changes nothing for the others once back
                    names.append(name)
                setter(was)


class Surroundings:
    """The state of the process as it was captured."""

    def __init__(self) -> None:
        self._directory = _directory()
        self._environment = dict(_environment())
        self._handlers = tuple(_signal.getsignal(number) for number in _SIGNALS)
        self._timer = signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        self._stdout, self._stderr = sys.stdout, sys.stderr
        self._outputs = tuple(_identity(fd) for fd in _OUTPUTS)
        self._kept = tuple(
            None if identity is None else os.dup(fd) for fd, identity in zip(_OUTPUTS, self._outputs, strict=True)
        )
        self._umask = _umask()
        self._priority = os.getpriority(os.PRIO_PROCESS, 0)
        self._file_size = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._path = list(sys.path)
        self._filters = list(warnings.filters)
        self._affinity = _affinity()
        self._gc = gc.isenabled()
        self._recursion = sys.getrecursionlimit()
        self._clocks = _clocks()
        self._torch: _TorchState | None = None
        self._find_torch()

    @classmethod
    def capture(cls) -> Surroundings:
        """The surroundings as they are now; holds a duplicate of descriptors 1 and 2 until :meth:`close`."""
        return cls()

    def _find_torch(self) -> None:
        torch = sys.modules.get("torch")
        # Half-imported modules are in sys.modules too, hence the second question.
        if torch is not None and hasattr(torch, "get_default_device"):
            self._torch = _TorchState(torch)

    def restore(self) -> tuple[str, ...]:
        """Puts back what differs and returns its names; about 10 us where nothing does.

        Never raises: what cannot be put back (a directory that is gone) is named all the same.
        """
        found: list[str] = []
        if _directory() != self._directory:
            self._try("cwd", found, self._restore_directory)
        if _environment() != self._environment:
            self._try("environ", found, self._restore_environment)
        handlers = tuple(map(_signal.getsignal, _SIGNALS))
        if handlers != self._handlers:
            self._try("signals", found, lambda: self._restore_handlers(handlers))
        if self._timer and signal.getitimer(signal.ITIMER_REAL) != (0.0, 0.0):
            self._try("alarm", found, lambda: signal.setitimer(signal.ITIMER_REAL, 0))
        if tuple(map(_identity, _OUTPUTS)) != self._outputs or _closed(self._stdout) or _closed(self._stderr):
            self._try("output", found, self._restore_outputs)
        if sys.stdout is not self._stdout or sys.stderr is not self._stderr:
            found.append("sys.stdout")
            sys.stdout, sys.stderr = self._stdout, self._stderr
        if _umask() != self._umask:
            self._try("umask", found, lambda: os.umask(self._umask))
        if os.getpriority(os.PRIO_PROCESS, 0) != self._priority:
            self._try("priority", found, lambda: os.setpriority(os.PRIO_PROCESS, 0, self._priority))
        if resource.getrlimit(resource.RLIMIT_FSIZE) != self._file_size:
            self._try("file_size", found, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, self._file_size))
        if sys.path != self._path:
            self._try("sys.path", found, lambda: sys.path.__setitem__(slice(None), self._path))
        if warnings.filters != self._filters:
            self._try("warnings", found, self._restore_filters)
        if _affinity() != self._affinity:
            self._try("affinity", found, lambda: os.sched_setaffinity(0, self._affinity))
        if gc.isenabled() != self._gc:
            self._try("gc", found, gc.enable if self._gc else gc.disable)
        if sys.getrecursionlimit() != self._recursion:
            self._try("recursion_limit", found, lambda: sys.setrecursionlimit(self._recursion))
        if _clocks() != self._clocks:
            found.append("clocks")
            for name, clock in zip(_CLOCKS, self._clocks, strict=True):
                setattr(time, name, clock)
        if self._torch is None:
            self._find_torch()
        elif self._torch.look() != self._torch.seen:
            torch_state = self._torch
            self._try("", found, lambda: torch_state.put_back(found))
        return tuple(found)

    def close(self) -> None:
        """Gives the duplicated descriptors back."""
        for fd in self._kept:
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._kept = tuple(None for _ in self._kept)

    @staticmethod
    def _try(name: str, found: list[str], action: Callable[[], object]) -> None:
        if name:
            found.append(name)
        with contextlib.suppress(Exception):
            action()

    def _restore_directory(self) -> None:
        if self._directory is not None:
            os.chdir(self._directory)

    def _restore_environment(self) -> None:
        # Through os.environ, so that the C library's copy follows.
        now = _environment()
        if now is getattr(os.environ, "_data", None):
            decode = os.environ.decodevalue
            was = {decode(name): decode(value) for name, value in self._environment.items()}
        else:
            was = dict(self._environment)
        for name in [name for name in os.environ if name not in was]:
            del os.environ[name]
        for name, value in was.items():
            if os.environ.get(name) != value:
                os.environ[name] = value

    def _restore_handlers(self, now: tuple[Any, ...]) -> None:
        for number, was, found in zip(_SIGNALS, self._handlers, now, strict=True):
            # None: installed by C code before (faulthandler); Python cannot put that back.
            if was != found and was is not None:
                signal.signal(number, was)

    def _restore_filters(self) -> None:
        warnings.filters[:] = self._filters  # type: ignore[index]  # typeshed promises a Sequence only; it is a list
        for name in ("_filters_mutated_lock_held", "_filters_mutated"):  # its name differs between Python versions
            forget_cached = getattr(warnings, name, None)
            if forget_cached is not None:
                forget_cached()
                break

    def _restore_outputs(self) -> None:
        for fd, was, kept in zip(_OUTPUTS, self._outputs, self._kept, strict=True):
            if was is not None and kept is not None and _identity(fd) != was:
                os.dup2(kept, fd)
        if _closed(self._stdout):
            self._stdout = _reopen(1)
        if _closed(self._stderr):
            self._stderr = _reopen(2)


def _closed(stream: Any) -> bool:
    return stream is not None and bool(getattr(stream, "closed", False))


def _reopen(fd: int) -> Any:
    return open(fd, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
