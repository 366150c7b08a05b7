"""Where in an operator's own file an exception came from: what a person who wrote it looks for first.

::

    measure/, pool/, tuner/ …   ours: never named
    my_op.py:23                 the last of these is named
    torch/nn/functional.py      installed: named only if nothing else is, and then the one that was called first
"""

from __future__ import annotations

import os
import sysconfig
import traceback

from aiter_tuning.status import DETAIL_LIMIT, describe

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OURS = (*(os.path.join(_PACKAGE, part, "") for part in ("measure", "pool", "runner", "tuner")), "<")
_INSTALLED = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib"))


def place_of(error: BaseException) -> str:
    """``my_op.py:23``; empty: nothing of an operator was running, as when it takes other arguments than it is given."""
    steps = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    theirs = [step for step in steps if not step[0].startswith(_OURS)]
    if not theirs:
        return ""
    own = [step for step in theirs if not step[0].startswith(_INSTALLED)]
    file, line = own[-1] if own else theirs[0]
    return f"{os.path.basename(file)}:{line}"


def described_with_place(error: BaseException) -> str:
    """``KeyError: 'x', at my_op.py:23``, on one line and no longer than a detail may be."""
    place = place_of(error)
    if not place:
        return describe(error)
    return f"{describe(error, DETAIL_LIMIT - len(place) - 5)}, at {place}"
