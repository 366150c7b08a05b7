"""What the value of a flag has to be; argparse puts the flag's name in front of what is said here."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from aiter_tuning.status import Status

if TYPE_CHECKING:
    from aiter_tuning.tables.findings import Code
    from aiter_tuning.tuner.verifying import Doubt

_RETRIED = tuple(status for status in Status if status not in (Status.ok, Status.not_run))
_Word = TypeVar("_Word", bound=StrEnum)


def count(least: int) -> Callable[[str], int]:
    """A whole number of ``least`` or more."""

    def parse_count(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return value

    return parse_count


def seconds(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def fraction(text: str) -> float:
    """0 to 1."""
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction between 0 and 1")
    return value


def percent(text: str) -> float:
    """0 or more, under 100."""
    value = _number(text)
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage of 0 or more and under 100")
    return value


def flag(text: str) -> bool:
    """True or False, spelled as in tables."""
    from aiter_tuning.keys import parse_flag

    value = parse_flag(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return value


def statuses(text: str) -> tuple[Status, ...]:
    """Statuses that may be retried, separated by commas."""
    return _words(text, _RETRIED, "status to retry")


def codes(text: str) -> tuple[Code, ...]:
    """Kinds of findings, separated by commas."""
    from aiter_tuning.tables.findings import Code

    return _words(text, Code, "kind of finding")


def doubts(text: str) -> tuple[Doubt, ...]:
    """Kinds of doubts about rows, separated by commas."""
    from aiter_tuning.tuner.verifying import Doubt

    return _words(text, Doubt, "kind of doubt")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _words(text: str, known: Iterable[_Word], what: str) -> tuple[_Word, ...]:
    meant = {str(one): one for one in known}
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in meant]
    if unknown or not words:
        found = f"{', '.join(unknown)!r}" if unknown else "nothing"
        raise argparse.ArgumentTypeError(f"{found} is no {what}; there are {', '.join(meant)}")
    return tuple(meant[word] for word in words)
