"""What ``aiter-tune autotune`` does: each command is a function from its arguments to a :class:`Report`."""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiter_tuning.triton_autotune.catalogue import autotuners_in
from aiter_tuning.triton_autotune.choices import compare_choices, is_choice_log, read_choices
from aiter_tuning.triton_autotune.config_json import compact, with_defaults
from aiter_tuning.triton_autotune.identity import ANY_KEY
from aiter_tuning.triton_autotune.merge import (
    Verdict,
    Votes,
    any_key_configs,
    count_votes,
    disagreements,
    judge_all,
    merge_votes,
    provenance,
)
from aiter_tuning.triton_autotune.recording import read_recording, read_winners
from aiter_tuning.triton_autotune.table import load_overlay, write
from aiter_tuning.triton_autotune.validation import Finding, check_table, read_table


class InputError(ValueError):
    """The files given don't allow what was asked; the text says why."""


@dataclass
class Report:
    """What a command found."""

    data: dict[str, Any]
    """For ``--json``."""
    lines: list[str] = field(default_factory=list)
    """For a person."""
    is_good: bool = True
    """False: exit code 1."""


def merge(args: argparse.Namespace) -> Report:
    """Recordings into one table."""
    votes = _votes(args.record)
    arch = _arch_of(votes, args.arch)
    kernels: dict[str, dict[str, Any]] = merge_votes(votes)[arch]
    ours = {key[1:]: counts for key, counts in votes.items() if key[0] == arch}
    evidence: dict[str, dict[str, Any]] = {}
    for (kernel, key), counts in ours.items():
        had = counts[json.dumps(kernels[kernel][key], sort_keys=True)]
        evidence.setdefault(kernel, {})[key] = {"votes": had, "of": counts.total()}
    recordings = [read_recording(path) for path in args.record]
    verdicts: Mapping[tuple[str, str], Verdict] = {}
    if args.by == "regret":
        verdicts = judge_all(recordings, arch)
        if not verdicts:
            raise InputError("--by regret needs times: no <recording>.timings.jsonl is beside the recordings given")
        _overrule(kernels, evidence, verdicts, ours)
    lines = [_verdict_line(kernel, key, verdict) for (kernel, key), verdict in sorted(verdicts.items())]
    by_vote = sum(map(len, kernels.values())) - len(verdicts)
    if verdicts and by_vote:
        lines.append(f"  {by_vote} without times: by vote")
    if args.any_key:
        if not verdicts:
            raise InputError("--any-key needs --by regret: votes don't say how a config does elsewhere")
        for kernel, text in any_key_configs(recordings, arch).items():
            kernels[kernel][ANY_KEY] = json.loads(text)
    write(arch, kernels, args.output, args.source, provenance=provenance(recordings, arch, evidence))
    entries = sum(map(len, kernels.values()))
    torn = [key for key in disagreements(votes) if key[0] == arch]
    ties = sum(verdict.near_tie for verdict in verdicts.values())
    head = [f"wrote {args.output}: {arch}, {len(kernels)} kernels, {entries} entries"]
    if torn:
        head.append(f"{len(torn)} entries had ranks disagreeing")
    if ties:
        head.append(f"{ties} near ties: another run might choose otherwise, at no measurable cost")
    return Report(
        {
            "output": str(args.output),
            "arch": arch,
            "kernels": len(kernels),
            "entries": entries,
            "disagreements": len(torn),
            "near_ties": ties,
            "evidence": evidence,
        },
        [*head, *lines],
    )


def _arch_of(votes: Votes, wanted: str | None) -> str:
    """The architecture that a table is to be made for: the one asked for, else the only one."""
    archs = sorted({arch for arch, _, _ in votes})
    if not archs:
        raise InputError("no records in the recordings given")
    if wanted is None and len(archs) > 1:
        raise InputError(f"the recordings cover {archs}: choose one with --arch")
    arch = wanted or archs[0]
    if arch not in archs:
        raise InputError(f"no records for {arch}: the recordings cover {archs}")
    return arch


