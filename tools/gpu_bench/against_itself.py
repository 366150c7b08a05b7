"""Would the tuner promote a kernel over itself? Does it find a real gain? By the finals that decide in every run."""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiter_tuning import Pool
from aiter_tuning.contest import Block, Contest
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.watcher import Clocks, RunEnd, Watcher
from aiter_tuning.tuner.choice import Choice, Today
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.final_choice import choose_finalist
from aiter_tuning.tuner.finals_rule import FinalsRule
from aiter_tuning.tuner.outcome import Verdict
from aiter_tuning.tuner.paired import PairedTable
from aiter_tuning.tuning_policy import DEFAULT_PROMOTION
from gpu_bench.recovery import group_of
from gpu_bench.table import show
from gpu_bench.whole_process import TOOL

PLANTED = 100
NAMES = ("incumbent", "challenger")
RULE = FinalsRule(incumbent=0, kept=frozenset({0}))
ERR_RATIO = 0.05


@dataclass(frozen=True)
class Twin:
    """A config of W1, as often as one likes; with ``extra_k`` columns of zeros it does that much more for nothing."""

    config: Mapping[str, Any]
    number: int
    extra_k: int = 0

    def prepare(self, inputs: Mapping[str, Any]) -> tuple[Mapping[str, Any]]:
        if not self.extra_k:
            return (inputs,)
        from torch.nn.functional import pad

        return ({"a": pad(inputs["a"], (0, self.extra_k)), "b": pad(inputs["b"], (0, 0, 0, self.extra_k))},)

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        from gpu_bench.kernels import launch

        return launch(inputs["a"], inputs["b"], self.config)


class Decisions(Watcher):
    """The decision on every group's contest, as the tuner would take it."""

    run_ahead = True

    def __init__(self) -> None:
        self._blocks: dict[int, list[Block]] = {}
        self.choices: dict[int, Choice] = {}
        self.margins_pct: dict[int, float] = {}
        self.blocks: list[int] = []
        self.us: dict[int, tuple[float, ...]] = {}

    def block_done(self, group: int, block: Block) -> None:
        blocks = self._blocks.setdefault(group, [])
        blocks[block.number - 1 :] = [block]

    def group_ended(self, group: int, results: Sequence[Measurement]) -> None:
        blocks = self._blocks.pop(group, [])
        bad = [result for result in results if result.status != "ok"]
        if bad or not blocks:
            raise SystemExit(f"a contest failed: {bad or 'it has no blocks'}")
        measurements = dict(zip(NAMES, results, strict=True))
        today = Today(NAMES[0], NAMES[0])
        self.choices[group] = choose_finalist(NAMES, measurements, blocks, today, RULE, err_ratio=ERR_RATIO)
        self.margins_pct[group] = -PairedTable(blocks, (0, 1)).difference(1, 0).pct
        self.blocks.append(len(blocks))
        self.us[group] = tuple(result.us for result in results)

    @property
    def promoted(self) -> int:
        return sum(choice.verdict is Verdict.promoted for choice in self.choices.values())


def compare_with_itself(arguments: argparse.Namespace) -> dict[str, Any]:
    family: Any = load_family(f"{TOOL}:W1")
    configs = {candidate.name: dict(candidate.config) for candidate in family.candidates({}, None)}
    figures: dict[str, Any] = {}
    with Pool(arguments.device, 1) as pool:
        for m, n, k in map(tuple, arguments.shapes):
            config = configs["64x64x32_w4_s3" if m <= 64 else "128x128x32_w4_s3"]
            # A twentieth more steps: slower by about 5 %; by how much exactly is measured as well.
            extra = config["block_k"] * math.ceil(k / 20 / config["block_k"])
            same, slow = (Twin(config, 0), Twin(config, 1)), (Twin(config, 0, extra), Twin(config, 1))
            itself = _decide(pool, same, (m, n, k), arguments.comparisons)
            found = _decide(pool, slow, (m, n, k), min(PLANTED, arguments.comparisons))
            wrong_way = _decide(pool, slow[::-1], (m, n, k), min(PLANTED, arguments.comparisons))
            margins = [abs(margin) for margin in itself.margins_pct.values()]
            figures[f"{m}x{n}x{k}"] = {
                "us": statistics.median(us for pair in itself.us.values() for us in pair),
                "comparisons": len(margins),
                "blocks": statistics.mean(itself.blocks),
                "margins_at_the_bar": sum(margin >= DEFAULT_PROMOTION.min_improvement_pct for margin in margins),
                "self_promotions": itself.promoted,
                "margin_median_pct": statistics.median(margins),
                "margin_worst_pct": max(margins),
                "planted": len(found.choices),
                "planted_gain_pct": statistics.median(found.margins_pct.values()),
                "planted_found": found.promoted,
                "planted_wrong_way": wrong_way.promoted,
                "verdicts": dict(Counter(str(choice.verdict) for choice in itself.choices.values())),
            }
    columns = ("shape", "us", "with itself", "blocks", "at the bar", "promoted", "margin: median %", "worst %")
    columns += ("planted", "true gain %", "found", "wrong way")
    show(columns, [(shape, *list(row.values())[:-1]) for shape, row in figures.items()])
    total = sum(row["comparisons"] for row in figures.values())
    print(
        f"{total} comparisons of a kernel with itself against a bar of {DEFAULT_PROMOTION.min_improvement_pct:g} %; "
        f"none in so many proves a rate below {300 / total:.2f} %"
    )
    return figures


def _decide(pool: Pool, twins: Sequence[Twin], shape: Sequence[int], times: int) -> Decisions:
    group = group_of(twins, shape)
    groups = [replace(group, contest=Contest(RULE, seed=seed)) for seed in range(times)]
    decisions = Decisions()
    outcome = pool.run(groups, MeasurePlan(), Clocks(candidate_s=60.0), on_fault="continue", watcher=decisions)
    if outcome.end is not RunEnd.done or len(decisions.choices) != times:
        raise SystemExit(f"the run ended with {outcome} after {len(decisions.choices)} of {times} contests")
    return decisions
