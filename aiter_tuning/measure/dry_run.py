"""Running a candidate without a device, so that its kernels are in Triton's cache when a lane gets there.

::

    gen_data ──▶ meta tensors ──▶ prepare ──▶ func ──▶ kernel[grid](…)  = JITFunction.run
                                                        │  warm-up: specialise, compile, no launch
                                        stand-in driver ┤  names the target, refuses everything else
                                                        ▼
                                        Triton's cache on disk ─▶ fits the device's limits? else OutOfResources

The keys of the cache depend on the kernel, its specialisation, the target and the environment, and on nothing that only
a device could tell. Only what the compiler itself said becomes a verdict. Everything else that goes wrong (``func``
reads values, asks the driver for something, autotunes) says nothing about the candidate: it compiles in its lane.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from aiter_tuning.measure.candidate import TIMING_KEYWORDS
from aiter_tuning.measure.compile_target import CompileTarget, Limits, misfit
from aiter_tuning.measure.launch_code import build_launcher
from aiter_tuning.measure.meta_inputs import META, make_meta_inputs
from aiter_tuning.measure.steady_keys import hash_callees_first
from aiter_tuning.measurement import UNMEASURED_US, Measurement
from aiter_tuning.status import Status, classify, describe, type_names
from aiter_tuning.task import MpTunerTask

Claim = Callable[[str], AbstractContextManager[bool]]
"""Asked before each compilation with the key of the work: whether it is ours, for as long as the context lasts."""


class RefusedError(AttributeError):
    """A kernel, or what calls it, needs a device; there is none in a dry run.

    An AttributeError, because that is what a driver that lacks something raises.
    """


class CompiledElsewhereError(RuntimeError):
    """Another process is compiling the same kernel."""


class Outcome(StrEnum):
    """What a dry run found out."""

    compiled = "compiled"
    unsupported = "unsupported"
    """The kernel refuses this shape or target, or what it needs does not fit."""
    crash = "crash"
    """The compiler failed."""
    unknown = "unknown"
    """No verdict: the candidate could not be run dry. It compiles in its lane."""
    elsewhere = "elsewhere"
    """No verdict yet: another process is compiling a kernel of this candidate."""


class Kernel(NamedTuple):
    """What the compiler says of one kernel."""

    name: str
    hash: str
    """Its directory in Triton's cache is named after it."""
    shared_bytes: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class DryRun:
    """One candidate's dry run."""

    outcome: Outcome
    detail: str = ""
    kernels: tuple[Kernel, ...] = ()
    """Those that it came to, in order."""
    compilations: int = 0
    """How many of them were neither in memory nor on disk."""
    seconds: float = 0.0

    def measurement(self) -> Measurement | None:
        """The candidate's verdict, if this is one."""
        if self.outcome is Outcome.unsupported:
            return Measurement.failed(Status.unsupported, self.detail)
        if self.outcome is Outcome.crash:
            return Measurement.failed(Status.crash, self.detail, us=UNMEASURED_US)
        return None


class StandInDriver:
    """Names the target, and refuses everything that takes a device."""

    def __init__(self, target: CompileTarget) -> None:
        self._target = GPUTarget(*target)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        return META

    def __getattr__(self, name: str) -> Any:
        raise RefusedError(
            f"driver.{name}: a dry run has no device. Kernels that measure themselves (@triton.autotune) or ask the "
            "driver compile in their lane"
        )


