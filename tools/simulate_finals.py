#!/usr/bin/env python3
"""How far the finals' decisions can be trusted, on synthetic latencies with drift and outliers.

    PYTHONPATH=. python3 tools/simulate_finals.py [--contests N]

Prints how often an incumbent is replaced by its equal, how often a true gain of 5 % is found, and how far choices are
from the best, at the noise of a quiet and of a busy device; then how often one process promotes, and how often the
second confirms it, where candidates are a little faster or slower in each process. Takes about two minutes; every
contest has its own seed, so that the same N gives the same figures.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aiter_tuning.contest import Block
from aiter_tuning.tuner.finals_rule import FinalsRule, first_of_ties, noise_floor
from aiter_tuning.tuner.paired import PairedTable
from aiter_tuning.tuning_policy import PROMOTE, PromotionPolicy, gate_against_incumbent
from op_tests.tuner.simulated_contests import Bench, run_contest

RULE = FinalsRule(0, frozenset({0}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contests", type=int, default=4000, help="of equals; a quarter for the rest (default: 4000)")
    contests = parser.parse_args().contests
    replaced = sum(
        _winner(_contest([20.0] * (2, 3, 10)[case % 3], case, 0.02, 0.02), (2, 3, 10)[case % 3])[1] != 0
        for case in range(contests)
    )
    print(f"equals, 2 % noise: {replaced} of {contests} incumbents were replaced")
    fewer = max(1, contests // 4)
    found = 0
    for case in range(fewer):
        random = np.random.default_rng(case)
        latencies = [20.0, 19.0, *(20 * random.uniform(0.985, 1.3, 6))]
        found += _winner(_contest(latencies, case, 0.02, 0.02), len(latencies))[1] == 1
    print(f"a true gain of 5 %, 2 % noise: found in {found} of {fewer}")
    for noise, drift in ((0.004, 0.01), (0.006, 0.01), (0.009, 0.08)):
        regrets, blocks = [], []
        for case in range(fewer):
            random = np.random.default_rng(case)
            latencies = [21.0, *(20 * (1 + np.abs(random.normal(0, 0.03, 8))))]
            held = _contest(latencies, case, noise, drift)
            blocks.append(len(held))
            regrets.append(latencies[_winner(held, len(latencies))[0]] / min(latencies))
        print(
            f"{noise:.1%} noise: regret {np.mean(regrets):.4f} on average, {max(regrets):.4f} at worst of {fewer}; "
            f"{np.mean(blocks):.1f} blocks"
        )
    for process in (0.005, 0.01, 0.02):
        for gain in (0.0, 0.02, 0.05):
            once, twice = _in_two_processes(gain, process, fewer)
            print(
                f"{gain:.0%} faster, {process:.1%} from process to process: promoted by one {once}, by both {twice} "
                f"of {fewer}"
            )


def _in_two_processes(gain: float, process: float, contests: int) -> tuple[int, int]:
    """How often a challenger is promoted by its finals, and how often the confirmation agrees."""
    once = twice = 0
    for case in range(contests):
        random = np.random.default_rng(case)
        first, second = (
            _winner(_contest([20 * a, 20 * (1 - gain) * b], 2 * case + number, 0.006, 0.01), 2)[1] == 1
            for number, (a, b) in enumerate(np.exp(random.normal(0, process, (2, 2))))
        )
        once += first
        twice += first and second
    return once, twice


def _contest(latencies: Sequence[float], seed: int, noise: float, drift: float) -> Sequence[Block]:
    return run_contest(RULE, Bench(latencies, noise=noise, drift=drift, seed=seed))


def _winner(blocks: Sequence[Block], entrants: int) -> tuple[int, int]:
    """Who is chosen, before the gate and after it."""
    table = PairedTable(blocks, RULE.survivors(range(entrants), blocks))
    chosen = first_of_ties(table, 0)
    if chosen == 0:
        return 0, 0
    margin_us = math.exp(table.difference(chosen, 0).log)
    gate = gate_against_incumbent(1.0, margin_us, PromotionPolicy(RULE.bar_pct), noise_floor(table, chosen, 0))
    return chosen, chosen if gate.outcome == PROMOTE else 0


if __name__ == "__main__":
    main()
