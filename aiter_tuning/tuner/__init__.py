"""One family's run, from shapes to tuned rows.

``from aiter_tuning.tuner import TunerCommon, Family, Candidate, Tolerance, Work``. Names are looked up when asked for
(PEP 562), so that a family's file costs nobody pandas.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiter_tuning.tuner.family import Candidate, Family, Tolerance, Work
    from aiter_tuning.tuner.tuner import TunerCommon

__all__ = ["Candidate", "Family", "Tolerance", "TunerCommon", "Work"]

_HOMES = {
    "Candidate": "family",
    "Family": "family",
    "Tolerance": "family",
    "TunerCommon": "tuner",
    "Work": "family",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
