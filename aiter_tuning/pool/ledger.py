"""The books of one group: who is next, who has a verdict, and what a fault means for whom.

Pure bookkeeping, no processes: the pool reports what happened, the ledger answers with the verdicts that follow. Every
candidate gets exactly one. A *fault* is a device fault, a dead worker, a timeout, or inputs or a reference that cannot
be made; what it costs the others depends on ``on_fault``:

=============================  ===========================================  ========================================
what happened                  ``continue``                                 ``abandon``
=============================  ===========================================  ========================================
the candidate's worker died    crash; tried again ``retries`` times first   the same, then the rest is not_run
it outlived its clock          timeout                                      timeout, the rest is not_run
inputs or reference fail       the same verdict for all who share them      its verdict, the rest is not_run
the group's clock ran out      it and the rest are not_run                  timeout, the rest is not_run
out of memory while running    once more in a clean worker, then final      the same; no fault
a stranger's SIGKILL, a GPU    once more in a clean worker, then crash      the same
that was reset
=============================  ===========================================  ========================================
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from aiter_tuning.contest import Block, untimed
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status, one_line, says_device_fault
from aiter_tuning.task import Group

OnFault = Literal["abandon", "continue"]
Verdicts = list[tuple[int, Measurement]]

_MOST_LOST_HANDOVERS = 3
"""How often a candidate may be handed to a worker that dies before it has said that it started."""


class Ledger:
    """What is known about the candidates of one group."""

    def __init__(self, group: Group, *, on_fault: OnFault, retries: int) -> None:
        self.group = group
        self._on_fault = on_fault
        self._retries = retries
        self.contest = group.contest
        """With the blocks so far."""
        self._results: list[Measurement | None] = [None] * len(group.tasks)
        self._queue = deque(range(len(group.tasks)))
        self._tries: dict[object, int] = {}
        self._stranger_kills: set[object] = set()
        self._lost_handovers = 0
        self._tried_clean: set[int] = set()
        self.apart = False
        """Whether its tasks travel one by one, because together they could not be sent or loaded."""
        self.leader_us = math.inf
        """Latency of the fastest correct candidate so far."""
        self.spent_s = 0.0
        """Time that workers had the group open, without restarts."""

    @property
    def next(self) -> int | None:
        """The candidate whose turn it is."""
        return self._queue[0] if self._queue else None

    @property
    def remaining(self) -> tuple[tuple[int, int], ...]:
        """Index and due attempt of all who have no verdict, in order."""
        queue = self._queue if self.contest is None else sorted(self._queue)
        return tuple((index, self.attempt(index)) for index in queue)

    @property
    def ended(self) -> bool:
        return not self._queue

    @property
    def results(self) -> Sequence[Measurement]:
        """All verdicts, in the group's order. Only once :attr:`ended`."""
        return [result for result in self._results if result is not None]

    def attempt(self, index: int) -> int:
        """The number of the try that is due: 1 unless it was tried before."""
        return self._tries.get(index, 0) + 1

    def turn_to(self, index: int) -> None:
        """In a contest it is the turn of whoever its worker says, as long as there is no verdict on it."""
        if self.contest is not None and index != self.next and index in self._queue:
            self._queue.remove(index)
            self._queue.appendleft(index)

    def block_done(self, block: Block, device: str) -> None:
        """The entrants of the contest have had their turns, on this device."""
        if self.contest is not None:
            self.contest = self.contest.after(block, device)

    def cannot_be_captured(self, index: int) -> None:
        """The entrant is to be timed without a graph from here on."""
        if self.contest is not None and index not in self.contest.no_graph:
            self.contest = replace(self.contest, no_graph=(*self.contest.no_graph, index))

    def measured(self, index: int, measurement: Measurement, *, leaving: bool) -> tuple[Verdicts, bool]:
        """A candidate came back. Second item: whether it needs a clean worker now."""
        self._began(index)
        if leaving:
            return self._after_death(index, "candidate", measurement, stranger=False), False
        if measurement.may_be_the_process and index not in self._tried_clean and not self._left_out(index):
            self._tried_clean.add(index)
            return [], True
        return [self._settle(index, measurement)], False

    def unprepared(self, index: int, phase: str, measurement: Measurement) -> Verdicts:
        """Its inputs or its reference could not be made."""
        return self._faulted(self._sharing(index, phase), measurement)

    def open_failed(self, detail: str) -> Verdicts:
        """No candidate of the group could be loaded in a worker."""
        failure = Measurement.failed(Status.crash, f"cannot be loaded in a worker: {detail}")
        return [self._settle(index, failure) for index in tuple(self._queue)]

    def died(self, phase: str, exit_text: str, output: str, *, stranger: bool) -> Verdicts:
        """The worker died while the next candidate was in ``phase``.

        Args:
            phase: ``handed`` (not yet started), ``opening``, ``inputs``, ``reference`` or ``candidate``.
            exit_text: how it ended, e.g. ``exited with code 7``.
            output: the last that it printed.
            stranger: somebody else's doing: SIGKILL that nobody here sent, a reset of several GPUs.
        """
        index = self.next
        if index is None:
            return []
        if phase == "opening" and not self.apart:
            self.apart = True  # loaded one by one, the next death names its culprit
            return []
        if phase == "candidate":
            self._began(index)
        if phase == "handed":
            self._lost_handovers += 1
            if self._lost_handovers < _MOST_LOST_HANDOVERS:
                return []
            self._tries[index] = self._retries + 1
        place = {"candidate": "", "handed": " before it could start"}.get(phase, f" in {phase}")
        detail = with_output(f"worker {exit_text}{place}", output)
        return self._after_death(index, phase, Measurement.failed(Status.crash, detail), stranger=stranger)

    def timed_out(self, phase: str, clock: str, seconds: float, output: str) -> Verdicts:
        """The next candidate outlived ``clock`` (``candidate``, ``compile`` or ``group``) and was killed."""
        index = self.next
        if index is None:
            return []
        if phase == "opening" and clock != "group" and not self.apart:
            self.apart = True
            return []
        if phase == "candidate":
            self._began(index)
        place = "" if phase == "candidate" else f" in {phase}"
        detail = with_output(f"no result after {seconds:g} s{place} ({clock} clock), killed", output)
        if clock == "group" and self._on_fault == "continue":
            return self.close_with(f"the group's {seconds:g} s were used up")
        indices = [index] if clock == "group" else self._sharing(index, phase)
        attempt = max(1, self._tries.get(index, 0))
        return self._faulted(indices, Measurement.failed(Status.timeout, detail, attempt=attempt))

    def close_with(self, reason: str) -> Verdicts:
        """Everything without a verdict is ``not_run``."""
        return [self._settle(index, Measurement.failed(Status.not_run, reason)) for index in tuple(self._queue)]

    def _began(self, index: int) -> None:
        """One more try of a candidate that did start."""
        self._tries[index] = self._tries.get(index, 0) + 1
        self._lost_handovers = 0

    def _left_out(self, index: int) -> bool:
        """Whether a block on record says that it could not be timed: it cannot come back into its contest then."""
        blocks = self.contest.blocks if self.contest is not None else ()
        return any(index in untimed(block) for block in blocks)

    def _sharing(self, index: int, phase: str) -> list[int]:
        if phase == "opening":
            return list(self._queue)
        if phase in ("inputs", "reference"):
            return [other for other in self.group.sharing(index, phase) if self._results[other] is None]
        return [index]

    def _after_death(self, index: int, phase: str, measurement: Measurement, *, stranger: bool) -> Verdicts:
        indices = self._sharing(index, phase)
        victim: object = index if indices == [index] and phase in ("candidate", "handed") else (phase, indices[0])
        if victim is not index:
            self._tries[victim] = self._tries.get(victim, 0) + 1
        if stranger and victim not in self._stranger_kills:
            self._stranger_kills.add(victim)
            return []
        if self._tries.get(victim, 0) <= self._retries:
            return []
        attempt = max(1, self._tries.get(index, 0))
        return self._faulted(
            indices, Measurement.failed(measurement.status, measurement.detail, us=math.inf, attempt=attempt)
        )

    def _faulted(self, indices: Sequence[int], measurement: Measurement) -> Verdicts:
        if self._on_fault == "abandon":
            verdicts = [self._settle(indices[0], measurement)]
            return verdicts + self.close_with("behind a fault in its group")
        return [self._settle(index, measurement) for index in indices]

    def _settle(self, index: int, measurement: Measurement) -> tuple[int, Measurement]:
        self._results[index] = measurement
        if self._queue and self._queue[0] == index:
            self._queue.popleft()
        else:
            self._queue.remove(index)
        if measurement.status is Status.ok and not measurement.censored:
            self.leader_us = min(self.leader_us, measurement.us)
        return index, measurement


def with_output(detail: str, output: str) -> str:
    """``detail`` and the telling part of what was printed last, on one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if not lines:
        return detail
    fatal = next((i for i, line in enumerate(lines) if line.startswith("Fatal Python error")), None)
    if fatal is None:
        chosen = lines[-3:]
    else:
        # faulthandler prints the innermost frame first. Before it, ROCm says why it aborts the process.
        reason = [line for line in lines[:fatal] if says_device_fault(line)][-1:]
        chosen = [*reason, *lines[fatal : fatal + 4]]
    return f"{detail}; last output: {one_line(' | '.join(chosen), 300)}"
