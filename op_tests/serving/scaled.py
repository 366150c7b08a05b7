"""Small operators that are looked up and never run, and the lines of their tables."""

from aiter_tuning.devices.identity import Identity
from aiter_tuning.keys import Key
from aiter_tuning.tables.csv_writer import csv_line
from aiter_tuning.tuner.family import Candidate, Family, Work

HERE = Identity("sm90", 132, "NVIDIA H200")
COLUMNS = ("gfx", "cu_num", "gpu_model", "M", "N", "dtype", "bias", "kernelId", "splitK", "us", "kernelName")
COLUMNS += ("tflops", "bw", "errRatio", "config")


class Scaled(Family):
    """``y = 2 x``."""

    name = "scaled"
    devices = ("cuda", "hip")
    key = Key(M=int, N=int, dtype="bf16", bias=False)

    def inputs(self, shape, device, seed):
        raise AssertionError("a lookup makes no inputs")

    def reference(self, inputs):
        raise AssertionError("a lookup makes no reference")

    def run(self, inputs, config):
        raise AssertionError("a lookup runs nothing")

    def default(self, shape, device):
        return Candidate("plain", {"kernel": "plain"})

    def candidates(self, shape, device):
        return [Candidate("plain", {"kernel": "plain"}), Candidate("fast", {"kernel": "fast"})]

    def work(self, shape):
        return Work(shape["N"], shape["N"])


class Bucketed(Scaled):
    """Serves M up to the next power of two."""

    name = "bucketed"

    def bucket(self, shape):
        return {**shape, "M": 1 << (shape["M"] - 1).bit_length()}


def line(m, us=10.0, kernel="fast", n=64, dtype="bf16", bias="False", device=HERE, config='{"kernel":"fast"}'):
    """One row of a table."""
    return csv_line(map(str, (*device, m, n, dtype, bias, 0, 0, us, kernel, 1.0, 1.0, 0.0, config)))


def write_table(path, *lines):
    path.write_text(csv_line(COLUMNS) + "".join(lines))
    return path
