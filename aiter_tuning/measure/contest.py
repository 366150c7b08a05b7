"""A contest carried out in a worker: its entrants checked, timed in turns until the rule is satisfied, and verified.

::

    enter(i)  ─▶ first call, compared ─▶ an Entrant, kept open          (or its verdict: it does not take part)
    ready()   ─▶ all entrants' timers: copies, warm-up, graphs
    block(n)  ─▶ everyone once, in the block's own order ─▶ Block       (or who broke the device: no block)
    conclude(i) ─▶ median of its block values, more calls compared ─▶ Measurement

Blocks from the record stand in a row with those measured here. Who goes on is the rule's to say, when to do what is the
worker's (:mod:`aiter_tuning.pool.finals`); this module runs candidates and turns what they raise into verdicts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from aiter_tuning.contest import BLOCK_DIGITS, Block, Contest
from aiter_tuning.measure.candidate import Checked, Steps
from aiter_tuning.measure.group import GroupBench
from aiter_tuning.measure.sampling import Sampled
from aiter_tuning.measure.statistics import median
from aiter_tuning.measure.timer import Timer
from aiter_tuning.measure.timing import Timed
from aiter_tuning.measure.turns import Entrant, Turn, Turns, WallTurns
from aiter_tuning.measurement import UNMEASURED_US, Measurement
from aiter_tuning.status import Status, is_device_fault

if TYPE_CHECKING:
    from aiter_tuning.measure.gpu.device_timer import DeviceTimer

Begin = Callable[[int], None]
"""Told who is about to run."""


class BlockResult(NamedTuple):
    """What came of a block."""

    block: Block | None
    """None: the device failed in the middle of it."""
    timed: tuple[Measurement, ...]
    """Its turns, in the block's order."""
    lost: Mapping[int, Measurement]
    """Verdicts on those who could not be timed."""


