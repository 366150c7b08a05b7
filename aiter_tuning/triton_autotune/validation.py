"""What is wrong with a tuned table, as far as a machine without its device can tell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.config_json import matches, with_defaults
from aiter_tuning.triton_autotune.deny import DenyRule, read_rules
from aiter_tuning.triton_autotune.environment import environment
from aiter_tuning.triton_autotune.session import Kernel
from aiter_tuning.triton_autotune.table import Live, TunedTable, parse_table

_FIELDS = {"kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override"}


class Finding(NamedTuple):
    """One thing to mend, or (``is_note``) to know."""

    where: str
    what: str
    is_note: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {'note: ' if self.is_note else ''}{self.what}"


def read_table(path: str) -> tuple[TunedTable, list[Finding]]:
    """A table from a file, and what its JSON says twice.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no table; the text names the file.
    """
    twice: list[Finding] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1})
            twice.extend(Finding(path, f"{name!r} is there twice in one object; the last one counts") for name in names)
        return result

    with open(path, encoding="utf-8") as file:
        try:
            data = json.load(file, object_pairs_hook=unique)
        except ValueError as error:
            raise ValueError(f"{path}: not valid JSON ({error})") from error
    return parse_table(data, None, path), twice


def check_table(table: TunedTable, catalogue: Sequence[tuple[Kernel, Any]] | None = None) -> list[Finding]:
    """Everything that is wrong with a table, by the ``deny.json`` beside it too.

    Args:
        catalogue: the kernels as they are now; with it, each entry has to stand for a live candidate.
    """
    count = sum(map(len, table.kernels.values()))
    findings = [] if count else [Finding(table.path, f"0 entries for {table.arch}")]
    if not table.arch:
        findings.append(Finding(table.path, "no 'arch': any device whose arch is the file's name would take it"))
    by_name: dict[str, list[tuple[Kernel, Any]]] = {}
    for kernel, autotuner in catalogue or ():
        for name in kernel.names:
            by_name.setdefault(name, []).append((kernel, autotuner))
    rules = table.deny_rules
    beside = Path(table.path).parent / "deny.json"
    try:
        rules += read_rules(beside)
    except ValueError as error:
        findings.append(Finding(str(beside), str(error).removeprefix(f"{beside}: ")))
    here = environment()
    for name, entries in table.kernels.items():
        live = by_name.get(name, [])
        if catalogue is not None and not live:
            findings.append(Finding(f"{table.path}: {name}", "the imported modules have no such autotuned kernel"))
        for kernel, _ in live:
            for text in table.stale(name, Live(kernel.fingerprint, here)):
                is_software = not text.startswith(("kernel source", "candidates"))
                findings.append(Finding(f"{table.path}: {name}", f"stale, {text}", is_note=is_software))
        for key, entry in entries.items():
            where = f"{table.path}: {name}[{key}]"
            findings += _check_entry(where, name, entry, table.arch, rules)
            if live and not any(matches(entry, config) for _, autotuner in live for config in autotuner.configs):
                findings.append(Finding(where, "stands for no candidate of the kernel as it is now"))
    return findings


def _check_entry(
    where: str, name: str, entry: Mapping[str, Any], arch: str, rules: Sequence[DenyRule]
) -> list[Finding]:
    findings = []
    if missing := {"kwargs", "num_warps", "num_stages"} - entry.keys():
        findings.append(Finding(where, f"can never match: lacks {', '.join(sorted(missing))}"))
    if unknown := entry.keys() - _FIELDS:
        findings.append(Finding(where, f"can never match: unknown field(s) {', '.join(sorted(unknown))}"))
    findings += [
        Finding(where, f"denied: {rule.reason or 'no reason given'}")
        for rule in rules
        if rule._replace(triton="*").applies([name], arch, "") and rule.covers(with_defaults(entry))
    ]
    return findings
