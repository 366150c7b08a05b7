"""Devices whose probe fails once a file is there, for tests of lanes that are retired. Workers import this by name."""

from pathlib import Path

from aiter_tuning.devices.cuda import CudaKind
from aiter_tuning.devices.hip import HipKind
from op_tests.pool.fake_devices import FakeGpu


class SickProbe:
    """Over a real kind. A probe that failed leaves a letter in the file."""

    def bind(self, device):
        self._file = Path(device.settings["sick"])
        return super().bind(device)

    def probe(self):
        if self._file.exists():
            with self._file.open("a") as log:
                log.write("p")
            raise RuntimeError("the probe was made to fail")
        super().probe()


class SickCuda(SickProbe, CudaKind):
    pass


class SickHip(SickProbe, HipKind):
    pass


class SickFake(SickProbe, FakeGpu):
    pass
