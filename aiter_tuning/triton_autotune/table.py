"""Tuned tables: which config a kernel gets for which launch, on which architecture.

::

    <arch>.json    {"arch", "triton", "packages", "source", "kernels": {kernel: {tuning key or "*": config}},
                    "provenance": {…}, "deny": […]}
                    ▲ the last two are ours; readers that don't know them pass them over

    search path    dir 1/<arch>.json ─┐
                   dir 2/<arch>.json ─┼─► load: the first usable file
                   packaged          ─┘   load_overlay: all of them, entry by entry, the first that fits

An entry is only ever a reference: it stands for a live candidate of the kernel or for nothing, so a table can't invent
a config, and hooks survive.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.atomic_file import write_json
from aiter_tuning.triton_autotune.config_json import matches
from aiter_tuning.triton_autotune.deny import DenyRule, parse_rules, read_rules
from aiter_tuning.triton_autotune.environment import FIELDS, package_versions, triton_version
from aiter_tuning.triton_autotune.identity import ANY_KEY, Fingerprint
from aiter_tuning.triton_autotune.merge import (
    count_votes,
    disagreement_report,
    disagreements,
    merge_records,
    merge_votes,
)

__all__ = [
    "AnyTable",
    "Found",
    "Live",
    "Lookup",
    "OverlayTable",
    "StaleEntryError",
    "TunedTable",
    "count_votes",
    "disagreement_report",
    "disagreements",
    "find_in",
    "load",
    "load_overlay",
    "merge_records",
    "merge_votes",
    "parse_table",
    "write",
]

logger = logging.getLogger(__name__)

PACKAGED = Path(__file__).parent / "tables"
_UNKNOWN = ("", "unknown", None)

Kernels = Mapping[str, Mapping[str, Mapping[str, Any]]]


class Live(NamedTuple):
    """What an entry is compared with: the kernel and the machine as they are now."""

    kernel: Fingerprint
    environment: Mapping[str, str]


class StaleEntryError(RuntimeError):
    """A table's entry no longer belongs to the kernel or machine, and the policy says that this is an error."""


class Found(NamedTuple):
    """What a table has for a launch."""

    config: Any
    key: str
    """The tuning key itself, or ``*``."""
    path: str
    """The file; empty for a table made in memory."""


class Lookup(NamedTuple):
    """The outcome of a search: a config or None, and what is worth a warning."""

    found: Found | None
    notes: tuple[str, ...]


class TunedTable:
    """One architecture's entries, from one file. True if it has any.

    Args:
        kernels: ``{kernel: {tuning key or "*": config}}``.
        provenance: the file's whole content; its ``provenance`` section says what the entries were made with.
    """

    def __init__(
        self, arch: str, kernels: Kernels, provenance: Mapping[str, Any] | None = None, *, path: str = ""
    ) -> None:
        self.arch = arch
        self.kernels = kernels
        self.provenance = dict(provenance or {})
        self.path = path

    def __bool__(self) -> bool:
        return bool(self.kernels)

    def lookup(self, kernel: str, key: str, candidates: Iterable[Any]) -> Any:
        """The live candidate that the entry for ``key``, else the one for ``*``, stands for; else None.

        An entry for ``key`` that stands for no candidate is a miss; :meth:`find` goes on to ``*``.
        """
        entries = self.kernels.get(kernel) or {}
        entry = entries.get(key) or entries.get(ANY_KEY)
        return _candidate(entry, candidates) if entry else None

    def find(
        self, names: Sequence[str], key: str, candidates: Sequence[Any], live: Live | None = None, on_stale: str = "use"
    ) -> Lookup:
        """See :func:`find_in`."""
        return find_in([self], names, key, candidates, live, on_stale)

    @property
    def layers(self) -> tuple[TunedTable, ...]:
        """The files it is made of."""
        return (self,)

    @property
    def deny_rules(self) -> tuple[DenyRule, ...]:
        """Configs that this table says must never be chosen."""
        return parse_rules(self.provenance.get("deny", ()), self.path or "table")

    def stale(self, kernel: str, live: Live) -> tuple[str, ...]:
        """What differs between the entries of ``kernel`` and now, each as ``what: then, now``. Unknowns don't count."""
        section = self.provenance.get("provenance")
        if not isinstance(section, Mapping):
            return ()
        then: dict[str, Any] = dict(_mapping(section.get("environment")))
        now: dict[str, Any] = dict(live.environment)
        names = [*FIELDS]
        for name, value in zip(("kernel source", "candidates"), live.kernel, strict=True):
            then[name] = _mapping(_mapping(section.get("kernels")).get(kernel)).get(name.removeprefix("kernel "))
            now[name] = value
            names.append(name)
        return tuple(
            f"{name}: table {then.get(name)}, now {now.get(name)}"
            for name in names
            if then.get(name) not in _UNKNOWN and now.get(name) not in _UNKNOWN and then[name] != now[name]
        )


