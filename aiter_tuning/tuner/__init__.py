"""One family's run, from shapes to tuned rows.

``from aiter_tuning.tuner import TunerCommon, Family, Candidate, Tolerance, Work``. Names are looked up when asked for
(PEP 562), so that a family's file costs nobody pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiter_tuning.lazy_names import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
