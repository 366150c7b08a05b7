"""Candidates that look around in, or do harm to, the process that compiles ahead."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import triton

from aiter_tuning.task import ALL_INPUTS, Group, MpTunerTask
from op_tests.families_for_tests.triton_scale import double


def make_inputs(n, *, device):
    import torch

    return {"x": torch.empty(n, device=device)}


def compiles(inputs, block=64):
    x = inputs["x"]
    double[(triton.cdiv(x.numel(), block),)](x, x, x.numel(), 1, BLOCK=block)


def tells(inputs, file):
    """Writes down what this process is."""
    import torch

    masks = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    facts = {
        "device": inputs["x"].device.type,
        "gpus": torch.cuda.device_count(),
        "masks": [os.environ.get(mask) for mask in masks],
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "leads_its_group": os.getpgid(0) == os.getpid(),
        "parent": os.getppid(),
        "cwd": os.getcwd(),
        "cache": os.environ.get("TRITON_CACHE_DIR"),
    }
    Path(file).write_text(json.dumps(facts))


def aborts(inputs):
    os.abort()


def hangs(inputs, file):
    """With a program beside it, as a compiler has its assembler."""
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(file).write_text(str(program.pid))
    time.sleep(3600)


def leaves_a_session_behind(inputs, file):
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    Path(file).write_text(str(program.pid))
    time.sleep(3600)


def cannot_be_loaded(*_):
    raise AssertionError("never called")


class BreaksOnLoading:
    """Ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (3,)

    def __call__(self, inputs):
        raise AssertionError("never called")


def group(*calls, n=4096):
    """Candidates ``(func, argument …)`` on the same inputs."""
    tasks = tuple(
        MpTunerTask(("g", i), make_inputs, (n,), func, (ALL_INPUTS, *args), {}, None, (), {}, None)
        for i, (func, *args) in enumerate(calls)
    )
    return Group(tasks, tuple(range(len(tasks))))
