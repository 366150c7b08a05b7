"""The worker's side of a contest: when to do what, whom to tell, and what to write down.

::

    Go ─▶ enter everyone ─▶ rule.active ─▶ block ─▶ log ─▶ BlockDone ─▶ rule.active ─▶ … ─▶ nobody ─▶ verify everyone
                                  ▲                                          │
                                  └── an entrant that fails leaves ──────────┘       (each verdict is told at once)

Whoever dies here, the board and the logbook name the entrant whose turn it was. A fresh worker enters who is left and
goes on after the last block that was told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aiter_tuning.contest import Block, Contest, block_order, untimed
from aiter_tuning.measurement import UNMEASURED_US, Measurement
from aiter_tuning.pool.board import COMPILING, FINALS, flags_between
from aiter_tuning.pool.messages import BlockDone, NoGraph
from aiter_tuning.status import Status, describe
from aiter_tuning.task import ContestLogbook, Logbook

if TYPE_CHECKING:
    from aiter_tuning.pool.child import Server


class Finals:
    """A contest in the worker that has its group open."""

    def __init__(self, server: Server, bench: Any, contest: Contest, logbook: Logbook | None) -> None:
        """Args: the worker; its :class:`~aiter_tuning.measure.contest.ContestBench`; blocks on record are in there."""
        self._server = server
        self._bench = bench
        self._contest = contest
        self._log = logbook if isinstance(logbook, ContestLogbook) else None
        self._blocks: list[Block] = list(contest.blocks)
        self._attempts: dict[int, int] = {}
        self._flags: dict[int, dict[str, None]] = {}
        self._lost: dict[int, Measurement] = {}
        """Verdicts on entrants that have left, not told yet."""
        self._concluded: set[int] = set()
        self._running: tuple[int, int] | None = None
        """Entrant and attempt that the logbook was told of last."""

    def go(self, candidates: Sequence[tuple[int, int]]) -> None:
        """Carries the contest out, or as much of it as goes before the parent has to decide."""
        self._conclude_lost()
        for index, attempt in candidates:
            if index not in self._bench.entrants and index not in self._concluded:
                self._enter(index, attempt)
        if self._active():
            self._get_ready()
        while active := self._active():
            self._block(active)
        for index in sorted(self._bench.entrants):
            measurement = self._watched((index,), partial(self._bench.conclude, index, self._blocks, self._begin))
            self._conclude(index, measurement)

    def _active(self) -> Sequence[int]:
        """Who is timed next. A rule that fails is the end of the contest and nobody's death."""
        entrants = tuple(sorted(self._bench.entrants))
        try:
            active = self._contest.rule.active(entrants, tuple(self._blocks))
            strangers = set(active) - set(entrants)
            if strangers:
                raise ValueError(f"it wants to time {sorted(strangers)}, who are not in")
        except Exception as error:
            verdict = Measurement.failed(
                Status.crash, f"the contest's rule failed: {describe(error)}", us=UNMEASURED_US
            )
            for index in entrants:
                self._bench.leave(index)
                self._conclude(index, verdict)
            return ()
        return active

    def _enter(self, index: int, attempt: int) -> None:
        server = self._server
        self._attempts[index] = attempt
        self._flags[index] = {}
        left_in = next((block.number for block in self._blocks if index in untimed(block)), None)
        if left_in is not None:  # whoever wrote that died before the verdict
            reason = f"could not be timed in block {left_in}"
            self._conclude(index, Measurement.failed(Status.crash, reason, us=UNMEASURED_US))
            return
        verdict = server.prepare(index, attempt)
        self._running = index, attempt
        if verdict is None:
            server.post(COMPILING, index)
            verdict = self._watched((index,), lambda: self._bench.enter(index, lambda: server.post(FINALS, index)))
        if verdict is None:
            self._end_turn()
        else:
            self._conclude(index, verdict)

    def _get_ready(self) -> None:
        """Gets the timers of all entrants ready; once, unless the parent had to decide about one of them."""
        lost = self._watched(tuple(self._bench.entrants), lambda: self._bench.ready(self._begin))
        self._lost.update(lost)
        self._conclude_lost()
        self._end_turn()
        if self._bench.spoiler is not None:
            self._server.send(NoGraph(self._bench.spoiler))
            self._server.leave_if(True)

    def _block(self, active: Sequence[int]) -> None:
        number = self._blocks[-1].number + 1 if self._blocks else 1
        order = block_order(active, self._contest.seed, number)
        result = self._watched(order, lambda: self._bench.block(number, order, self._begin))
        if result.block is not None:
            self._end_turn()
            self._server.leave_unless_heard()
            if self._log is not None:
                attempts = (self._attempts[index] for index in order)
                timed = tuple(replace(turn, attempt=n) for turn, n in zip(result.timed, attempts, strict=True))
                self._server.written(self._log.block, result.block, timed)
            self._blocks.append(result.block)
            self._server.send(BlockDone(result.block))
        self._lost.update(result.lost)
        self._conclude_lost()

    def _conclude_lost(self) -> None:
        """The culprit of a device fault comes last: nothing is said after it."""
        for index in sorted(self._lost, key=lambda index: index == self._bench.culprit):
            self._conclude(index, self._lost.pop(index))

    def _conclude(self, index: int, measurement: Measurement) -> None:
        self._concluded.add(index)
        if self._running is not None and self._running[0] == index:
            self._running = None  # the verdict ends its turn
        flags = tuple(flag for flag in self._flags[index] if flag not in measurement.flags)
        measurement = replace(measurement, attempt=self._attempts[index], flags=measurement.flags + flags)
        fault = self._bench.fault if index == self._bench.culprit else None
        self._server.conclude(index, measurement, fault)

    # Turns

    def _begin(self, index: int) -> None:
        self._server.post(FINALS, index)
        begins = index, self._attempts[index]
        if self._log is not None and self._running != begins:
            self._server.written(self._log.turn, self._running, begins)
        self._running = begins

    def _end_turn(self) -> None:
        ended, self._running = self._running, None
        if self._log is not None and ended is not None:
            self._server.written(self._log.turn, ended, None)

    def _watched(self, indices: Sequence[int], work: Callable[[], Any]) -> Any:
        """What ``work`` returns; circumstances meanwhile concern all of ``indices``."""
        before = self._server.circumstances()
        result = work()
        flags = dict.fromkeys(flags_between(before, self._server.circumstances()))
        for index in indices:
            self._flags[index].update(flags)
        return result
