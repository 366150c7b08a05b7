"""What Triton builds with a C compiler before it can launch: a module for the driver, and in old versions launchers.

Each takes the compiler some tenths of a second and lands in the same cache as kernels, so a lane that finds them there
is spared that as well. Where they cannot be built without a device, the lane builds them.
"""

from __future__ import annotations

import importlib
from typing import Any

_PARTS = {"cuda": ("nvidia", "CudaUtils", "CudaLauncher"), "hip": ("amd", "HIPUtils", "HIPLauncher")}

_built: set[tuple[str, ...]] = set()


def build_driver_module(backend: str) -> bool:
    """Builds what Triton talks to the driver with; whether it could. Does not import torch."""
    vendor, module_of_driver, _ = _PARTS[backend]
    try:
        getattr(importlib.import_module(f"triton.backends.{vendor}.driver"), module_of_driver)()
    except (Exception, SystemExit):  # no driver library, no C compiler, another version of Triton
        return False
    return True


def build_launcher(compiled: Any) -> bool:
    """Builds the C function that launches a kernel, where Triton (up to 3.6) makes one for each signature."""
    vendor, _, launcher = _PARTS[compiled.metadata.target.backend]
    types = map(str, getattr(compiled.src, "signature", {}).values())
    signature = (*types, str(getattr(compiled.metadata, "tensordesc_meta", None)))
    if signature in _built:
        return True
    _built.add(signature)
    try:
        module = importlib.import_module(f"triton.backends.{vendor}.driver")
        if hasattr(module, "make_launcher"):
            getattr(module, launcher)(compiled.src, compiled.metadata)
    except (Exception, SystemExit):
        return False
    return True