class OverlayTable:
    """All tables along a search path, asked in order, entry by entry. True if any of them has entries."""

    def __init__(self, arch: str, layers: Sequence[TunedTable], rules: Sequence[DenyRule] = ()) -> None:
        self.arch = arch
        self.layers = tuple(layers)
        self.deny_rules = (*rules, *(rule for layer in self.layers for rule in layer.deny_rules))

    def __bool__(self) -> bool:
        return any(self.layers)

    @property
    def kernels(self) -> dict[str, dict[str, Mapping[str, Any]]]:
        """The entries that are asked first, of every kernel and key."""
        merged: dict[str, dict[str, Mapping[str, Any]]] = {}
        for layer in reversed(self.layers):
            for kernel, entries in layer.kernels.items():
                merged.setdefault(kernel, {}).update(entries)
        return merged

    def lookup(self, kernel: str, key: str, candidates: Iterable[Any]) -> Any:
        """The live candidate for ``key``, else for ``*``, of the first layer that has one that fits; else None."""
        found = self.find([kernel], key, list(candidates)).found
        return found.config if found else None

    def find(
        self, names: Sequence[str], key: str, candidates: Sequence[Any], live: Live | None = None, on_stale: str = "use"
    ) -> Lookup:
        """See :func:`find_in`."""
        return find_in(self.layers, names, key, candidates, live, on_stale)


AnyTable = TunedTable | OverlayTable


def find_in(
    layers: Sequence[TunedTable],
    names: Sequence[str],
    key: str,
    candidates: Sequence[Any],
    live: Live | None,
    on_stale: str,
) -> Lookup:
    """The first entry that fits: by name, then ``key`` before ``*``, then by layer.

    Entries that stand for no candidate are passed over. ``on_stale`` says what happens to those whose provenance
    differs from ``live``: ``use``; ``warn``: use, with a note; ``miss``: pass over; ``error``: raise.

    Raises:
        StaleEntryError: with ``on_stale="error"``, an entry is stale or stands for no candidate.
    """
    notes: list[str] = []
    for name in names:
        for level in dict.fromkeys((key, ANY_KEY)):
            for layer in layers:
                entry = (layer.kernels.get(name) or {}).get(level)
                if not entry:
                    continue
                config = _candidate(entry, candidates)
                where = f"{layer.path or 'table'}: {name}[{level}]"
                if config is None:
                    notes.append(f"{where} names no candidate of the kernel as it is now")
                elif differences := layer.stale(name, live) if live is not None else ():
                    notes.append(f"{where} is stale ({'; '.join(differences)})")
                else:
                    return Lookup(Found(config, level, layer.path), tuple(notes))
                if on_stale == "error":
                    raise StaleEntryError(f"{notes[-1]}; record and merge again, or set on_stale to 'warn' or 'miss'")
                if config is not None and on_stale == "use":
                    return Lookup(Found(config, level, layer.path), tuple(notes[:-1]))
                if config is not None and on_stale == "warn":
                    return Lookup(Found(config, level, layer.path), tuple(notes))
    return Lookup(None, tuple(notes))


