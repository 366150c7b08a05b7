"""What serving asks: which kernel is tuned for this shape, here?

::

    lookup("gemm_bf16", M=64, …)                      the tables of a family, see places
    bind("gemm_bf16")  ─▶ BoundLookup ─▶ Answers ─▶ TableSet ─ ServedTable ─ rows, evidence
                             │ one dict hit,   │ the slow path, once for a key: exact key, then the family's bucket;
                             │ a clock         │ is its kernel still there? was it measured under this Triton?
                             ▼                 ▼
                       TunedRow or None     a miss ─▶ recorder ─▶ DIR/<family>_untuned.csv ─▶ aiter-tune tune -i

A row serves for the device that it was measured on, by arch, compute units and model, and for no other shape than the
one that it names unless the family declares so. Everything else is a miss: the operator then runs its default, and a
warning says once why a row that is there does not serve. Needs neither torch nor a device's context.
"""

from __future__ import annotations

from aiter_tuning.serving.bound import BoundLookup, bind, is_tuned, lookup, refuse, serve_from, watch
from aiter_tuning.serving.explanation import Explanation, NearMiss, explain
from aiter_tuning.serving.misses import record_misses
from aiter_tuning.serving.operators import Operator

__all__ = [
    "BoundLookup",
    "Explanation",
    "NearMiss",
    "Operator",
    "bind",
    "explain",
    "is_tuned",
    "lookup",
    "record_misses",
    "refuse",
    "serve_from",
    "watch",
]
