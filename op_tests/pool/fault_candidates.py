"""Candidates that misbehave for real, and the table of what each deserves. Workers import this module by name."""

import contextlib
import ctypes
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

from aiter_tuning.task import MpTunerTask

SIZE = 64


def make_inputs(seed, device=None):
    import torch

    torch.manual_seed(seed)
    return {"x": torch.randn(SIZE, device=device), "y": torch.empty(SIZE, device=device)}


def reference(x):
    return x * 2


def write_result(x, y):
    y.copy_(x * 2)
    return y


# Good ones


def right(x, y):
    return write_result(x, y)


def right_and_counted(x, y, file):
    with open(file, "a") as log:
        log.write("x")
    return write_result(x, y)


# Exceptions


def raises(x, y):
    raise RuntimeError("it broke")


def raises_value_error(x, y):
    raise ValueError("BLOCK_M must be 64")


def raises_not_implemented(x, y):
    raise NotImplementedError


def raises_key_error(x, y):
    raise KeyError("x")


def raises_out_of_memory(x, y):
    raise MemoryError("out of memory on purpose")


def raises_illegal_access(x, y):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def raises_system_exit(x, y):
    sys.exit(3)


def raises_keyboard_interrupt(x, y):
    raise KeyboardInterrupt


def recurses(x, y):
    return recurses(x, y)


class UnpicklableError(Exception):
    def __init__(self, a, b):
        super().__init__(a)
        self.lock = open(os.devnull)  # noqa: SIM115 - what cannot be pickled is the point


def raises_unpicklable(x, y):
    raise UnpicklableError("no pickle", 2)


# Deaths


def exits(x, y):
    os._exit(7)


def exits_quietly(x, y):
    os._exit(0)


def segfaults(x, y):
    ctypes.string_at(0)


def aborts(x, y):
    print("about to abort", flush=True)
    os.abort()


def kills_itself(x, y):
    os.kill(os.getpid(), signal.SIGKILL)


def closes_every_descriptor(x, y):
    os.closerange(3, 1024)
    time.sleep(3600)


# Hangs


def loops_for_ever(x, y):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def holds_the_gil(x, y):
    ctypes.PyDLL(None).sleep(3600)


def stops_itself(x, y):
    os.kill(os.getpid(), signal.SIGSTOP)


# Mess that neighbours must not notice


def forks(x, y):
    if os.fork() == 0:
        time.sleep(3600)
    return write_result(x, y)


def forks_a_session(x, y):
    if os.fork() == 0:
        os.setsid()
        time.sleep(3600)
    return write_result(x, y)


def forks_a_session_and_exits(x, y):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os._exit(9)


def starts_a_program(x, y):
    import subprocess

    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    return write_result(x, y)


def prints_ten_megabytes(x, y):
    print("z" * 10_000_000)
    return write_result(x, y)


def closes_stdout(x, y):
    with contextlib.suppress(OSError):
        sys.stdout.close()
        os.close(1)
        os.close(2)
    return write_result(x, y)


def changes_surroundings(x, y):
    import torch

    os.chdir("/")
    os.environ["OMP_NUM_THREADS"] = "99"
    os.environ["LEFT_BEHIND"] = "1"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    return write_result(x, y)


def lowers_limits(x, y):
    import resource

    os.nice(5)
    os.umask(0o777)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    return write_result(x, y)


def raises_ten_megabytes(x, y):
    raise RuntimeError("y" * 10_000_000)


def notices_surroundings(x, y, cwd):
    import resource

    import torch

    assert os.getpriority(os.PRIO_PROCESS, 0) == 0
    assert os.umask(0o022) != 0o777
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10

    assert os.getcwd() == cwd, os.getcwd()
    assert os.environ.get("OMP_NUM_THREADS") != "99"
    assert "LEFT_BEHIND" not in os.environ
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert torch.get_default_dtype() is torch.float32
    print("stdout works")
    sys.stderr.write("stderr works\n")
    return write_result(x, y)


# Results


def returns_unpicklable(x, y):
    write_result(x, y)
    return [y, lambda: 1]


def returns_a_gigabyte(x, y):
    import torch

    return [write_result(x, y), torch.empty(1 << 28)]


def eats_memory(x, y):
    import torch

    hoard = []
    while True:
        hoard.append(torch.empty(64 << 20))


def returns_none(x, y):
    return None


def returns_nan(x, y):
    return y.fill_(math.nan)