def _overrule(
    kernels: dict[str, dict[str, Any]],
    evidence: dict[str, dict[str, Any]],
    verdicts: Mapping[tuple[str, str], Verdict],
    votes: Mapping[tuple[str, str], Counter[str]],
) -> None:
    """Puts what times say in the place of what votes say, in ``kernels`` and in their ``evidence``."""
    for (kernel, key), verdict in sorted(verdicts.items()):
        chosen = json.loads(verdict.config)
        kernels.setdefault(kernel, {})[key] = chosen
        evidence.setdefault(kernel, {}).setdefault(key, {}).update(
            votes=votes.get((kernel, key), Counter())[json.dumps(chosen, sort_keys=True)],
            regret=round(verdict.regret, 5),
            worst_regret=round(verdict.worst_regret, 5),
            margin_pct=_rounded(verdict.margin_pct),
            noise_pct=_rounded(verdict.noise_pct),
            near_tie=verdict.near_tie,
            recordings=verdict.recordings,
        )


def _verdict_line(kernel: str, key: str, verdict: Verdict) -> str:
    mark = "  near tie" if verdict.near_tie else ""
    return (
        f"  {kernel}[{key}]: regret {verdict.regret:.4f} (worst {verdict.worst_regret:.4f}), "
        f"runner-up +{verdict.margin_pct:.2f} %, noise {verdict.noise_pct:.2f} %{mark}"
    )


def report(args: argparse.Namespace) -> Report:
    """What recordings hold, and where they disagree."""
    votes = _votes(args.record)
    torn = disagreements(votes)
    data: dict[str, Any] = {}
    lines: list[str] = []
    for arch in sorted({key[0] for key in votes}):
        kernels: dict[str, Any] = {}
        for key in votes:
            if key[0] == arch:
                entry = kernels.setdefault(key[1], {"entries": 0, "disagreed": {}})
                entry["entries"] += 1
                if key in torn:
                    entry["disagreed"][key[2]] = dict(torn[key])
        data[arch] = kernels
        entries = sum(kernel["entries"] for kernel in kernels.values())
        lines.append(f"{arch}: {len(kernels)} kernels, {entries} entries")
        for name, kernel in sorted(kernels.items()):
            mark = f"  <- {len(kernel['disagreed'])} disagreed across ranks" if kernel["disagreed"] else ""
            lines.append(f"  {name}: {kernel['entries']} entries{mark}")
    return Report(data, lines)


def show(args: argparse.Namespace) -> Report:
    """A table for a person."""
    table, _ = read_table(args.table)
    kernels = {name: dict(e) for name, e in table.kernels.items() if fnmatch.fnmatchcase(name, args.kernel)}
    section = table.provenance.get("provenance", {})
    made_on = section.get("environment", {}) if isinstance(section, Mapping) else {}
    count = sum(map(len, kernels.values()))
    lines = [f"{table.arch}: {len(kernels)} kernels, {count} entries"]
    if table.provenance.get("source"):
        lines.append(f"source: {table.provenance['source']}")
    machine = {"triton": table.provenance.get("triton"), **made_on}
    lines.append("made with: " + (", ".join(f"{k} {v}" for k, v in machine.items() if v) or "not known"))
    for name, entries in sorted(kernels.items()):
        lines.append(name)
        lines += [f"  {key or '(no key)'}  {_config_line(entry)}" for key, entry in sorted(entries.items())]
    return Report({"arch": table.arch, "kernels": kernels, **table.provenance}, lines)


def diff(args: argparse.Namespace) -> Report:
    """Two tables, recordings or choice logs."""
    (kind, left), (other, right) = _comparable(args.left), _comparable(args.right)
    if kind != other:
        raise InputError(f"cannot compare a {kind} ({args.left}) with a {other} ({args.right})")
    changed = compare_choices(left, right)
    only_left, only_right = sorted(left.keys() - right.keys()), sorted(right.keys() - left.keys())
    lines = [f"~ {key}: {a} -> {b}" for key, a, b in changed]
    lines += [f"- {key}: {left[key]}" for key in only_left] + [f"+ {key}: {right[key]}" for key in only_right]
    lines.append(
        f"{len(changed)} differ, {len(only_left)} only in {args.left}, {len(only_right)} only in {args.right}, "
        f"{len(left.keys() & right.keys()) - len(changed)} equal"
    )
    data = {
        "kind": kind,
        "changed": [{"key": key, "left": a, "right": b} for key, a, b in changed],
        "only_left": only_left,
        "only_right": only_right,
    }
    # What a run did not choose is no contradiction; what a table does not have is a difference.
    return Report(data, lines, not changed and (kind == "choice log" or not (only_left or only_right)))


