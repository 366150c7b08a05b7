"""The cheapest config that this device can run: compiled and checked against its limits, never timed.

::

    cheapest first ─► hook ─► grid ─► compile ─► shared memory, tensor memory, threads ─► load ─► the choice
                                 └────────────── a reason to pass it over ──────────────┘

The walk is a function of candidates, launch, compiler and device: every process passes over the same ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from aiter_tuning.status import describe, is_device_fault
from aiter_tuning.triton_autotune.cost import cheapest_first
from aiter_tuning.triton_autotune.identity import named_arguments, qualified_name

logger = logging.getLogger(__name__)

_MAX_THREADS = 1024
_MAX_TENSOR_COLUMNS = 512
_MAX_GRID = (2**31 - 1, 65535, 65535)


class Limits(NamedTuple):
    """What one block may use."""

    shared_bytes: int
    threads: int = _MAX_THREADS
    tensor_columns: int = _MAX_TENSOR_COLUMNS
    warp_size: int = 32


class Walk(NamedTuple):
    """The config found, and why each cheaper one was passed over, in order."""

    config: Any
    passed_over: tuple[str, ...]


class NothingLaunchableError(RuntimeError):
    """No candidate compiles and fits."""


def walk(
    autotuner: Any,
    candidates: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    obstacle: Callable[[Any, Any, Sequence[Any], Mapping[str, Any]], str | None] | None = None,
) -> Walk:
    """The first candidate, cheapest first, that nothing stands against.

    Raises:
        NothingLaunchableError: there is none; the text has the reason for each.
    """
    check = obstacle or what_stands_against
    passed: list[str] = []
    for config in cheapest_first(candidates):
        reason = check(autotuner, config, args, kwargs)
        if reason is None:
            if passed:
                logger.warning(
                    "%s: passed over %d cheaper config(s) that this device cannot run: %s",
                    qualified_name(autotuner),
                    len(passed),
                    " | ".join(passed),
                )
            return Walk(config, tuple(passed))
        passed.append(f"{config}: {reason}")
    raise NothingLaunchableError(f"{qualified_name(autotuner)}: none of its configs can run here: {' | '.join(passed)}")


def what_stands_against(autotuner: Any, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why this launch would fail with ``config``; None if it would not. Compiles; launches nothing.

    The config's own hook runs, as it does before a launch: it may set what the kernel is compiled for. Under the
    interpreter there is nothing to compile, and everything fits.
    """
    everything = {**named_arguments(autotuner, args, kwargs), **config.all_kwargs()}
    try:
        if config.pre_hook is not None:
            config.pre_hook(everything)
        grid = kwargs.get("grid")
        if reason := grid_obstacle(grid(everything) if callable(grid) else grid):
            return reason
        kernel = autotuner.fn.run(*args, **{**kwargs, "warmup": True}, **config.all_kwargs())
        if kernel is None:
            return None
        kernel = kernel.result() if hasattr(kernel, "result") else kernel
        if reason := metadata_obstacle(kernel.metadata, device_limits()):
            return reason
        if hasattr(kernel, "_init_handles"):  # loads the binary, which knows its registers
            kernel._init_handles()
    except Exception as error:
        if is_device_fault(error):
            raise
        return describe(error, 200)
    return None


def metadata_obstacle(metadata: Any, limits: Limits) -> str | None:
    """Why a compiled kernel does not fit; None if it does. A config that is too large compiles without complaint."""
    shared = getattr(metadata, "shared", 0) or 0
    if shared > limits.shared_bytes:
        return f"needs {shared} bytes of shared memory, the device has {limits.shared_bytes}"
    columns = getattr(metadata, "tmem_size", 0) or 0
    if columns > limits.tensor_columns:
        return f"needs {columns} columns of tensor memory, the device has {limits.tensor_columns}"
    threads = getattr(metadata, "num_warps", 0) * limits.warp_size
    if threads > limits.threads:
        return f"needs {threads} threads a block, the device has {limits.threads}"
    return None


def grid_obstacle(grid: Any) -> str | None:
    """Why a grid cannot be launched; None if it can, or is not known."""
    if grid is None:
        return None
    for axis, (size, limit) in enumerate(zip(tuple(grid), _MAX_GRID, strict=False)):
        if size > limit:
            return f"grid axis {axis} has {size} blocks, the limit is {limit}"
    return None


def device_limits() -> Limits:
    """Limits of the current device, from Triton's driver."""
    from triton.runtime.driver import driver

    active = driver.active
    properties = active.utils.get_device_properties(active.get_current_device())
    return Limits(int(properties["max_shared_mem"]), warp_size=int(active.get_current_target().warp_size))
