"""What the tests of GPU timers do in this process or in one of its own; run as a module it prints one JSON line."""

import json
import math
import sys
import time
from itertools import pairwise
from typing import NamedTuple

import torch

from aiter_tuning.measure.gpu.accelerator import Gpu
from aiter_tuning.measure.gpu.activity import ActivityUnavailableError
from aiter_tuning.measure.gpu.cupti_activity import CuptiActivity
from aiter_tuning.measure.gpu.timer_choice import timers_of_this_gpu
from aiter_tuning.measure.group import GroupBench
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.sampling import sample_in_bursts
from aiter_tuning.measure.statistics import median
from aiter_tuning.measure.timer import Call
from aiter_tuning.task import Group, MpTunerTask


class Kind:
    """As much of a device kind as measuring needs."""

    bound_at_exec = False

    def exec_environment(self, device):
        return {}

    def prepare_process(self, device):
        pass

    def bind(self, device):
        return "GPU-test"

    def probe(self):
        pass

    def synchronize(self):
        torch.cuda.synchronize()

    def empty_cache(self):
        torch.cuda.empty_cache()


class Reader(NamedTuple):
    """A timer that has read something."""

    name: str
    flags: tuple
    plan: object


def timers():
    return timers_of_this_gpu(Kind())


def read(name, call, *, cold=True, iters=101, warmup=5, rule=None, restore=None):
    """Microseconds, and what is known of the timer that read them when it was still open."""
    timer = timers().new(name, cold_cache=cold)
    try:
        sampled = sample_in_bursts(timer, call, warmup=warmup, iters=iters, rule=rule, restore=restore)
        return sampled.us, Reader(timer.name, timer.flags, timer.launches.plan)
    finally:
        timer.close()


def add_call(size_bytes):
    """An addition that reads and writes so many bytes each."""
    source = torch.ones(size_bytes // 4, device="cuda")
    return Call(torch.add, (source, 1), {"out": torch.empty_like(source)})


def slowly_launched_call(size_bytes, host_us=12):
    """The same, whose host side takes a while, as a launch from Python with many arguments does."""
    source = torch.ones(size_bytes // 4, device="cuda")

    def launch(x, out):
        until = time.perf_counter() + host_us * 1e-6
        while time.perf_counter() < until:
            pass
        torch.add(x, 1, out=out)

    return Call(launch, (source, torch.empty_like(source)), {})


def measure(func, size_bytes=4 << 20, plan=None, **fields):
    """One candidate through a group bench on the GPU: its measurement, and the bench."""

    def gen_data(*, device):
        return {"a": torch.ones(size_bytes // 4, device=device)}

    task = MpTunerTask(
        **{
            "info": ("shape", "candidate"),
            "gen_data": gen_data,
            "gen_args": (),
            "func": func,
            "args": (["a"],),
            "kwargs": {"num_warmup": 3, "num_iters": 50},
            "ref_func": lambda a: a + 1,
            "ref_args": (["a"],),
            "ref_kwargs": {},
            "ref": None,
            **fields,
        }
    )
    group = Group((task,), (0,))
    bench = GroupBench(
        group.tasks, group.inputs_ids, group.reference_ids, None, plan or MeasurePlan(), Kind(), "cuda:0"
    )
    measured = bench.prepare(0, lambda phase: None)
    if measured is None:
        measured, fault = bench.measure(0, lambda: None, math.inf)
        assert fault is None, f"a device fault: {fault!r}"
    bench.close()
    return measured, bench


def plus_one(a):
    return a + 1


def capture_failure():
    """A candidate that cannot be captured, and an honest one after it in the same process."""

    def waits(a):
        result = a + 1
        torch.cuda.synchronize()
        return result

    report = {}
    for name in ("graph", "auto"):
        failed, bench = measure(waits, plan=MeasurePlan(timer=name))
        after, _ = measure(plus_one, plan=MeasurePlan(timer=name))
        report[name] = {
            "status": str(failed.status),
            "detail": failed.detail,
            "timer": failed.timer,
            "flags": failed.flags,
            "us": failed.us,
            "unclean": bench.unclean,
            "after": [str(after.status), after.timer, after.us, after.flags, after.detail],
        }
    return report


def profiler():
    """Torch's profiler as a timer, in a process that has never used CUPTI otherwise."""
    began = time.perf_counter()
    choice = timers().choose("profiler")
    started_s = time.perf_counter() - began
    call = add_call(64 << 20)
    us, timer = read("profiler", call, iters=40)
    graph_us, _ = read("graph", call, iters=40)
    small_us, small = read("profiler", add_call(4096), iters=100)
    return {
        "choice": choice.name,
        "reason": choice.reason,
        "readings": choice.readings_us,
        "started_s": started_s,
        "us": us,
        "timer": timer.name,
        "graph_us": graph_us,
        "small": [small_us, small.name, small.flags],
    }


def other_client():
    """Somebody else has subscribed to CUPTI before us."""
    from cupti import cupti

    cupti.subscribe(lambda *_: None, None)
    choice = timers().choose("auto")
    measured, _ = measure(plus_one)
    return {
        "choice": choice.name,
        "reason": choice.reason,
        "fallback": choice.fallback,
        "status": str(measured.status),
        "timer": measured.timer,
        "flags": measured.flags,
    }


def cupti_costs():
    """What CUPTI costs in milliseconds: starting, switching on and off, collecting."""
    costs = {}
    began = time.perf_counter()
    try:
        source = CuptiActivity.open(torch.version.cuda)
    except ActivityUnavailableError as error:
        return {"unavailable": str(error)}
    costs["open"] = (time.perf_counter() - began) * 1e3
    gpu = Gpu()
    call = add_call(4096)
    for records in (1, 10, 100, 1000):
        rounds = []
        for _ in range(5):
            steps = [time.perf_counter()]
            source.start()
            steps.append(time.perf_counter())
            with gpu.on_stream():
                for _ in range(records):
                    call.func(*call.args, **call.kwargs)
            gpu.synchronize()
            steps.append(time.perf_counter())
            got = len(source.collect())
            steps.append(time.perf_counter())
            source.stop()
            steps.append(time.perf_counter())
            if got != records:
                costs[f"lost_of_{records}"] = got
            rounds.append([(after - before) * 1e3 for before, after in pairwise(steps)])
        costs[f"start_run_collect_stop_{records}"] = [round(median(step), 3) for step in zip(*rounds, strict=True)]
    return costs


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
