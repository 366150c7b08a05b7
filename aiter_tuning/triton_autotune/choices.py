"""What was chosen in this process, in a form that ranks and runs can compare.

``arch|qualified name|tuning key`` stands for ``config;pinned`` or ``config;timed``. Two kernels of one name (made by a
factory) are told apart by the tag of their source as soon as both have been seen, whichever came first.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.atomic_file import write_json
from aiter_tuning.triton_autotune.environment import environment

FORMAT = "aiter_tuning.choices/1"


class Place(NamedTuple):
    """Which choice: of which kernel, for which launch, on what."""

    arch: str
    kernel: str
    tag: str
    key: str


class ChoiceLog:
    """Choices in order; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[Place, str] = {}
        self._order: dict[Place, int] = {}
        self._sources: dict[Place, str] = {}
        self._changes = 0

    def put(self, place: Place, value: str, source: str) -> None:
        """Notes a choice; an unchanged one is no news."""
        with self._lock:
            self._sources[place] = source
            if self._values.get(place) != value:
                self._changes += 1
                self._values[place] = value
                self._order[place] = self._changes

    def since(self, position: int) -> tuple[dict[str, str], int]:
        """What changed after ``position``, as text, and the position now."""
        with self._lock:
            names = _names(self._values)
            changed = {names[p]: v for p, v in self._values.items() if self._order[p] > position}
            return changed, self._changes

    def choices(self) -> dict[str, str]:
        """Every choice, as text."""
        return self.since(-1)[0]

    def sources(self) -> dict[str, str]:
        """Where each choice came from: ``table``, ``min_cost``, ``timed``, …"""
        with self._lock:
            names = _names(self._sources)
            return {names[place]: source for place, source in self._sources.items()}

    def counts(self) -> dict[str, dict[str, int]]:
        """For each kernel, how many choices came from where."""
        with self._lock:
            counts: dict[str, dict[str, int]] = {}
            for place, source in self._sources.items():
                held = counts.setdefault(place.kernel, {})
                held[source] = held.get(source, 0) + 1
            return counts


def digest_of(choices: Mapping[str, str]) -> str:
    """32 hex digits, equal for equal choices."""
    lines = "\n".join(sorted(f"{key}={value}" for key, value in choices.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:32]


def write_choices(path: str | os.PathLike[str], choices: Mapping[str, str], sources: Mapping[str, str]) -> None:
    """A choice log as a file, for comparing runs and for coverage."""
    write_json(
        path,
        {"format": FORMAT, "environment": environment(), "choices": dict(choices), "sources": dict(sources)},
    )


def read_choices(path: str | os.PathLike[str]) -> dict[str, str]:
    """The choices in a file.

    Raises:
        ValueError: it is no choice log.
    """
    with open(path, encoding="utf-8") as file:
        try:
            data = json.load(file)
        except ValueError as error:
            raise ValueError(f"{path}: not valid JSON ({error})") from error
    if not is_choice_log(data):
        raise ValueError(f"{path}: expected a choice log (format {FORMAT})")
    return dict(data["choices"])


def is_choice_log(data: Any) -> bool:
    """Whether a file's JSON is a choice log."""
    return (
        isinstance(data, dict)
        and data.get("format") == FORMAT
        and isinstance(data.get("choices"), dict)
        and all(isinstance(value, str) for value in data["choices"].values())
    )


def compare_choices(left: Mapping[str, str], right: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(key, left, right) of each choice that both made, and made differently."""
    return [(key, left[key], right[key]) for key in sorted(left.keys() & right.keys()) if left[key] != right[key]]


def distinct_names(pairs: Any) -> dict[tuple[str, str], str]:
    """What each (kernel, tag) is called: the name alone, or ``name#tag`` where the name has several tags."""
    tags: dict[str, set[str]] = {}
    for kernel, tag in pairs:
        tags.setdefault(kernel, set()).add(tag)
    return {
        (kernel, tag): kernel if len(found) == 1 else f"{kernel}#{tag}"
        for kernel, found in tags.items()
        for tag in found
    }


def _names(places: Mapping[Place, Any]) -> dict[Place, str]:
    kernels = distinct_names((place.kernel, place.tag) for place in places)
    return {place: f"{place.arch}|{kernels[place.kernel, place.tag]}|{place.key}" for place in places}
