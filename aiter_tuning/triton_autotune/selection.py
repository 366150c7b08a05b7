"""Which candidate a launch gets: a function of candidates, signature, architecture and table, never of a clock.

::

    table[key] ─► table[*] ─► block_sizes ─► on_miss: min_cost | launchable | error
    (qualified name, then the bare name)
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.arch import arch_tag
from aiter_tuning.triton_autotune.config_json import config_data, config_signature
from aiter_tuning.triton_autotune.cost import cheapest, estimate_config_cost
from aiter_tuning.triton_autotune.environment import environment
from aiter_tuning.triton_autotune.identity import (
    ANY_KEY,
    cache_key,
    fingerprint,
    kernel_name,
    qualified_name,
    tag_of,
    tuning_key,
)
from aiter_tuning.triton_autotune.launchable import walk
from aiter_tuning.triton_autotune.policy import AutotunePolicy, active_policy, use_deterministic_mode
from aiter_tuning.triton_autotune.rank import current_rank
from aiter_tuning.triton_autotune.table import AnyTable, Live

__all__ = [
    "Choice",
    "arch_tag",
    "autotune_configs",
    "cache_key",
    "chaos_choice",
    "cheapest",
    "choose",
    "config_data",
    "config_signature",
    "deterministic_choice",
    "estimate_config_cost",
    "filter_configs_by_block_sizes",
    "kernel_name",
    "lookup_names",
    "qualified_name",
    "reset_warnings",
    "tuning_key",
    "warn_if_mamba_env_ignored",
]

logger = logging.getLogger(__name__)

_warned: set[tuple[str, str]] = set()
_mamba_env_warned = False


class Choice(NamedTuple):
    """A live config, where it came from, and what else belongs to the choice."""

    config: Any
    source: str
    """``table``, ``table*``, ``block_sizes``, ``min_cost``, ``launchable`` or ``chaos``."""
    detail: str = ""
    """For ``launchable``: how many cheaper configs were passed over, and a hash of why."""


def lookup_names(autotuner: Any) -> tuple[str, ...]:
    """The names a table may have for this kernel: with the tag of its source, qualified, bare."""
    qualified = qualified_name(autotuner)
    return f"{qualified}#{tag_of(fingerprint(autotuner))}", qualified, kernel_name(autotuner)


def choose(
    autotuner: Any,
    candidates: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    table: AnyTable | None = None,
    on_miss: str = "min_cost",
    block_sizes: Sequence[tuple[str, int]] = (),
    on_stale: str = "use",
    arch: str | None = None,
    obstacle: Callable[[Any, Any, Sequence[Any], Mapping[str, Any]], str | None] | None = None,
) -> Choice:
    """The config for this launch, and where it came from.

    Raises:
        RuntimeError: nothing in the table and ``on_miss="error"``; the entry is stale and ``on_stale="error"``;
            no config fits and ``on_miss="launchable"``.
    """
    qualified = qualified_name(autotuner)
    if table:
        live = Live(fingerprint(autotuner), environment()) if on_stale != "use" else None
        key = tuning_key(autotuner, args, kwargs)
        found, notes = table.find(lookup_names(autotuner), key, candidates, live, on_stale)
        for note in notes:
            _warn_once("stale", qualified, "%s", note)
        if found is not None:
            return Choice(found.config, "table*" if found.key == ANY_KEY != key else "table")
    forced = filter_configs_by_block_sizes(candidates, block_sizes)
    if forced:
        return Choice(forced[0], "block_sizes")
    if on_miss == "error":
        raise RuntimeError(
            f"no tuned config for {qualified} on {arch or arch_tag()} with key "
            f"{tuning_key(autotuner, args, kwargs)!r}: record and merge one, or set on_miss to 'min_cost'"
        )
    _warn_once(
        "miss",
        qualified,
        "No pre-tuned config for %s on %s: taking the cheapest of %d (said once for each kernel)",
        qualified,
        arch or arch_tag(),
        len(candidates),
    )
    if on_miss == "launchable":
        found_config, passed = walk(autotuner, candidates, args, kwargs, obstacle)
        reasons = hashlib.sha256("\n".join(passed).encode()).hexdigest()[:8]
        return Choice(found_config, "launchable", f"passed over {len(passed)}/{reasons}" if passed else "")
    return Choice(cheapest(candidates), "min_cost")


def deterministic_choice(
    autotuner: Any,
    candidates: Sequence[Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    table: AnyTable | None = None,
    on_miss: str = "min_cost",
    block_sizes: Sequence[tuple[str, int]] = (),
) -> Any:
    """The live config of :func:`choose`."""
    return choose(autotuner, candidates, args, kwargs, table=table, on_miss=on_miss, block_sizes=block_sizes).config


def chaos_choice(autotuner: Any, candidates: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A config by rank: repeatable, and different on neighbouring ranks for certain (if there is more than one)."""
    text = f"{kernel_name(autotuner)}|{tuning_key(autotuner, args, kwargs)}"
    start = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)
    return candidates[(start + current_rank()) % len(candidates)]


def filter_configs_by_block_sizes(
    configs: Iterable[Any], block_sizes: Sequence[tuple[str, int]] = ()
) -> list[Any] | None:
    """The first config that has every one of these values, in a list; None if there is none, or nothing is asked."""
    if not block_sizes:
        return None
    for config in configs:
        if all(config.kwargs.get(name) == value for name, value in block_sizes):
            return [config]
    return None


def autotune_configs(configs: list[Any]) -> list[Any]:
    """For the ``configs=`` of a decorator: in deterministic mode one config, else the list as it is.

    It looks at determinism when the module is imported. A list reduced here can be recorded and pinned no more.
    """
    if not configs or not use_deterministic_mode():
        return configs
    policy = active_policy() or AutotunePolicy()
    return filter_configs_by_block_sizes(configs, policy.block_sizes) or [cheapest(configs)]


def reset_warnings() -> None:
    """Forgets which warnings were given."""
    _warned.clear()


def warn_if_mamba_env_ignored(policy: AutotunePolicy) -> None:
    """Says once that ``MAMBA_DETERMINISTIC`` asks mamba_ssm for something, and this package for nothing."""
    global _mamba_env_warned
    if _mamba_env_warned or policy.mode != "auto" or not os.environ.get("MAMBA_DETERMINISTIC", "").startswith("1"):
        return
    _mamba_env_warned = True
    logger.warning("MAMBA_DETERMINISTIC is set but pins nothing here: it concerns mamba_ssm itself only")


def _warn_once(kind: str, kernel: str, text: str, *values: object) -> None:
    if (kind, kernel) not in _warned:
        _warned.add((kind, kernel))
        logger.warning(text, *values)
