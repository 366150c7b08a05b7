"""A contest bench as a worker uses it, on this process's CPU or on the fake GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiter_tuning.contest import Block, Contest
from aiter_tuning.devices.cpu import CpuKind
from aiter_tuning.measure.contest import BlockResult, ContestBench
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement
from aiter_tuning.task import Group, MpTunerTask
from op_tests.pool.contest_rules import Rounds


class Floor:
    """Where a contest is held; keeps who began and what became of everyone."""

    def __init__(
        self,
        *tasks: MpTunerTask,
        contest: Contest | None = None,
        plan: MeasurePlan | None = None,
        kind: Any = None,
        torch_device: str = "cpu",
        **on: Any,
    ) -> None:
        """Args: the entrants; where and how; fields of :class:`~aiter_tuning.measure.bench.Bench` to replace."""
        group = Group(tuple(tasks), tuple(range(len(tasks))))
        self.contest = contest or Contest(Rounds(3), seed=1, block_calls=4, block_us=0)
        self.bench = ContestBench(
            self.contest,
            group.tasks,
            group.inputs_ids,
            group.reference_ids,
            None,
            plan or MeasurePlan(),
            kind or CpuKind(),
            torch_device,
        )
        self.bench._bench = self.bench._bench._replace(**on)
        self.began: list[int] = []
        self.verdicts: dict[int, Measurement] = {}
        self.blocks: list[Block] = []
        for index in range(len(tasks)):
            self.enter(index)

    def enter(self, index: int) -> None:
        verdict = self.bench.prepare(index, lambda phase: None) or self.bench.enter(index, lambda: None)
        if verdict is not None:
            self.verdicts[index] = verdict

    def ready(self) -> None:
        self.verdicts.update(self.bench.ready(self.began.append))
        self.began.clear()

    def block(self, order: Sequence[int] | None = None) -> BlockResult:
        result = self.bench.block(len(self.blocks) + 1, order or sorted(self.bench.entrants), self.began.append)
        if result.block is not None:
            self.blocks.append(result.block)
        self.verdicts.update(result.lost)
        return result

    def conclude(self) -> dict[int, Measurement]:
        for index in sorted(self.bench.entrants):
            self.verdicts[index] = self.bench.conclude(index, self.blocks, self.began.append)
        self.bench.close()
        return self.verdicts

    def hold(self, blocks: int = 3) -> dict[int, Measurement]:
        """All of it: the verdicts."""
        self.ready()
        for _ in range(blocks):
            self.block()
        return self.conclude()
