"""What became of a candidate, and how an exception is turned into that word.

Upstream tuners pack every kind of failure into two numbers (``us`` is ``-1`` or ``inf``); whoever reads the profile the
next morning cannot tell a hang from a typo. Here each result carries a word. This module knows only words and
exceptions: standard library, importable without torch, used by the parent and by the workers alike.
"""

from __future__ import annotations

import errno
import re
from enum import StrEnum

_MOST_TEXT = 20_000
"""Characters of a message that are looked at: a candidate may raise with megabytes."""
DETAIL_LIMIT = 500
"""Longest ``detail``, in characters; longer ones end in ``...``."""


class Status(StrEnum):
    """The outcome of one candidate.

    ============== ========================================================================== ========
    status         meaning                                                                    us
    ============== ========================================================================== ========
    ok             ran, correct within ``err_ratio`` (or nothing to compare, as asked), timed measured
    mismatch       ran, timed, wrong: values, NaN, shape, or nothing returned                 measured
    unsupported    the candidate says that it cannot do this shape or device                  -1
    oom_preflight  inputs, reference or workspace do not fit; the candidate never launched    inf
    oom_runtime    it ran out of device or host memory while running                          -1
    crash          any other exception (-1); a device fault or a dead worker (inf)            -1 / inf
    timeout        it outlived its clock and was killed                                       inf
    not_run        never started; never passed to a result callback; a resume runs it         inf
    ============== ========================================================================== ========
    """

    ok = "ok"
    mismatch = "mismatch"
    unsupported = "unsupported"
    oom_preflight = "oom_preflight"
    oom_runtime = "oom_runtime"
    crash = "crash"
    timeout = "timeout"
    not_run = "not_run"

    @property
    def is_terminal(self) -> bool:
        """False for ``not_run`` only: everything else is a finished verdict that a resume keeps."""
        return self is not Status.not_run

    @property
    def is_oom(self) -> bool:
        return self in (Status.oom_preflight, Status.oom_runtime)


# Texts are matched because the exceptions that carry them differ by torch version and by vendor. A bare "invalid
# argument" is a launch that the driver refused, "CUDA error: invalid argument" included: the context survives it.
_OOM_TEXT = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|\bOOM\b|std::bad_alloc|hipErrorOutOfMemory",
    re.IGNORECASE,
)
_UNSUPPORTED_TEXT = re.compile(
    r"not (?:yet )?support|unsupported|invalid argument|rejected|not implemented"
    r"|invalid configuration argument|too many resources requested|too many blocks in cooperative launch"
    r"|out of resource|no kernel image is available|invalid device function",
    re.IGNORECASE,
)
# "device-side assert" as a whole word: torch ends every error of a device, however harmless, with the advice to
# "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions".
_FAULT_TEXT = re.compile(
    r"illegal memory access|illegal address|hipErrorIllegalAddress|memory access fault|misaligned address"
    r"|device-side assert\b|unspecified launch failure|hipErrorLaunchFailure|illegal instruction"
    r"|hip error 7(?:00|02|10|19)\b|launch timed out|tensor memory not completely freed|HSA_STATUS_ERROR"
    r"|hardware stack error|invalid address space|not supported on global/shared address space"
    r"|invalid program counter|uncorrectable (?:ECC|NVLink)|invalid access of peer GPU memory|HW Exception by GPU",
    re.IGNORECASE,
)
_RESET_TEXT = re.compile(r"HW Exception by GPU node-\d+ .*reason\s*:\s*GPU Hang")
_OOM_TYPES = frozenset({"OutOfMemoryError", "MemoryError"})
_UNSUPPORTED_TYPES = frozenset({"OutOfResources", "CompileTimeAssertionFailure", "PTXASError"})


def type_names(error: BaseException) -> frozenset[str]:
    """Names of the exception's classes, so that torch's and Triton's are recognised without importing them."""
    return frozenset(cls.__name__ for cls in type(error).__mro__)


def says_device_fault(text: str) -> bool:
    """Whether words of a driver, wherever they stand, mean that a device context is worthless."""
    return _FAULT_TEXT.search(text) is not None


def is_device_fault(error: BaseException) -> bool:
    """Whether the device context is worthless after this exception, so that the process has to be replaced.

    By text (illegal access, misaligned address, device assert, launch failure, HSA and HIP spellings) and by type:
    torch's ``AcceleratorError`` is a fault unless it only says that memory ran out or that a launch was refused.
    """
    text = str(error)[:_MOST_TEXT]
    if says_device_fault(text):
        return True
    return "AcceleratorError" in type_names(error) and not (_OOM_TEXT.search(text) or _UNSUPPORTED_TEXT.search(text))


def says_gpu_was_reset(output: str) -> bool:
    """Whether the last words of a process are ROCm's that its GPU was reset because something hung.

    That need not have been the process's own work: amdgpu resets all GPUs of an XGMI hive together.
    """
    return _RESET_TEXT.search(output) is not None


def classify(error: BaseException, *, launched: bool = True) -> Status:
    """The status that an exception stands for.

    Args:
        error: what was raised.
        launched: False while inputs or reference were being made; the candidate is then not to blame, so only memory
            and everything else (``crash``) are told apart.
    """
    names, text = type_names(error), str(error)[:_MOST_TEXT]
    if is_device_fault(error):
        return Status.crash
    out_of_memory = bool(names & _OOM_TYPES) or _OOM_TEXT.search(text) is not None
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        out_of_memory = True
    if out_of_memory:
        return Status.oom_runtime if launched else Status.oom_preflight
    if not launched:
        return Status.crash
    if isinstance(error, TimeoutError):
        return Status.timeout
    if isinstance(error, NotImplementedError | ValueError) or names & _UNSUPPORTED_TYPES:
        return Status.unsupported
    if _UNSUPPORTED_TEXT.search(text):
        return Status.unsupported
    return Status.crash


def one_line(text: str, limit: int = DETAIL_LIMIT) -> str:
    """``text`` with white space folded to single blanks, at most ``limit`` characters, cut ends marked ``...``."""
    folded = " ".join(text.split())
    return folded if len(folded) <= limit else folded[: max(0, limit - 3)] + "..."


def describe(error: BaseException, limit: int = DETAIL_LIMIT) -> str:
    """``"ValueError: message"`` on one line; just the type's name where there is no message."""
    try:
        message = one_line(str(error)[:_MOST_TEXT], 10 * limit)
    except Exception:  # a candidate's exception class may itself be broken
        message = "<its message could not be read>"
    name = type(error).__name__
    return one_line(f"{name}: {message}" if message else name, limit)
