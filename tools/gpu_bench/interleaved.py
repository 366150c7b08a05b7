"""Candidates timed side by side: each captured as one graph over a ring of inputs, replayed in a new order each block.

The ring is larger than the cache, so that every call finds its inputs cold, as serving does. Whatever drifts (clocks,
temperature, a neighbour) hits all candidates of a block alike.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

MOST_CALLS = 64
LEAST_CALLS = 12
CACHES_IN_RING = 3


class Candidate(NamedTuple):
    """What is timed: a config of W1 on inputs of its own shape."""

    config: Mapping[str, Any]
    shape: tuple[int, ...]


class Replay:
    """One captured candidate."""

    def __init__(self, candidate: Candidate, rings: dict[tuple[int, ...], list[Any]]) -> None:
        import torch

        from gpu_bench.kernels import launch

        ring = rings.get(candidate.shape)
        if ring is None:
            ring = rings[candidate.shape] = _ring(candidate.shape)
        self.calls = min(MOST_CALLS, len(ring) * math.ceil(LEAST_CALLS / len(ring)))
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            launch(*ring[0][:2], candidate.config, ring[0][2])
            with torch.cuda.graph(self._graph, stream=stream):
                for call in range(self.calls):
                    a, b, c = ring[call % len(ring)]
                    launch(a, b, candidate.config, c)
        torch.cuda.current_stream().wait_stream(stream)
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def enqueue(self) -> None:
        self._begin.record()
        self._graph.replay()
        self._end.record()

    def us(self) -> float:
        """Microseconds a call of the last replay, which has to be done."""
        return float(self._begin.elapsed_time(self._end)) * 1e3 / self.calls


def _ring(shape: tuple[int, ...]) -> list[Any]:
    """Inputs and an output as often as it takes to fill the cache several times."""
    import torch

    m, n, k = shape
    one = 2 * (m * k + k * n + m * n)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device="cuda", dtype=torch.bfloat16)

    return [
        (normal(m, k), normal(k, n).mul_(k**-0.5), normal(m, n))
        for _ in range(min(MOST_CALLS, max(2, math.ceil(CACHES_IN_RING * cache / one))))
    ]


def sample(replays: Sequence[Any], blocks: int, rng: random.Random) -> list[list[float]]:
    """For each candidate one latency a block, in microseconds; within a block in random order."""
    import torch

    samples: list[list[float]] = [[] for _ in replays]
    order = list(range(len(replays)))
    for block in range(blocks + 1):
        rng.shuffle(order)
        for index in order:
            replays[index].enqueue()
        torch.cuda.synchronize()
        if block:  # the first one warms up
            for index in order:
                samples[index].append(replays[index].us())
    return samples


def best_of(candidates: Sequence[Candidate], keep: int, capture: Callable[[Candidate], Replay]) -> list[Candidate]:
    """The ``keep`` fastest in a quick pass; what cannot run is left out."""
    import torch

    timed = []
    for candidate in candidates:
        try:
            replay = capture(candidate)
        except Exception as error:  # a config that does not fit says so when it is launched
            if "OutOfResources" not in type(error).__name__:
                raise
            continue
        readings = []
        for _ in range(4):
            replay.enqueue()
            torch.cuda.synchronize()
            readings.append(replay.us())
        timed.append((statistics.median(readings[1:]), candidate))
    timed.sort(key=lambda entry: entry[0])
    return [candidate for _, candidate in timed[:keep]]