def load(arch: str, table_path: Iterable[str | os.PathLike[str]] = ()) -> TunedTable:
    """The first usable ``<arch>.json`` of the search path, whole; an empty table if there is none.

    A file that cannot be used, or a directory that does not exist, is logged and passed over.
    """
    return next(_tables(arch, table_path), None) or TunedTable(arch, {})


def load_overlay(arch: str, table_path: Iterable[str | os.PathLike[str]] = ()) -> OverlayTable:
    """Every usable ``<arch>.json`` of the search path, and the ``deny.json`` beside each."""
    paths = [os.path.expanduser(path) for path in table_path]
    rules = [rule for directory in (*paths, str(PACKAGED)) for rule in read_rules(Path(directory, "deny.json"))]
    return OverlayTable(arch, list(_tables(arch, paths)), rules)


def write(
    arch: str,
    kernels: Kernels,
    path: str | os.PathLike[str],
    source: str = "",
    *,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Writes a table, stamped with the versions installed here; directories are made, an existing file is replaced.

    Args:
        source: free text: where the entries come from.
        provenance: the ``provenance`` section: ``environment``, ``kernels`` (hashes), ``evidence``.
    """
    content: dict[str, Any] = {
        "arch": arch,
        "triton": triton_version(),
        "packages": package_versions(),
        "source": source,
        "kernels": kernels,
    }
    if provenance:
        content["provenance"] = {"format": 1, **provenance}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_json(path, content)


def parse_table(data: Any, arch: str | None, path: str) -> TunedTable:
    """A table from a file's JSON.

    Raises:
        ValueError: it is no table, or one for another architecture.
    """
    if not isinstance(data, dict) or not isinstance(data.get("kernels"), dict):
        raise ValueError(f"{path}: expected an object with an object 'kernels'")
    held = data.get("arch")
    if arch is not None and held is not None and held != arch:
        raise ValueError(f"{path} holds a table for {held}, not {arch}")
    for kernel, entries in data["kernels"].items():
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ValueError(f"{path}: kernels[{kernel!r}] is not {{tuning key: config}}")
    rest = {name: value for name, value in data.items() if name != "kernels"}
    return TunedTable(str(held or arch or ""), data["kernels"], rest, path=path)


def _tables(arch: str, table_path: Iterable[str | os.PathLike[str]]) -> Iterator[TunedTable]:
    for directory in (*(os.path.expanduser(os.fspath(path)) for path in table_path), str(PACKAGED)):
        if not os.path.isdir(directory):
            if os.path.exists(directory):
                logger.warning(
                    "table path %s is a file; expected a directory, in which %s.json is looked for", directory, arch
                )
            elif directory != str(PACKAGED):
                logger.warning("table path %s does not exist", directory)
            continue
        path = os.path.join(directory, f"{arch}.json")
        try:
            with open(path, encoding="utf-8") as file:
                table = parse_table(json.load(file), arch, path)
        except FileNotFoundError:
            others = _other_tables(directory)
            if others and directory != str(PACKAGED):
                logger.warning(
                    "table path %s has no %s.json, the table of this architecture; it has %s", directory, arch, others
                )
            continue
        except (OSError, ValueError) as error:
            logger.warning("tuned table %s is not used: %s", path, error)
            continue
        made_with, here = str(table.provenance.get("triton") or ""), triton_version()
        if made_with and here and made_with != here:
            logger.warning(
                "tuned table %s was made with triton %s, this is %s: entries that name no live candidate are misses",
                path,
                made_with,
                here,
            )
        yield table


def _other_tables(directory: str) -> str:
    """Names of what else might be a table there."""
    names = sorted(path.name for path in Path(directory).glob("*.json") if path.name != "deny.json")
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "")


def _candidate(entry: Mapping[str, Any], candidates: Iterable[Any]) -> Any:
    return next((config for config in candidates if matches(entry, config)), None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
