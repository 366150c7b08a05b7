"""What is installed here against what a row was measured under.

A kernel's source is compiled by the Triton that is here, so a row of another Triton still computes the right thing; how
long it takes is another matter: it serves and is *stale*. A solution's number in a library's list means another kernel
in another version of that library: such a row does not serve.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping
from typing import Any

COMPARED = ("triton", "torch")
"""Versions that a latency depends on, in records of evidence."""
LIBRARY = "library"
"""Entry of a config whose kernel is a solution's number: the library's name, as a package or in the evidence."""
LIBRARY_VERSION = "library_version"
"""Entry of such a config: the version whose number it is. Without it the evidence has to tell."""


@functools.cache
def installed(package: str) -> str | None:
    """The version of a package, from its metadata: importing it would cost seconds."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def staleness(measured: Mapping[str, str]) -> str:
    """Why a latency may not hold here, in words; empty if nothing says so."""
    return ", ".join(
        f"measured under {package} {measured[package]}, this is {here}"
        for package in COMPARED
        if package in measured and (here := installed(package)) is not None and here != measured[package]
    )


def library_objection(config: Mapping[str, Any], measured: Mapping[str, str]) -> str | None:
    """Why a config's solution number means nothing here; None if it names no library, or this very version of it.

    Args:
        config: what would be launched.
        measured: versions in the row's evidence; empty if there is none.
    """
    library = config.get(LIBRARY)
    if library is None:
        return None
    # Most of these libraries come inside torch and have no version that Python can see.
    package = library if installed(library) is not None else "torch"
    wanted = config.get(LIBRARY_VERSION) or measured.get(package)
    here = installed(package)
    if wanted == here and here is not None:
        return None
    known = f"of {package} {wanted}" if wanted else f"of an unknown version of {library}"
    return f"its kernel is a solution number of {library}, {known}; this is {package} {here or '(not installed)'}"
