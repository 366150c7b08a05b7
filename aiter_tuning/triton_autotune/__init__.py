"""Triton's own ``@triton.autotune`` made deterministic: policy, tables, recording, agreement between ranks.

::

    import aiter_tuning.triton_autotune as autotune
    autotune.install({"mode": "pinned", "modules": ["my_kernels"], "table_path": ["tables"]})

Stands alone: importing it loads neither torch nor Triton, and nothing else of this package but its vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiter_tuning.lazy_names import lazy_names

if TYPE_CHECKING:
    from aiter_tuning.triton_autotune.agreement import RanksDisagreeError
    from aiter_tuning.triton_autotune.choices import compare_choices, read_choices
    from aiter_tuning.triton_autotune.hooks import BenchmarkRefusedError
    from aiter_tuning.triton_autotune.interception import (
        choice_digest,
        choice_log,
        choice_sources,
        install,
        maybe_verify_choices,
        uninstall,
        use_policy,
        verify_choices,
        write_choice_log,
    )
    from aiter_tuning.triton_autotune.merge import (
        count_votes,
        disagreement_report,
        disagreements,
        merge_records,
        merge_votes,
    )
    from aiter_tuning.triton_autotune.policy import (
        DEFAULT_CONFIG_INVARIANT,
        DEFAULT_MODULES,
        AutotunePolicy,
        active_policy,
        coerce_policy,
        set_deterministic_mode,
        use_deterministic_mode,
    )
    from aiter_tuning.triton_autotune.selection import autotune_configs
    from aiter_tuning.triton_autotune.table import TunedTable, load, load_overlay, write

_HOMES = {
    "agreement": ("RanksDisagreeError",),
    "choices": ("compare_choices", "read_choices"),
    "hooks": ("BenchmarkRefusedError",),
    "interception": (
        "choice_digest",
        "choice_log",
        "choice_sources",
        "install",
        "maybe_verify_choices",
        "uninstall",
        "use_policy",
        "verify_choices",
        "write_choice_log",
    ),
    "merge": ("count_votes", "disagreement_report", "disagreements", "merge_records", "merge_votes"),
    "policy": (
        "DEFAULT_CONFIG_INVARIANT",
        "DEFAULT_MODULES",
        "AutotunePolicy",
        "active_policy",
        "coerce_policy",
        "set_deterministic_mode",
        "use_deterministic_mode",
    ),
    "selection": ("autotune_configs",),
    "table": ("TunedTable", "load", "load_overlay", "write"),
}

__all__ = [
    "DEFAULT_CONFIG_INVARIANT",
    "DEFAULT_MODULES",
    "AutotunePolicy",
    "BenchmarkRefusedError",
    "RanksDisagreeError",
    "TunedTable",
    "active_policy",
    "autotune_configs",
    "choice_digest",
    "choice_log",
    "choice_sources",
    "coerce_policy",
    "compare_choices",
    "count_votes",
    "disagreement_report",
    "disagreements",
    "install",
    "load",
    "load_overlay",
    "maybe_verify_choices",
    "merge_records",
    "merge_votes",
    "read_choices",
    "set_deterministic_mode",
    "uninstall",
    "use_deterministic_mode",
    "use_policy",
    "verify_choices",
    "write",
    "write_choice_log",
]

__getattr__, __dir__ = lazy_names(__name__, {name: home for home, names in _HOMES.items() for name in names})