def returns_another_shape(x, y):
    return (x * 2)[: SIZE // 2]


def returns_another_dtype(x, y):
    return (x * 2).double()


def writes_half(x, y):
    y[: SIZE // 2] = x[: SIZE // 2] * 2
    return y


def writes_its_inputs(x, y):
    y.copy_(x * 2)
    x.zero_()
    return y


class Fault(NamedTuple):
    """A candidate and what it deserves."""

    name: str
    func: object
    status: str
    us: float | None
    """None: measured."""
    detail: str
    """What the detail has to mention."""
    is_fault: bool
    """Whether it costs the rest of its group in ``abandon``."""


def _row(func, status, us, detail, is_fault=False):
    return Fault(func.__name__, func, status, us, detail, is_fault)


INF = math.inf

FAULTS = [
    _row(raises, "crash", -1, "RuntimeError: it broke"),
    _row(raises_value_error, "unsupported", -1, "BLOCK_M must be 64"),
    _row(raises_not_implemented, "unsupported", -1, "NotImplementedError"),
    _row(raises_key_error, "crash", -1, "KeyError"),
    _row(raises_out_of_memory, "oom_runtime", -1, "MemoryError"),
    _row(raises_illegal_access, "crash", INF, "illegal memory access", True),
    _row(raises_system_exit, "crash", -1, "SystemExit"),
    _row(raises_keyboard_interrupt, "crash", -1, "KeyboardInterrupt"),
    _row(recurses, "crash", -1, "RecursionError"),
    _row(raises_unpicklable, "crash", -1, "UnpicklableError: no pickle"),
    _row(exits, "crash", INF, "exited with code 7", True),
    _row(exits_quietly, "crash", INF, "exited with code 0", True),
    _row(segfaults, "crash", INF, "signal 11 (SIGSEGV)", True),
    _row(aborts, "crash", INF, "signal 6 (SIGABRT)", True),
    _row(kills_itself, "crash", INF, "signal 9 (SIGKILL)", True),
    _row(closes_every_descriptor, "crash", INF, "closed its result pipe", True),
    _row(loops_for_ever, "timeout", INF, "candidate clock", True),
    _row(holds_the_gil, "timeout", INF, "candidate clock", True),
    _row(stops_itself, "timeout", INF, "candidate clock", True),
    _row(forks, "ok", None, ""),
    _row(forks_a_session, "ok", None, ""),
    _row(forks_a_session_and_exits, "crash", INF, "exited with code 9", True),
    _row(starts_a_program, "ok", None, ""),
    _row(prints_ten_megabytes, "ok", None, ""),
    _row(closes_stdout, "ok", None, ""),
    _row(changes_surroundings, "ok", None, ""),
    _row(lowers_limits, "ok", None, ""),
    _row(raises_ten_megabytes, "crash", -1, "RuntimeError: yyy"),
    _row(returns_unpicklable, "ok", None, ""),
    _row(returns_a_gigabyte, "ok", None, ""),
    _row(eats_memory, "oom_runtime", -1, "allocate memory"),
    _row(returns_none, "mismatch", None, ""),
    _row(returns_nan, "mismatch", None, "NaN"),
    _row(returns_another_shape, "mismatch", None, "shape"),
    _row(returns_another_dtype, "ok", None, ""),
    _row(writes_half, "mismatch", None, "50 %"),
    _row(writes_its_inputs, "ok", None, ""),
]


def task(info, func, *extra, keys=("x", "y"), gen=make_inputs, ref=reference, iters=2, seed=0, **tail):
    """A task on the inputs above."""
    kwargs = {"num_warmup": 0, "num_iters": iters}
    tail.setdefault("output_keys", ("y",))
    return MpTunerTask(info, gen, (seed,), func, (list(keys), *extra), kwargs, ref, (["x"],), {}, None, **tail)


# Inputs and references that fail


def inputs_raise(seed, device=None):
    raise RuntimeError("no inputs today")


def inputs_run_out_of_memory(seed, device=None):
    raise MemoryError("too large")


def inputs_die(seed, device=None):
    os._exit(5)


def inputs_hang(seed, device=None):
    while True:
        pass


def inputs_are_counted(seed, file, device=None):
    with open(file, "a") as log:
        log.write("i")
    return make_inputs(seed, device)


def inputs_count_and_die(file, device=None):
    with open(file, "a") as log:
        log.write("i")
    os._exit(5)


def reference_raises(x):
    raise RuntimeError("no reference today")


def reference_dies(x):
    os._exit(6)


def reference_hangs(x):
    while True:
        pass


# Rendezvous with a test


def announces_and_waits(x, y, file):
    """Says which process it is in, the first time only, and waits to be killed."""
    path = Path(file)
    if not path.exists():
        path.with_suffix(".tmp").write_text(str(os.getpid()))
        path.with_suffix(".tmp").rename(path)
        time.sleep(3600)
    return write_result(x, y)


def waits_for(x, y, file):
    """Waits until there is such a file."""
    while not os.path.exists(file):
        time.sleep(0.001)
    return write_result(x, y)


def fails_first(x, y, file):
    """Dies the first time it is called, in whatever process."""
    path = Path(file)
    if not path.exists():
        path.write_text("")
        os._exit(7)
    return write_result(x, y)


def is_reset_first(x, y, file):
    """Ends as ROCm ends every process on a GPU that the driver has reset."""
    path = Path(file)
    with path.open("a") as log:
        log.write("x")
    if len(path.read_text()) == 1:
        os.write(2, b"HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang\n")
        os.abort()
    return write_result(x, y)


def is_always_reset(x, y):
    os.write(2, b"HW Exception by GPU node-1 (Agent handle: 0x12e78350) reason :GPU Hang\n")
    os.abort()


def runs_out_of_memory_first(x, y, file):
    path = Path(file)
    if not path.exists():
        path.write_text("")
        raise MemoryError("out of memory, this once")
    return write_result(x, y)


def counts_and_runs_out_of_memory(x, y, file):
    with open(file, "a") as log:
        log.write("x")
    raise MemoryError("out of memory every time")


def tells_its_limits(x, y, file):
    Path(file).write_text(Path("/proc/self/limits").read_text())
    return write_result(x, y)


def tells_its_process(x, y, file):
    with open(file, "a") as log:
        log.write(f"{os.getpid()}\n")
    return write_result(x, y)


def sleeps(x, y, seconds):
    time.sleep(seconds)
    return write_result(x, y)