class DryRunner:
    """Runs candidates dry while it is entered: this process can launch nothing meanwhile.

    Args:
        target: what to compile for.
        limits: what a kernel may use there.
        claim: see :data:`Claim`; by default all work is ours.
    """

    def __init__(self, target: CompileTarget, limits: Limits, claim: Claim | None = None) -> None:
        self._target = target
        self._limits = limits
        self._claim: Claim = claim or (lambda key: nullcontext(True))
        self._stack = ExitStack()
        self._kernels: list[Any] = []
        self._said: list[BaseException] = []
        self._compilations = 0

    def __enter__(self) -> DryRunner:
        if triton.knobs.runtime.interpret:
            raise RefusedError("TRITON_INTERPRET=1: there is nothing to compile")
        hash_callees_first()
        with ExitStack() as stack:
            stack.enter_context(_replaced(driver, "_active", StandInDriver(self._target)))
            stack.enter_context(_replaced(JITFunction, "run", self._warm_up(JITFunction.run)))
            # Each kernel keeps the compiler that it found here when it was first called.
            stack.enter_context(_replaced(triton.compiler, "compile", _route(triton.compiler.compile)))
            stack.enter_context(_replaced(_current, "runner", self))
            stack.enter_context(
                _replaced(triton.knobs.compilation, "listener", self._count(triton.knobs.compilation.listener))
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, task: MpTunerTask) -> DryRun:
        """One candidate. Raises nothing but what ends a process."""
        self._kernels, self._said, self._compilations = [], [], 0
        start = time.perf_counter()
        outcome, detail = Outcome.compiled, ""
        try:
            self._call(task)
        except Exception as error:
            outcome, detail = self._judge(error)
        seconds = time.perf_counter() - start
        return DryRun(outcome, detail, tuple(map(_facts, self._kernels)), self._compilations, seconds)

    def _call(self, task: MpTunerTask) -> None:
        inputs = make_meta_inputs(task)
        args = inputs.arguments(task.args) if task.gen_data is not None else task.args
        kwargs = {name: value for name, value in (task.kwargs or {}).items() if name not in TIMING_KEYWORDS}
        prepare = getattr(task.func, "prepare", None)
        if prepare is not None:
            args = prepare(*args, **kwargs)
        task.func(*args, **kwargs)

    def _judge(self, error: Exception) -> tuple[Outcome, str]:
        """An exception that came out of the candidate: the compiler's word, or our own shortcoming."""
        chain = list(_chain(error))
        for link in chain:
            if isinstance(link, CompiledElsewhereError):
                return Outcome.elsewhere, describe(link)
        said = next((link for link in chain if any(link is word for word in self._said)), None)
        if said is None or any(map(_is_the_hosts, chain)):
            return Outcome.unknown, describe(error)
        if classify(said) is Status.unsupported:
            return Outcome.unsupported, describe(said)
        return Outcome.crash, f"compile: {describe(said)}"

    # What stands in Triton's place

    def _warm_up(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def warm_up(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
            compiled = run(kernel, *args, grid=grid, warmup=True, **kwargs)
            if compiled is None or warmup:  # a hook has taken it over; the candidate only warms up itself
                return compiled
            self._kernels.append(compiled)
            build_launcher(compiled)  # as the driver does, before it looks at what the kernel needs
            excess = misfit(compiled.metadata, self._limits, self._target.warp_size)
            if excess is not None:  # raised where a launch would raise it, so that a candidate's fallback is taken too
                refused = OutOfResources(*excess)
                self._said.append(refused)
                raise refused
            return compiled

        return warm_up

    def compile(self, original: Callable[..., Any], src: Any, target: Any, options: Any, more: dict[str, Any]) -> Any:
        """Triton's ``compile``, for one kernel that is not in this process's memory."""
        with self._claim(work_key(src, target, options)) as ours:
            if not ours:
                raise CompiledElsewhereError(f"{src.name} is being compiled by another process")
            try:
                return original(src, target=target, options=options, **more)
            except Exception as error:
                self._said.append(error)
                raise

    def _count(self, listener: Callable[..., None] | None) -> Callable[..., None]:
        def count(**facts: Any) -> None:
            self._compilations += not facts["cache_hit"]
            if listener is not None:
                listener(**facts)

        return count


class _Current:
    """The runner that is entered."""

    runner: DryRunner | None = None


_current = _Current()


def _route(original: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler that asks the entered runner; kernels keep it for good, so it outlives each runner."""

    def routed(src: Any, target: Any = None, options: Any = None, **more: Any) -> Any:
        if _current.runner is None:
            return original(src, target=target, options=options, **more)
        return _current.runner.compile(original, src, target, options, more)

    return routed


def work_key(src: Any, target: Any, options: Any) -> str:
    """Equal for equal work, in any process: kernel with all it calls, specialisation, target and options."""
    stated = sorted((str(name), repr(value)) for name, value in dict(options or {}).items())
    return hashlib.sha256(f"{src.hash()} {target} {stated}".encode()).hexdigest()


def _facts(compiled: Any) -> Kernel:
    metadata = compiled.metadata
    return Kernel(
        str(metadata.name),
        str(compiled.hash),
        int(metadata.shared or 0),
        int(metadata.num_warps),
        int(getattr(metadata, "num_stages", 0)),
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _is_the_hosts(error: BaseException) -> bool:
    """Whether the trouble is this process's and not the kernel's: no device, a full disk, memory, a killed ptxas."""
    killed = "PTXASError" in type_names(error) and "error code -" in str(error)
    return killed or isinstance(error, RefusedError | OSError | MemoryError | ImportError)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
