"""Devices that the machine lacks: they stand for GPUs, on top of the CPU."""

import os
from pathlib import Path

from aiter_tuning.devices.cpu import CpuKind
from aiter_tuning.devices.device import Device


class FakeGpu(CpuKind):
    """Bound late, by an environment mask, as CUDA is: any standby may serve any lane."""

    bound_at_exec = False

    def exec_environment(self, device):
        return {"FAKE_VISIBLE_DEVICES": device.settings["index"]}

    def bind(self, device):
        return f"fake-{os.environ['FAKE_VISIBLE_DEVICES']}"

    def probe(self):
        pass


class CountedGpu(FakeGpu):
    """Writes down which process creates a context."""

    def bind(self, device):
        with Path(device.settings["file"]).open("a") as log:
            log.write(f"{os.getpid()}\n")
        return super().bind(device)


class SickGpu(FakeGpu):
    """Fails its probe for as long as its file says so; counts its probes there."""

    def bind(self, device):
        self.file = Path(device.settings["file"])
        return super().bind(device)

    def probe(self):
        with self.file.open("a") as log:
            log.write("p")
        if len(self.file.read_text()) <= int(os.environ.get("SICK_PROBES", "1000")):
            raise RuntimeError("the small product is wrong")


class SwappedGpu(FakeGpu):
    """Gets another device than it asked for."""

    def bind(self, device):
        return "fake-of-somebody-else"


def gpu(index, cls="FakeGpu", **settings):
    return Device(
        kind=f"op_tests.pool.fake_devices:{cls}",
        name=f"gpu{index}",
        uuid=f"fake-{index}",
        gfx="sm90",
        cu_num=132,
        gpu_model="Fake H200",
        settings={"index": str(index), **settings},
    )
