"""One record of evidence as a value and as a line of strict JSON: pure functions, no files.

docs/evidence.md describes the fields for those who read the file with other tools. What is read is checked field by
field, so that whoever uses a record can rely on its types.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from aiter_tuning.keys import DEVICE_COLUMNS

SCHEMA = 1

_SHOWN = 60


@dataclass(frozen=True)
class Timed:
    """A candidate and its latency in the comparison that decided."""

    name: str
    config: Mapping[str, Any]
    us: float | None
    """Microseconds; None: it was not timed, because it failed or is not known any more."""
    samples_us: tuple[float | None, ...] = ()
    """One latency for each block of the comparison; None where it was not timed."""


@dataclass(frozen=True)
class Evidence:
    """One decision about one shape on one device."""

    family: str
    key: Mapping[str, Any]
    """``gfx``, ``cu_num``, ``gpu_model`` and the shape's fields."""
    verdict: str
    reason: str
    """For a person."""
    published: bool
    """Whether the decision wrote a row."""
    complete: bool
    """False: the run's budget ended before every candidate was measured."""
    margin_pct: float | None
    """How much faster the challenger is, in percent of the incumbent; None: nothing was compared."""
    bar_pct: float | None
    """What the margin had to reach."""
    noise_pct: float | None
    """The noise floor of the comparison."""
    incumbent: Timed | None
    """What a lookup found before, else the family's default."""
    winner: Timed | None
    """What the row names; None: no candidate is correct."""
    default: Timed | None
    device_uuid: str
    timer: str
    flags: tuple[str, ...] = ()
    """Circumstances that make the latencies less trustworthy."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """Clocks, temperature, throttling and foreign processes while it was timed."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """``torch``, ``triton``, ``driver``, …"""
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """``run``, ``winner`` and ``candidates``."""
    served: Mapping[str, Any] = field(default_factory=dict)
    """``before`` and ``after``: the public operator under the old and the new row; empty: that was not compared."""
    confirmed: Mapping[str, Any] = field(default_factory=dict)
    """``before`` and ``after``: incumbent and winner timed again in another process; empty: nobody was promoted."""
    command: str = ""
    began: str = ""
    """When the shape's first candidate started, ISO 8601."""
    ended: str = ""

    def to_json(self) -> str:
        """One line of strict JSON.

        Raises:
            ValueError: a number in it is not finite, or a value is none of JSON's.
        """
        return json.dumps({"schema": SCHEMA, **asdict(self)}, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Evidence:
        """The inverse of :meth:`to_json`; fields that are not known are left alone.

        Raises:
            ValueError: it is no record of this schema; says which field holds what.
        """
        return _record(_object(text))


# What a record has to look like.


def _object(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no number in JSON; expected null where there is no value")

    try:
        found = json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        found_at = f"{error.msg.removesuffix(' at')} at letter {error.pos + 1}"  # some messages end in "at"
        raise ValueError(f"{_shown(text)} is not JSON ({found_at})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{_shown(text)} is not a JSON object")
    return found


def _record(found: Mapping[str, Any]) -> Evidence:
    schema = found.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise ValueError(
            f"schema is {_shown(schema)}; expected {SCHEMA}: use the version of aiter_tuning that wrote it"
        )
    key = _mapping(found, "key")
    for column in DEVICE_COLUMNS:
        if column not in key:
            raise ValueError(f"key lacks {column}")
    return Evidence(
        family=_text(found, "family"),
        key=key,
        verdict=_text(found, "verdict"),
        reason=_text(found, "reason"),
        published=_flag(found, "published"),
        complete=_flag(found, "complete"),
        margin_pct=_number_or_none(found, "margin_pct"),
        bar_pct=_number_or_none(found, "bar_pct"),
        noise_pct=_number_or_none(found, "noise_pct"),
        incumbent=_timed(found, "incumbent"),
        winner=_timed(found, "winner"),
        default=_timed(found, "default"),
        device_uuid=_text(found, "device_uuid"),
        timer=_text(found, "timer"),
        flags=tuple(_texts(found, "flags")),
        conditions=_mapping(found, "conditions"),
        versions=_mapping_of_texts(found, "versions"),
        fingerprints=_mapping_of_texts(found, "fingerprints"),
        served=_mapping(found, "served") if "served" in found else {},
        confirmed=_mapping(found, "confirmed") if "confirmed" in found else {},
        command=_text(found, "command"),
        began=_moment(found, "began"),
        ended=_moment(found, "ended"),
    )


def _timed(found: Mapping[str, Any], name: str) -> Timed | None:
    side = _get(found, name)
    if side is None:
        return None
    if not isinstance(side, dict):
        raise _mistake(name, side, "an object or null")
    us = _number_or_none(side, "us", inside=name)
    if us is not None and us <= 0:
        raise _mistake(f"{name}.us", us, "a latency above 0 or null")
    samples = _get(side, "samples_us", inside=name)
    if not isinstance(samples, list) or not all(one is None or _is_number(one) for one in samples):
        raise _mistake(f"{name}.samples_us", samples, "a list of numbers and nulls")
    return Timed(_text(side, "name", inside=name), _mapping(side, "config", inside=name), us, tuple(samples))


def _get(found: Mapping[str, Any], name: str, *, inside: str = "") -> Any:
    if name not in found:
        raise ValueError(f"{inside + '.' if inside else ''}{name} is missing")
    return found[name]


def _text(found: Mapping[str, Any], name: str, *, inside: str = "") -> str:
    value = _get(found, name, inside=inside)
    if not isinstance(value, str):
        raise _mistake(f"{inside + '.' if inside else ''}{name}", value, "text")
    return value


def _texts(found: Mapping[str, Any], name: str) -> list[str]:
    value = _get(found, name)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise _mistake(name, value, "a list of texts")
    return value


def _flag(found: Mapping[str, Any], name: str) -> bool:
    value = _get(found, name)
    if not isinstance(value, bool):
        raise _mistake(name, value, "true or false")
    return value


def _mapping(found: Mapping[str, Any], name: str, *, inside: str = "") -> dict[str, Any]:
    value = _get(found, name, inside=inside)
    if not isinstance(value, dict):
        raise _mistake(f"{inside + '.' if inside else ''}{name}", value, "an object")
    return value


def _mapping_of_texts(found: Mapping[str, Any], name: str) -> dict[str, str]:
    value = _mapping(found, name)
    if not all(isinstance(one, str) for one in value.values()):
        raise _mistake(name, value, "an object that holds texts")
    return value


def _number_or_none(found: Mapping[str, Any], name: str, *, inside: str = "") -> float | None:
    value = _get(found, name, inside=inside)
    if value is None:
        return None
    if not _is_number(value):
        raise _mistake(f"{inside + '.' if inside else ''}{name}", value, "a finite number or null")
    return float(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _moment(found: Mapping[str, Any], name: str) -> str:
    value = _text(found, name)
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise _mistake(name, value, "a time such as 2026-01-31T12:00:00Z") from None
    return value


def _mistake(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name} is {_shown(value)}; expected {expected}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
