"""What the trial's worker runs: one matrix product, over and over. Loaded in the worker, where torch is."""

from __future__ import annotations

from typing import Any


def make_inputs(rows: int, columns: int, dtype: str, *, device: Any) -> dict[str, Any]:
    """``x`` and ``weight`` of a product."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    shapes = {"x": (rows, columns), "weight": (columns, columns)}
    return {
        name: torch.randn(shape, generator=generator, device=device, dtype=getattr(torch, dtype))
        for name, shape in shapes.items()
    }


def product(x: Any, weight: Any) -> Any:
    """The kernel that is timed against itself."""
    return x @ weight
