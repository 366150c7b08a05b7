"""Measuring groups outside of a tuner's run: nothing is recorded and no table is written.

::

    groups ─▶ pool ─▶ one Remeasured for each, in order: results, blocks of its contest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiter_tuning.contest import Block
from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.pool import Pool
from aiter_tuning.pool.watcher import RunEnd, RunOutcome, Watcher
from aiter_tuning.status import Status
from aiter_tuning.task import Group
from aiter_tuning.tuner.arguments import TuneArguments
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.lanes import clocks_of, measure_plan, preload_of


@dataclass
class Remeasured:
    """What came of one group."""

    results: list[Measurement]
    """By the group's order; ``not_run`` where the run ended before."""
    blocks: list[Block] = field(default_factory=list)
    """Of its contest."""


class _Collector(Watcher):
    run_ahead = True

    def __init__(self, groups: Sequence[Group], note: Callable[[str], None]) -> None:
        unmeasured = Measurement.failed(Status.not_run, "the run ended before")
        self.found = [Remeasured([unmeasured] * len(group.tasks)) for group in groups]
        self._note = note

    def measured(self, group: int, index: int, measurement: Measurement, *, logged: bool) -> None:
        self.found[group].results[index] = measurement

    def block_done(self, group: int, block: Block) -> None:
        blocks = self.found[group].blocks
        self.found[group].blocks = [*(known for known in blocks if known.number < block.number), block]

    def note(self, text: str) -> None:
        self._note(text)


class Remeasuring:
    """Measures the groups of one family; :meth:`request_stop` ends it soon, from a signal handler too."""

    def __init__(self, family: Family, arguments: TuneArguments) -> None:
        self._family = family
        self._arguments = arguments
        self._pool: Pool | None = None
        self._stop = False

    def request_stop(self) -> None:
        """What is not measured yet stays ``not_run``."""
        self._stop = True
        if self._pool is not None:
            self._pool.request_stop()

    def measure(
        self,
        groups: Sequence[Group],
        devices: Sequence[Device],
        note: Callable[[str], None] = lambda text: None,
        pool: Pool | None = None,
    ) -> tuple[list[Remeasured], RunOutcome]:
        """What came of each group, and how it ended.

        Args:
            groups: the work.
            devices: where.
            note: told what a person should know meanwhile.
            pool: an open one to use.
        """
        collector = _Collector(groups, note)
        if self._stop or not groups:
            return collector.found, RunOutcome(RunEnd.interrupted if self._stop else RunEnd.done)
        if pool is not None:
            return collector.found, self._run(pool, groups, collector)
        with Pool(devices=devices, preload=preload_of(self._family, devices[0])) as own:
            return collector.found, self._run(own, groups, collector)

    def _run(self, pool: Pool, groups: Sequence[Group], collector: _Collector) -> RunOutcome:
        self._pool = pool
        try:
            if self._stop:  # while the pool was being opened
                return RunOutcome(RunEnd.interrupted)
            return pool.run(
                list(groups),
                measure_plan(self._arguments, pool.devices[0]),
                clocks_of(self._arguments, self._family),
                on_fault="continue",
                watcher=collector,
                quiet_start=True,
            )
        finally:
            self._pool = None
