"""Tables as they were read once, for timing what serving runs under them: no look at a file in a timed call.

::

    a, b = PinnedTables("gemm_bf16", "today.csv"), PinnedTables("gemm_bf16", "new.csv")
    a.use() ─▶ lookups of the family look into today.csv ─▶ b.use() ─▶ into new.csv ─▶ …      one comparison if in use
    release()                                                                                 as ever again

For processes that measure: it holds for the whole process, and a table that changes meanwhile is not read again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager

from aiter_tuning.serving import bound
from aiter_tuning.serving.answers import Answers, Seen
from aiter_tuning.serving.operators import FamilyLike, operator_of

_in_use: dict[str, PinnedTables] = {}
"""By family."""


class PinnedTables:
    """What lookups of one family find in some tables.

    Args:
        family: its name, class or an instance.
        tuned: the tables; none: those that a lookup finds where it usually looks.
    """

    __slots__ = ("_name", "_operator", "_tuned")

    def __init__(self, family: FamilyLike, tuned: tuple[str, ...] | None) -> None:
        self._operator = operator_of(family)
        self._name = self._operator.name
        self._tuned = tuned

    def use(self) -> None:
        """From now on, lookups that name no tables of their own look into these."""
        if _in_use.get(self._name) is not self:
            bound.point(self._operator, self._tuned)
            _in_use[self._name] = self

    @contextmanager
    def watched(self) -> Iterator[list[Seen]]:
        """Uses them, tells what lookups find inside, and pins it: from then on they are not read again."""
        self.use()
        with bound.watch(self._operator) as seen:
            for answers in self._answers():
                answers.look_now()
            yield seen
            for answers in self._answers():
                answers.due = math.inf

    def _answers(self) -> list[Answers]:
        return bound.answers_in(self._operator, self._tuned)


@functools.cache
def pinned(family: FamilyLike, tuned: tuple[str, ...] | None) -> PinnedTables:
    """The same one each time; see :class:`PinnedTables`."""
    return PinnedTables(family, tuned)


def release(family: FamilyLike) -> None:
    """Lookups of a family look where they usually do."""
    operator = operator_of(family)
    if _in_use.pop(operator.name, None) is not None:
        bound.point(operator, None)
