"""Where a choice was made: what a table says about its machine, and what this machine says about itself."""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from pathlib import Path

_TRITONS = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
_DRIVERS = ("/sys/module/nvidia/version", "/sys/module/amdgpu/version")
PACKAGES = ("mamba-ssm", "transformer-engine", "triton")
"""Distributions whose versions every table names."""

FIELDS = ("triton", "torch", "driver", "device")


def environment() -> dict[str, str]:
    """Versions of Triton, torch and the driver, and the device's name. Empty: not there, or not known."""
    return {**_software(), "device": _device_name()}


def triton_version() -> str:
    """The installed Triton's version, without importing it."""
    return next((found for name in _TRITONS if (found := _version(name))), "")


def package_versions() -> dict[str, str]:
    """Versions of :data:`PACKAGES`, of those that are installed."""
    return {name: found for name in PACKAGES if (found := _version(name))}


@functools.cache
def _software() -> dict[str, str]:
    # From the distributions, never from the modules: torch.__version__ carries a suffix that a wheel may not have, and
    # two processes must not differ because one of them has imported torch.
    return {"triton": triton_version(), "torch": _version("torch"), "driver": _driver_version()}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _driver_version() -> str:
    for path in _DRIVERS:
        try:
            return Path(path).read_text().strip()
        except OSError:
            continue
    return ""


def _device_name() -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    try:
        return str(torch.cuda.get_device_name())
    except (AssertionError, RuntimeError):
        return ""