class ContestBench(GroupBench):
    """A group whose candidates are timed in turns; :attr:`fault` is set once the device has failed."""

    def __init__(self, contest: Contest, *args: Any, **kwargs: Any) -> None:
        """Args: the contest, then those of :class:`~aiter_tuning.measure.group.GroupBench`."""
        super().__init__(*args, **kwargs)
        self.contest = contest
        self._entrants: dict[int, Entrant] = {}
        self._turns: Turns | None = None
        self._settled: set[int] = set()
        self._begin: Begin = lambda index: None
        self.culprit: int | None = None
        """Who broke the device, once :attr:`fault` is set."""

    @property
    def entrants(self) -> Collection[int]:
        """Who has entered and is still in."""
        return self._entrants.keys()

    def enter(self, index: int, first_call_done: Callable[[], None]) -> Measurement | None:
        """The first, checked call of a candidate whose :meth:`prepare` returned None; its verdict if that was all."""
        inputs = self._inputs
        if inputs is None:
            raise RuntimeError("enter() was called for a candidate whose prepare() did not return None")
        checked: Checked | Measurement
        try:
            steps = Steps.of(self._bench, self._tasks[index], inputs, self._reference)
            try:
                checked = steps.check(first_call_done)
            except BaseException as error:
                if not is_device_fault(error):
                    steps.put_back(thoroughly=True)
                raise
            steps.put_back(thoroughly=False)
        except BaseException as error:  # whatever a candidate raises is its verdict
            checked = self._blame(index, error)
        changed = tuple(f"changed_{name}" for name in self._surroundings.restore())
        setup_s, self._setup_s = self._setup_s, 0.0
        if isinstance(checked, Measurement):
            return replace(checked, flags=checked.flags + changed, setup_s=setup_s)
        comparison, flags, first_call_s = checked
        if not steps.is_right(comparison):
            return Measurement(
                Status.mismatch,
                math.inf,
                comparison.err_ratio,
                comparison.detail,
                flags=flags + changed,
                setup_s=setup_s,
                first_call_s=first_call_s,
                device=self._bench.device_id,
            )
        self._entrants[index] = Entrant(index, steps, inputs, checked, setup_s, dict.fromkeys(changed))
        return None

    def ready(self, begin: Begin) -> Mapping[int, Measurement]:
        """Gets the timers of all entrants ready; verdicts on those who cannot be timed.

        If there is a :attr:`spoiler` afterwards, it must not be captured in a graph, and nothing be timed here.
        """
        self._begin = begin
        if self._turns is not None:
            self._turns.close()
        self._turns = self._new_turns()
        failures = self._turns.prepare(list(self._entrants.values()), self._turn)
        return {index: self._lose(index, error) for index, error in failures.items()}

    @property
    def spoiler(self) -> int | None:
        """Entrant whose timing left this process in doubt; it is not to blame."""
        return None if self._turns is None or self._turns.unclean is None else self._turns.unclean[0]

    def block(self, number: int, order: Sequence[int], begin: Begin) -> BlockResult:
        """Times each of ``order`` once."""
        assert self._turns is not None
        self._begin = begin
        turns = self._turns.block([self._entrants[index] for index in order], self._turn)
        timed: list[Measurement] = []
        lost: dict[int, Measurement] = {}
        for index in order:
            turn = turns.get(index)
            if isinstance(turn, Turn):
                verdict = self._count(self._entrants[index], turn, number)
            elif turn is None:  # behind a device fault
                continue
            else:
                verdict = self._lose(index, turn)
            if verdict.status is not Status.ok:
                lost[index] = verdict
                self._entrants.pop(index, None)
            timed.append(verdict)
        if self.fault is not None:
            return BlockResult(None, (), lost)
        us = tuple(one.us if one.status is Status.ok else math.nan for one in timed)
        return BlockResult(Block(number, tuple(order), us), tuple(timed), lost)

    def conclude(self, index: int, blocks: Sequence[Block], begin: Begin) -> Measurement:
        """The verdict on an entrant, who is verified once more and leaves."""
        self._begin = begin
        entrant = self._entrants.pop(index)
        values = [us for block in blocks for i, us in zip(block.order, block.us, strict=True) if i == index]
        values = [us for us in values if us == us]
        if not values:
            return Measurement.failed(Status.not_run, "the contest was decided without timing it")
        recorded = sum(1 for block in self.contest.blocks if index in block.order)
        calls = entrant.calls + recorded * self.contest.block_calls
        timed = Timed(Sampled(median(values), calls), entrant.timer, (), entrant.timing_s)
        steps = entrant.steps
        with self._turn(entrant):
            try:
                if id(entrant.inputs) not in self._settled:  # a call after the checked one may have written unseen
                    self._settled.add(id(entrant.inputs))
                    steps.put_back(thoroughly=True)
                verify = self.contest.verifying_calls if steps.has_reference else 0
                measurement = steps.conclude(entrant.checked, timed, verify=verify)
                steps.put_back(thoroughly=steps.suspicious)
            except BaseException as error:
                measurement = self._blame(index, error)
        flags = tuple(flag for flag in entrant.flags if flag not in measurement.flags)
        return replace(measurement, flags=measurement.flags + flags, setup_s=entrant.setup_s)

    def leave(self, index: int) -> None:
        """The entrant takes no further part."""
        self._entrants.pop(index)

    def close(self) -> None:
        self._entrants.clear()
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.close()
        super().close()

    # Inside

    def _new_turns(self) -> Turns:
        contest, bench = self.contest, self._bench
        if bench.on_gpu and hasattr(bench.new_timer(bench.kind), "burst"):
            from aiter_tuning.measure.gpu.device_turns import DeviceTurns

            return DeviceTurns(lambda: cast("DeviceTimer", bench.new_timer(bench.kind)), contest)
        return WallTurns(cast(Timer, bench.new_timer(bench.kind)), contest.block_calls, contest.block_us)

    @contextlib.contextmanager
    def _turn(self, entrant: Entrant) -> Iterator[None]:
        self._begin(entrant.index)
        try:
            yield
        finally:
            for name in self._surroundings.restore():
                entrant.flags[f"changed_{name}"] = None

    def _count(self, entrant: Entrant, turn: Turn, number: int) -> Measurement:
        """A turn that gave a time: as one of its own, or as the end of its entrant."""
        us, calls, timer, flags, seconds = turn
        us = round(us, BLOCK_DIGITS)
        timed = Timed(Sampled(us, calls), timer, flags, seconds)
        refused = (
            entrant.steps.refused(timed)
            if timed.sampled.is_credible
            else Measurement.failed(Status.crash, f"the {timer} timer read {us} us in block {number}", us=UNMEASURED_US)
        )
        if refused is not None:
            said = (*entrant.checked.flags, *refused.flags, *flags)
            return replace(refused, timer=timer, flags=said, device=self._bench.device_id)
        entrant.calls += calls
        entrant.timer = timer
        entrant.timing_s += seconds
        entrant.flags.update(dict.fromkeys(flags))
        return Measurement(
            Status.ok, us, 0.0, samples=calls, timer=timer, flags=flags, timing_s=seconds, device=self._bench.device_id
        )

    def _blame(self, index: int, error: BaseException) -> Measurement:
        measurement, fault = self._verdict(error)
        if fault is not None:
            self.culprit = index
        return measurement

    def _lose(self, index: int, error: BaseException) -> Measurement:
        """The verdict on an entrant that raised; neighbours find the inputs as they were made."""
        entrant = self._entrants.pop(index)
        measurement = self._blame(index, error)
        if self.culprit is None:
            entrant.steps.put_back(thoroughly=True)
        return replace(
            measurement,
            flags=(*entrant.checked.flags, *entrant.flags),
            setup_s=entrant.setup_s,
            first_call_s=entrant.checked.first_call_s,
            device=self._bench.device_id,
        )
