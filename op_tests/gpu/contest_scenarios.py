"""Contests on a real GPU, held in this process or in one of its own; run as a module it prints one JSON line."""

import json
import sys
import time

import torch

from aiter_tuning.contest import Contest
from aiter_tuning.task import MpTunerTask
from op_tests.gpu.timer_scenarios import Kind
from op_tests.measure.contest_bench import Floor
from op_tests.pool.contest_rules import Rounds

_made = {}


def inputs_of(size_bytes):
    """One function for each size: entrants share what the same function makes."""

    def make(*, device):
        return {"a": torch.ones(size_bytes // 4, device=device), "out": torch.empty(size_bytes // 4, device=device)}

    return _made.setdefault(size_bytes, make)


def plus_one(a, out):
    return torch.add(a, 1, out=out)


def plus_one_in_two_kernels(a, out):
    torch.add(a, 2, out=out)
    return out.sub_(1)


def plus_one_and_wait(a, out):
    torch.add(a, 1, out=out)
    torch.cuda.synchronize()
    return out


def plus_one_in_place(a, out):
    out.copy_(a)
    a.add_(1)
    return out.add_(1)


def one_more(a):
    return a + 1


def entrant(func, size_bytes):
    return MpTunerTask(
        info=("shape", func.__name__),
        gen_data=inputs_of(size_bytes),
        gen_args=(),
        func=func,
        args=(["a", "out"],),
        kwargs={"num_warmup": 3},
        ref_func=one_more,
        ref_args=(["a"],),
        ref_kwargs={},
        ref=None,
        output_keys=("out",),
    )


def floor_of(*funcs, size_bytes=8 << 20, **contest):
    """A contest of these functions whose entrants are ready; anybody who is not is an error."""
    contest = Contest(Rounds(1), seed=3, **contest)
    floor = Floor(*(entrant(func, size_bytes) for func in funcs), contest=contest, kind=Kind(), torch_device="cuda:0")
    assert not floor.verdicts, floor.verdicts
    floor.ready()
    return floor


def timers(floor):
    return list(floor.bench._turns._timers.values())


class Collections:
    """Counts the sessions of a floor's source of records."""

    def __init__(self, floor):
        self.count = 0
        source = timers(floor)[0].source
        self._collect = source.collect
        source.collect = self._counted

    def _counted(self):
        self.count += 1
        return self._collect()


def blocks_of(floor, count):
    """Block values by entrant, and milliseconds that each block took."""
    values = {index: [] for index in floor.bench.entrants}
    took_ms = []
    for _ in range(count):
        began = time.perf_counter()
        result = floor.block()
        took_ms.append((time.perf_counter() - began) * 1e3)
        assert not result.lost, result.lost
        for index, us in zip(result.block.order, result.block.us, strict=True):
            values[index].append(us)
    return values, took_ms


def without_a_graph():
    """One that waits for the device: who asks for another process, and how it is timed beside one in a graph there."""
    floor = floor_of(plus_one, plus_one_and_wait)
    spoiler = floor.bench.spoiler
    floor.bench.close()
    floor = floor_of(plus_one, plus_one_and_wait, no_graph=(1,))
    values, _ = blocks_of(floor, 8)
    verdicts = floor.conclude()
    return {
        "spoiler": spoiler,
        "us": [sorted(values[index])[4] for index in (0, 1)],
        "statuses": [str(verdicts[index].status) for index in (0, 1)],
        "timers": [verdicts[index].timer for index in (0, 1)],
        "flags": [verdicts[index].flags for index in (0, 1)],
    }


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