def validate(args: argparse.Namespace) -> Report:
    """What is wrong with tables."""
    catalogue = autotuners_in(args.modules) if args.modules else None
    findings: list[Finding] = []
    for path in args.table:
        try:
            table, twice = read_table(path)
            findings += [*twice, *check_table(table, catalogue)]
        except ValueError as error:
            findings.append(Finding(path, str(error).removeprefix(f"{path}: ")))
    bad = sum(not finding.is_note for finding in findings)
    lines = [*map(str, findings), f"{len(args.table)} table(s): {bad} finding(s)"]
    return Report({"findings": [finding._asdict() for finding in findings]}, lines, not bad)


def coverage(args: argparse.Namespace) -> Report:
    """Which launches that were seen, or kernels that exist, a table has entries for."""
    rows: list[dict[str, str]] = []
    table_arch = "" if os.path.isdir(args.table) else read_table(args.table)[0].arch
    for arch, kernel, key in sorted(_seen(args.seen)):
        kernels = _kernels_of(args.table, arch)
        names = [kernel, kernel.partition("#")[0], kernel.partition("#")[0].rpartition(".")[2]]
        held: Iterable[Mapping[str, Any]] = [kernels[name] for name in names if name in kernels]
        how = "exact" if any(key in e for e in held) else "any" if any(ANY_KEY in e for e in held) else "miss"
        rows.append({"arch": arch, "kernel": kernel, "key": key, "covered": how})
    if args.modules:
        arch = args.arch or table_arch
        if not arch:
            raise InputError("--import with a directory of tables needs --arch")
        kernels = _kernels_of(args.table, arch)
        for known, _ in autotuners_in(args.modules):
            has = any(kernels.get(name) for name in known.names)
            covered = "some" if has else "miss"
            rows.append({"arch": arch, "kernel": known.qualified, "key": "(any)", "covered": covered})
    counts = {how: sum(row["covered"] == how for row in rows) for how in ("exact", "any", "some", "miss")}
    lines = [f"MISS {row['arch']} {row['kernel']}[{row['key']}]" for row in rows if row["covered"] == "miss"]
    lines.append(
        f"{len(rows)} looked for: {counts['exact']} exact, {counts['any']} by {ANY_KEY}, "
        f"{counts['some']} kernels with entries, {counts['miss']} without"
    )
    return Report({"counts": counts, "rows": rows}, lines, counts["miss"] == 0)


def _votes(paths: Iterable[str]) -> Votes:
    try:
        return count_votes(paths)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read recordings: {worded(error)}") from error


def worded(error: Exception) -> str:
    """What an error says to a person; of a file that cannot be had its name and why."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _comparable(path: str) -> tuple[str, dict[str, str]]:
    """A file's kind, and its choices as text."""
    data = _json_of(path)
    if is_choice_log(data):
        return "choice log", read_choices(path)
    if isinstance(data, dict) and "kernels" in data:
        table, _ = read_table(path)
        kernels = {f"{k}[{key}]": e for k, entries in table.kernels.items() for key, e in entries.items()}
        return "table", {name: compact(with_defaults(entry)) for name, entry in kernels.items()}
    flat = {
        f"{arch}|{kernel}[{key}]": compact(with_defaults(entry))
        for arch, kernels in read_winners(path).items()
        for kernel, entries in kernels.items()
        for key, entry in entries.items()
    }
    return "recording", flat


def _json_of(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise InputError(f"{path}: not valid JSON ({error})") from error


def _seen(paths: Iterable[str]) -> set[tuple[str, str, str]]:
    """(arch, kernel, key) of every choice in choice logs and recordings."""
    seen: set[tuple[str, str, str]] = set()
    for path in paths:
        data = _json_of(path)
        if is_choice_log(data):
            for name in data["choices"]:
                arch, kernel, key = name.split("|", 2)
                if not (key == ANY_KEY and data.get("sources", {}).get(name) == "single"):
                    seen.add((arch, kernel, key))
        else:
            seen |= {(a, k, key) for a, kernels in read_winners(path).items() for k, e in kernels.items() for key in e}
    return seen


def _kernels_of(path: str, arch: str) -> Mapping[str, Mapping[str, Any]]:
    """The entries for an architecture: of a file, or of a directory of tables."""
    if os.path.isdir(path):
        return load_overlay(arch, [path]).kernels
    table, _ = read_table(path)
    return table.kernels if table.arch == arch else {}


def _config_line(entry: Mapping[str, Any]) -> str:
    words = [f"{name}={json.dumps(value)}" for name, value in sorted(entry.get("kwargs", {}).items())]
    usual = with_defaults({})
    words += [f"{k}={v}" for k, v in sorted(entry.items()) if k != "kwargs" and (k not in usual or usual[k] != v)]
    return " ".join(words)


def _rounded(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
