#!/usr/bin/env python3
"""How much the gain of a tuned row differs from process to process, beside what one process knows of it.

    PYTHONPATH=. python3 tools/bench_processes.py tuned_csv/gemm_bf16_tuned.csv --family gemm_bf16 [--processes 8]

Each row for this device whose kernel is not the family's default is timed against the default, in turns until their
difference is sure, in so many processes one after another. Prints the lead in each; its spread over the processes; and
the standard error that a single process gives itself. Where the spread is the larger one, no number of samples in one
process tells whether a row keeps its promise: that is why promotions are confirmed in a second one. About four seconds
a process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_bench.table import show

from aiter_tuning.contest import Contest
from aiter_tuning.devices.discovery import discover
from aiter_tuning.families import find_family
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.task import Group
from aiter_tuning.tuner.arguments import TuneArguments
from aiter_tuning.tuner.family import Candidate, Family
from aiter_tuning.tuner.family_reference import reference_of
from aiter_tuning.tuner.paired import PairedTable
from aiter_tuning.tuner.remeasuring import Remeasured, Remeasuring
from aiter_tuning.tuner.shape_contest import calls_in_a_block, paired_rule
from aiter_tuning.tuner.tasks import FamilyTasks
from aiter_tuning.tuning_policy import SAMPLE_SEED


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="a tuned CSV")
    parser.add_argument("--family", required=True, help="whose it is")
    parser.add_argument("--processes", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--rows", type=int, default=12, help="how many rows at most (default: 12)")
    parser.add_argument("--device", help="as for aiter-tune tune (default: the first)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    words = parser.parse_args()
    family = find_family(words.family)
    arguments = TuneArguments.of({"tune_file": str(words.table)}, family)
    device = discover(words.device or (None if "cpu" in family.devices else "cuda"))[0]
    found = TunedCsv(words.table, family.key).rows()
    here = (device.gfx, device.cu_num, " ".join(device.gpu_model.split()))
    rows = [
        row for row in found if (row.gfx, row.cu_num, row.gpu_model) == here and not _is_default(family, row, device)
    ]
    if not rows:
        print(f"{words.table} has {len(found)} rows, none for {device.gpu_model} with another kernel than the default")
        return 2
    rows = rows[: words.rows]
    tasks = FamilyTasks(
        family,
        reference_of(family),
        seed=SAMPLE_SEED,
        kwargs={"num_warmup": arguments.warmup, "num_iters": arguments.iters},
    )
    contests = [_contest(family, tasks, row, device) for row in rows]
    # A group that any worker may take lies between the processes: the next fresh one asks for another worker.
    between = replace(contests[0], fresh=False)
    groups = [group for _ in range(words.processes) for group in (*contests, between)]
    measured, outcome = Remeasuring(family, arguments).measure(groups, [device], print)
    if outcome.reason:
        print(outcome.reason)
    figures = [_figures(family, row, measured[number :: len(contests) + 1]) for number, row in enumerate(rows)]
    columns = ("shape", "kernel", "faster %: median", "least", "most", "spread", "error in one", "in each process")
    show(columns, [tuple(figure.values()) for figure in figures])
    if words.json:
        Path(words.json).write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def _is_default(family: Family, row: TunedRow, device: Any) -> bool:
    return family.default(dict(row.shape), device).name == row.kernelName


def _contest(family: Family, tasks: FamilyTasks, row: TunedRow, device: Any) -> Group:
    shape = dict(row.shape)
    config = family.resolve(row.kernelName, row.config, shape, device)
    if config is None:
        raise SystemExit(f"{family.name} has no kernel {row.kernelName} for {shape} any more")
    entrants = (family.default(shape, device), Candidate(row.kernelName, config, row.kernelId, row.splitK))
    work = family.work(shape)
    ways = [((one.name,), tasks.way(one, work)) for one in entrants]
    rule = paired_rule([one.name for one in entrants], [row.us] * 2, entrants[0].name, 3, 3.0)
    contest = Contest(rule, SAMPLE_SEED, block_calls=calls_in_a_block([row.us]))
    group = tasks.group_of(shape, family.key.label(shape), work, ways)
    return replace(group, contest=contest, fresh=True, cost=1.0)


def _figures(family: Family, row: TunedRow, found: Sequence[Remeasured]) -> dict[str, Any]:
    leads, errors = [], []
    for one in found:
        bad = [result for result in one.results if result.status != "ok"]
        if bad:
            raise SystemExit(f"{family.key.label(row.shape)} {row.kernelName}: {bad[0].status} {bad[0].detail}")
        difference = PairedTable(one.blocks, (0, 1)).difference(1, 0)
        leads.append(-difference.pct)
        errors.append(100 * difference.standard_error)
    return {
        "shape": family.key.label(row.shape),
        "kernel": row.kernelName,
        "median_pct": statistics.median(leads),
        "least_pct": min(leads),
        "most_pct": max(leads),
        "spread_pct": statistics.stdev(leads) if len(leads) > 1 else 0.0,
        "error_in_one_pct": statistics.median(errors),
        "each_pct": " ".join(f"{lead:.1f}" for lead in leads),
    }


if __name__ == "__main__":
    sys.exit(main())
