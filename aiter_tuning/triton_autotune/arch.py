"""The name under which tables are kept: ``sm90``, ``sm103``, ``gfx950``.

torch gives AMD devices pseudo capabilities (gfx90a looks like ``sm90``), so there the driver's own name is used.
"""

from __future__ import annotations

import functools

UNKNOWN = "unknown"


def arch_tag() -> str:
    """Architecture of the current device; ``unknown`` without one. Asking costs under a microsecond after the first."""
    try:
        import torch

        return _tag_of(torch.cuda.current_device())
    except (AssertionError, ImportError, RuntimeError):  # torch without CUDA, no torch, no device or driver
        return UNKNOWN


def has_mixed_archs() -> bool:
    """Whether this process can see devices of different architectures, so that a choice may depend on the device."""
    try:
        import torch

        return len({_tag_of(index) for index in range(torch.cuda.device_count())}) > 1
    except (AssertionError, ImportError, RuntimeError):
        return False


@functools.cache
def _tag_of(index: int) -> str:
    import torch

    if torch.version.hip:
        return str(torch.cuda.get_device_properties(index).gcnArchName).split(":")[0]
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm{major}{minor}"
