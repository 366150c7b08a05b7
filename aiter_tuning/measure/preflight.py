"""Whether a candidate can fit, asked before it is launched.

Inputs and reference are there by then, so that what is free is what is left for the candidate; copies for the ring are
made later, of what is still free, and shrink before anything fails.
"""

from __future__ import annotations


def shortfall(free_bytes: int, workspace_bytes: float) -> str:
    """What a candidate lacks; empty if nothing.

    Args:
        free_bytes: what is left beside inputs and reference.
        workspace_bytes: what the candidate says that it needs beside its inputs.
    """
    if workspace_bytes <= free_bytes:
        return ""
    return f"needs {_gib(workspace_bytes)} of workspace beside its inputs, and {_gib(free_bytes)} are free"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f} GiB"
