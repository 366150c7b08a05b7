"""Candidates that tell where they run, meet on all lanes, or break. Workers import this module by name.

Each wraps a candidate that is right, a callable of the mapping of inputs, so that the same scenarios run on GPUs and,
with devices that stand for them, on the CPU.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEETING_S = 60.0


def make_inputs(seed, device=None):
    import torch

    return {"x": torch.arange(64, dtype=torch.float32, device=device) + seed}


def doubled(inputs):
    return inputs["x"] * 2


def device_here():
    """The id of the device that this process is bound to, asked of the device and not of the lane."""
    if "FAKE_VISIBLE_DEVICES" in os.environ:
        return f"fake-{os.environ['FAKE_VISIBLE_DEVICES']}"
    import torch

    from aiter_tuning.devices.identity import uuid_of

    return uuid_of(torch.cuda.get_device_properties(0), hip=torch.version.hip is not None)


def devices_seen():
    if "FAKE_VISIBLE_DEVICES" in os.environ:
        return len(os.environ["FAKE_VISIBLE_DEVICES"].split(","))
    import torch

    return torch.cuda.device_count()


@dataclass(frozen=True)
class Meeting:
    """Writes down who it is, and goes on once as many processes have done so: then every lane has a group."""

    right: Any
    folder: str
    lanes: int

    def __call__(self, inputs):
        mine = Path(self.folder) / f"{os.getpid()}.json"
        if not mine.exists():
            masks = {name: value for name, value in os.environ.items() if name.endswith("_VISIBLE_DEVICES")}
            told = {"pid": os.getpid(), "uuid": device_here(), "count": devices_seen(), "masks": masks}
            mine.with_suffix(".tmp").write_text(json.dumps(told))
            mine.with_suffix(".tmp").rename(mine)
        deadline = time.monotonic() + MEETING_S
        while len(list(Path(self.folder).glob("*.json"))) < self.lanes:
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all of {self.lanes} lanes came to the meeting within {MEETING_S:g} s")
            time.sleep(0.005)
        return self.right(inputs)


def met(folder):
    """What those who came to a meeting wrote down."""
    return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]


@dataclass(frozen=True)
class Noting:
    """Leaves the moment of its first call."""

    right: Any
    moment: str

    def __call__(self, inputs):
        if not os.path.exists(self.moment):
            note(self.moment)
        return self.right(inputs)


@dataclass(frozen=True)
class WaitsFor:
    """Goes on once all files are there."""

    right: Any
    files: tuple[str, ...]

    def __call__(self, inputs):
        deadline = time.monotonic() + MEETING_S
        while missing := [file for file in self.files if not os.path.exists(file)]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {MEETING_S:g} s in vain for {missing}")
            time.sleep(0.002)
        return self.right(inputs)


@dataclass(frozen=True)
class Breaks:
    """Leaves the moment, and is no more."""

    how: str
    moment: str

    def __call__(self, inputs):
        note(self.moment)
        if self.how == "exits":
            os._exit(7)
        if self.how == "accesses_illegally":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        while True:
            pass


@dataclass(frozen=True)
class MakesItsDeviceSick:
    """On one device: makes its probes fail from now on, and ends its worker. A candidate like any other elsewhere."""

    right: Any
    uuid: str
    file: str

    def __call__(self, inputs):
        if device_here() == self.uuid:
            Path(self.file).write_text("")
            os._exit(9)
        return self.right(inputs)


def note(moment):
    """The clock is that of all processes of a host."""
    Path(moment).write_text(repr(time.monotonic()))
