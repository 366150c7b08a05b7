"""Contests without a device: candidates of known latency on a noisy, drifting clock."""

import numpy as np

from aiter_tuning.contest import Block, block_order


class Bench:
    """Times candidates in blocks.

    Args:
        true_us: latency of each candidate.
        noise: deviation of one block value, as a fraction; of all, or of each.
        drift: deviation of the step that the clock makes from block to block, for all alike.
        outliers: chance that a block value is a fifth too high.
        jump: common factor from this block on, as (block, factor).
        fails: entrants that fail in a block, as {entrant: block}.
    """

    def __init__(self, true_us, *, noise=0.005, drift=0.02, outliers=0.02, jump=None, fails=None, seed=0):
        self.true_us = np.asarray(true_us, float)
        self.random = np.random.default_rng(seed)
        self.noise = np.broadcast_to(noise, self.true_us.shape)
        self.drift, self.outliers, self.jump, self.fails = drift, outliers, jump, fails or {}
        self.level = 0.0
        self.calls = 0

    def block(self, number, active):
        self.level += self.random.normal(0, self.drift)
        order = block_order(active, 7, number)
        chosen = list(order)
        us = self.true_us[chosen] * np.exp(self.level + self.random.normal(size=len(chosen)) * self.noise[chosen])
        us = np.where(self.random.random(len(chosen)) < self.outliers, us * 1.2, us)
        if self.jump is not None and number >= self.jump[0]:
            us = us * self.jump[1]
        us = [float("nan") if self.fails.get(who) == number else float(one) for who, one in zip(order, us, strict=True)]
        self.calls += len(order)
        return Block(number, order, tuple(us))


def run_contest(rule, bench, entrants=None, blocks=()):
    """All blocks until the rule is satisfied; those given are on record already."""
    entrants = list(range(len(bench.true_us))) if entrants is None else entrants
    blocks = list(blocks)
    while active := rule.active(entrants, blocks):
        blocks.append(bench.block(len(blocks) + 1, active))
        entrants = [one for one in entrants if bench.fails.get(one) != len(blocks)]
    return blocks
