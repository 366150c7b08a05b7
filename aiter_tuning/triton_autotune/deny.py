"""Configs that must never be chosen: racy or miscompiled ones, by kernel and architecture.

A rule is an object in ``deny.json`` of a table directory, or in the ``deny`` list of a table. It denies the configs
that agree with everything it names::

    {"kernel": "fla.ops.*.chunk_bwd_*", "arch": "sm10?", "config": {"num_warps": 8, "kwargs": {"BK": 64}},
     "reason": "two runs differ"}
"""

from __future__ import annotations

import fnmatch
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.config_json import compact, config_record

logger = logging.getLogger(__name__)

_FIELDS = frozenset({"kernel", "arch", "triton", "config", "reason"})
_CONFIG_FIELDS = frozenset({"kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override"})


class DenyRule(NamedTuple):
    """Which configs of which kernels, and why. Names are globs."""

    kernel: str
    arch: str
    triton: str
    config: Mapping[str, Any]
    reason: str

    def applies(self, names: Iterable[str], arch: str, triton: str) -> bool:
        """Whether the rule speaks of this kernel (under any of its names) on this architecture and Triton."""
        return (
            any(fnmatch.fnmatchcase(name, self.kernel) for name in names)
            and fnmatch.fnmatchcase(arch, self.arch)
            and fnmatch.fnmatchcase(triton, self.triton)
        )

    def covers(self, record: Mapping[str, Any]) -> bool:
        """Whether a config (as a record) agrees with every field that the rule names."""
        for name, wanted in self.config.items():
            held = record.get(name)
            if name == "kwargs" and isinstance(held, Mapping):
                if any(name not in held or compact(held[name]) != compact(value) for name, value in wanted.items()):
                    return False
            elif compact(held) != compact(wanted):
                return False
        return True


def allowed(
    rules: Sequence[DenyRule], names: Sequence[str], arch: str, triton: str, candidates: Sequence[Any]
) -> list[Any]:
    """The candidates that no rule covers, in order."""
    ours = [rule for rule in rules if rule.applies(names, arch, triton)]
    if not ours:
        return list(candidates)
    return [config for config in candidates if not any(rule.covers(config_record(config)) for rule in ours)]


def parse_rules(data: Any, where: str) -> tuple[DenyRule, ...]:
    """Rules from JSON.

    Raises:
        ValueError: a rule could not mean anything; a misspelt rule must not silently deny nothing.
    """
    if not isinstance(data, list | tuple):
        raise ValueError(f"{where}: deny rules are a list of objects")
    rules = []
    for number, item in enumerate(data):
        here = f"{where}: deny rule {number}"
        if not isinstance(item, dict) or not isinstance(item.get("kernel"), str):
            raise ValueError(f"{here}: expected an object that names a 'kernel'")
        config = item.get("config", {})
        if not isinstance(config, dict) or not isinstance(config.get("kwargs", {}), dict):
            raise ValueError(f"{here}: 'config' is an object, and its 'kwargs' too")
        unknown = sorted((item.keys() - _FIELDS) | (config.keys() - _CONFIG_FIELDS))
        if unknown:
            raise ValueError(f"{here}: unknown field(s) {', '.join(unknown)}")
        texts = {name: item.get(name, "*" if name != "reason" else "") for name in ("arch", "triton", "reason")}
        if not all(isinstance(text, str) for text in texts.values()):
            raise ValueError(f"{here}: 'arch', 'triton' and 'reason' are strings")
        rules.append(DenyRule(item["kernel"], texts["arch"], texts["triton"], config, texts["reason"]))
    return tuple(rules)


def read_rules(path: Path) -> tuple[DenyRule, ...]:
    """The rules in a file; none if it is not there.

    Raises:
        ValueError: it holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ()
    try:
        return parse_rules(json.loads(text), str(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from error
