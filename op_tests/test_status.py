"""What an exception is called."""

import errno

import pytest

from aiter_tuning.status import DETAIL_LIMIT, Status, classify, describe, is_device_fault, one_line


class OutOfResources(Exception):  # noqa: N818 - Triton's spelling
    """Stands for Triton's, which is known by its name."""


class OutOfMemoryError(RuntimeError):
    """Stands for torch's."""


class AcceleratorError(RuntimeError):
    """Stands for torch's."""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("bad block size"), Status.unsupported),
        (NotImplementedError(), Status.unsupported),
        (OutOfResources("shared memory, Required: 655360"), Status.unsupported),
        (RuntimeError("this layout is not supported on gfx942"), Status.unsupported),
        (
            RuntimeError("wrong! device_gemm with the specified compilation parameters does not support this"),
            Status.unsupported,
        ),
        (RuntimeError("CUDA error: invalid argument"), Status.unsupported),
        (AcceleratorError("CUDA error: invalid argument"), Status.unsupported),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), Status.oom_runtime),
        (RuntimeError("HIP out of memory"), Status.oom_runtime),
        (MemoryError(), Status.oom_runtime),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), Status.oom_runtime),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), Status.oom_runtime),
        (ValueError("out of memory"), Status.oom_runtime),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), Status.crash),
        (RuntimeError("HIP error 700: illegal address, operation not supported"), Status.crash),
        (AssertionError("x"), Status.crash),
        (KeyError("x"), Status.crash),
        (RuntimeError("something else"), Status.crash),
        (TimeoutError("compile took too long"), Status.timeout),
    ],
)
def test_an_exception_has_a_status(error, status):
    assert classify(error) is status


@pytest.mark.parametrize("error", [ValueError("no"), NotImplementedError(), TimeoutError(), KeyError("x")])
def test_inputs_that_cannot_be_made_are_never_the_candidates_no(error):
    assert classify(error, launched=False) is Status.crash


def test_memory_that_runs_out_before_the_launch_has_its_own_status():
    assert classify(MemoryError(), launched=False) is Status.oom_preflight
    assert Status.oom_preflight.is_oom
    assert Status.oom_runtime.is_oom
    assert not Status.crash.is_oom


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: misaligned address",
        "CUDA error: device-side assert triggered",
        "CUDA error: unspecified launch failure",
        "hipErrorIllegalAddress",
        "HIP error 719",
        "Memory access fault by GPU node-1",
        "HSA_STATUS_ERROR_EXCEPTION: an HSAIL operation resulted in a hardware exception",
    ],
)
def test_a_device_fault_is_known_by_its_text(text):
    assert is_device_fault(RuntimeError(text))


def test_an_accelerator_error_is_a_fault_unless_it_only_says_no():
    assert is_device_fault(AcceleratorError("CUDA error: unknown error"))
    assert not is_device_fault(AcceleratorError("CUDA error: out of memory"))
    assert not is_device_fault(AcceleratorError("CUDA error: invalid argument"))
    assert not is_device_fault(RuntimeError("HIP error 7001"))


ADVICE = """
{0} kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing {1}
Compile with `TORCH_USE_{0}_DSA` to enable device-side assertions.
"""
"""What torch writes below every error of a device."""


@pytest.mark.parametrize("advice", [("CUDA", "CUDA_LAUNCH_BLOCKING=1"), ("HIP", "AMD_SERIALIZE_KERNEL=3")])
@pytest.mark.parametrize("raised", [RuntimeError, AcceleratorError])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("out of memory", Status.oom_runtime),
        ("invalid argument", Status.unsupported),
        ("invalid configuration argument", Status.unsupported),
        ("too many resources requested for launch", Status.unsupported),
        ("too many blocks in cooperative launch", Status.unsupported),
        ("no kernel image is available for execution on the device", Status.unsupported),
        ("invalid device function", Status.unsupported),
        ("operation not supported", Status.unsupported),
        ("device-side assert triggered", Status.crash),
        ("operation not supported on global/shared address space", Status.crash),
        ("the launch timed out and was terminated", Status.crash),
        ("tensor memory not completely freed", Status.crash),
    ],
)
def test_torchs_advice_about_assertions_is_no_assertion(advice, raised, text, status):
    error = raised(f"{advice[0]} error: {text}{ADVICE.format(*advice)}")
    assert classify(error) is status
    assert is_device_fault(error) is (status is Status.crash)


def test_a_kernel_that_needs_too_much_is_unsupported_whoever_wraps_tritons_word():
    text = "out of resource: shared memory, Required: 98304, Hardware limit: 65536. Reducing block sizes may help."
    assert classify(RuntimeError(text)) is Status.unsupported


def test_only_not_run_is_not_terminal():
    assert [status for status in Status if not status.is_terminal] == [Status.not_run]


def test_members_are_spelled_like_their_values():
    assert all(status.name == status.value == str(status) for status in Status)


def test_a_detail_is_one_bounded_line():
    detail = describe(ValueError("a\n  b\t" + "c" * 10_000))
    assert detail.startswith("ValueError: a b ccc")
    assert detail.endswith("...")
    assert len(detail) == DETAIL_LIMIT
    assert describe(ValueError("x" * 100), limit=80).endswith("...")
    assert len(describe(ValueError("x" * 100), limit=80)) == 80


def test_an_empty_message_leaves_the_type():
    assert describe(ValueError()) == "ValueError"
    assert describe(ValueError("  \n ")) == "ValueError"


def test_an_exception_that_cannot_be_printed_is_still_described():
    class BrokenError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    assert describe(BrokenError()).startswith("BrokenError: ")


def test_short_lines_are_left_alone():
    assert one_line("a b", 3) == "a b"
