"""The smallest kernel, compiled and thrown away, so that what a first compilation costs is paid before it counts."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from aiter_tuning.task import ALL_INPUTS, MpTunerTask


@triton.jit  # type: ignore[untyped-decorator]  # Triton ships no types
def _copy(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803  # a kernel's types are Triton's
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


def _inputs(*, device: Any) -> dict[str, Any]:
    import torch

    generator = torch.Generator(device=device)
    return {"x": torch.randn(64, generator=generator, device=device) * 0.5}


def _run(inputs: dict[str, Any]) -> None:
    x = inputs["x"]
    _copy[(1,)](x, x, x.numel(), BLOCK=64)


def throw_away_task() -> MpTunerTask:
    """A candidate for a dry run."""
    return MpTunerTask("throw-away", _inputs, (), _run, (ALL_INPUTS,), {}, None, (), {}, None)
