"""The groups of a run on their way to the lanes: in order, one made ready ahead for each lane, given back if need be.

::

    groups ──in order──▶ ledger, pickled ──▶ ready ──take──▶ a lane
                                              ▲
    a retired lane ──give_back────────────────┘
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from aiter_tuning.pool.compile_book import Slots
from aiter_tuning.pool.ledger import Ledger, OnFault
from aiter_tuning.pool.messages import GroupPayload, Unsendable
from aiter_tuning.pool.pickling import dumps
from aiter_tuning.status import describe
from aiter_tuning.task import Group

_LARGE_PAYLOAD_BYTES = 1 << 20
"""Groups that bring tensors of their own are pickled when they are sent, not ahead."""


class Work(NamedTuple):
    """A group as a lane takes it."""

    number: int
    ledger: Ledger
    payload: bytes | None
    """What its worker gets; None if it cannot be sent."""
    problem: str = ""
    """Why it cannot."""


class Feed:
    """Hands out the groups of one run.

    Args:
        groups: a list or tuple is worked off with the costliest first, so that no long group is left for the end; any
            other sequence in its own order, each group made when it is its turn and not kept.
        plan: how to measure; travels with each group.
        on_fault: see :class:`~aiter_tuning.pool.ledger.Ledger`.
        retries: see there.
        ahead: how many groups to make ready before a lane asks.
        slots: where the candidates of a group that is compiled ahead stand in the compile book.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        plan: Any,
        on_fault: OnFault,
        retries: int,
        ahead: int,
        slots: Callable[[int], Slots | None] = lambda number: None,
    ) -> None:
        self._groups = groups
        self._plan = plan
        self._slots = slots
        self._on_fault: OnFault = on_fault
        self._retries = retries
        self._ahead = ahead
        self._order: Iterator[int] = iter(order_of(groups))
        self._ready: deque[Work] = deque()
        self._unmade = len(groups)
        self.next_number = len(groups)
        """For the next group that comes into being while others run."""
        self.returned: deque[tuple[int, Ledger]] = deque()
        """Groups that a retired lane gave back."""

    @property
    def is_empty(self) -> bool:
        """Whether no group is left that was not taken: the last to end can rely on being told so."""
        return not (self._unmade or self._ready or self.returned)

    def take(self) -> Work | None:
        """The next group; None when there is none."""
        if self.returned:
            return self.again(*self.returned.popleft())
        if not self._ready:
            self._make_ready()
        return self._ready.popleft() if self._ready else None

    def number(self, group: Group) -> tuple[int, Ledger]:
        """The number and the books of a group that came into being while others ran."""
        number, self.next_number = self.next_number, self.next_number + 1
        return number, Ledger(group, on_fault=self._on_fault, retries=self._retries)

    def again(self, number: int, ledger: Ledger) -> Work:
        """A group that was taken before, for another worker."""
        return Work(number, ledger, *self._pickle(number, ledger))

    def give_back(self, number: int, ledger: Ledger) -> None:
        """The lane cannot go on with it."""
        self.returned.append((number, ledger))

    def make_ready_ahead(self) -> None:
        """At most one group a call, so that nobody who has something to say waits for long."""
        if len(self._ready) >= self._ahead:
            return
        if all(len(work.payload or b"") < _LARGE_PAYLOAD_BYTES for work in self._ready):
            self._make_ready()

    def _make_ready(self) -> None:
        if not self._unmade:
            return
        number = next(self._order)
        self._unmade -= 1
        ledger = Ledger(self._groups[number], on_fault=self._on_fault, retries=self._retries)
        self._ready.append(self.again(number, ledger))

    def _pickle(self, number: int, ledger: Ledger) -> tuple[bytes | None, str]:
        group = ledger.group
        tasks: tuple[Any, ...] = tuple((None, *task[1:]) for task in group.tasks)  # the caller's names stay here
        while True:
            payload = GroupPayload(
                tuple(map(_apart, tasks)) if ledger.apart else tasks,
                group.inputs_ids,
                group.reference_ids,
                group.data,
                self._plan,
                group.logbook,
                self._slots(number),
                ledger.contest,
            )
            try:
                return dumps(payload), ""
            except Exception as error:  # whatever the caller's objects raise while they are pickled
                if ledger.apart:
                    return None, describe(error)
                ledger.apart = True  # whichever of them it is, the others are to be measured


def _apart(task: tuple[Any, ...]) -> bytes | Unsendable:
    try:
        return dumps(task)
    except Exception as error:
        return Unsendable(describe(error))


def order_of(groups: Sequence[Group]) -> Sequence[int]:
    """The groups' numbers in the order in which lanes take them."""
    if isinstance(groups, list | tuple):
        return sorted(range(len(groups)), key=lambda number: -groups[number].cost)
    return range(len(groups))
