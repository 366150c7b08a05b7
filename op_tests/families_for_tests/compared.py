"""A small operator whose public function serves what is tuned: ``x + 1``, at the speed that a row names.

A candidate's latency is a sleep, long enough that noise does not reorder them.
"""

import os
import time

from aiter_tuning.keys import Key
from aiter_tuning.serving import bind, refuse
from aiter_tuning.tuner import Candidate, Family, Work

US = {"steady": 2000, "quick": 1400, "fair": 1800, "same": 1400, "fragile": 1000, "wrong": 800, "rough": 1000}
"""``fragile`` is fast, and fails wherever the public function runs it."""


def add_one(x):
    """The public operator."""
    row = bind(Compared)(x.numel(), "fp32")
    if row is None:
        return Compared().run({"x": x}, {"do": "steady"})
    try:
        if row.config["do"] == "fragile":
            raise RuntimeError("no such instruction")
        return Compared().run({"x": x}, row.config)
    except RuntimeError as error:
        refuse(Compared, row, f"RuntimeError: {error}")
        return Compared().run({"x": x}, {"do": "steady"})


class Compared(Family):
    name = "compared"
    devices = ("cpu",)
    key = Key(N=int, dtype="fp32")
    names = ("steady", "quick", "fair", "wrong")

    def inputs(self, shape, device, seed):
        import torch

        return {"x": torch.arange(shape["N"], dtype=torch.float32, device=device)}

    def reference(self, inputs):
        return inputs["x"] + 1

    def default(self, shape, device):
        return Candidate("steady", {"do": "steady"})

    def candidates(self, shape, device):
        return [Candidate(name, {"do": name}, kernel_id=number) for number, name in enumerate(self.names)]

    def resolve(self, name, config, shape, device):
        return config if name in US else None

    def work(self, shape):
        return Work(shape["N"], 8 * shape["N"])

    def serve(self, inputs):
        return add_one(inputs["x"])

    def run(self, inputs, config):
        do = config["do"]
        if do == "dies":
            os._exit(9)
        time.sleep(US[do] / 1e6)
        result = inputs["x"] + (2 if do == "wrong" else 1)
        if do == "rough":
            result[0] += 0.5
        return result


class Fragile(Compared):
    """The fastest candidate works in the tuner and nowhere else."""

    names = (*Compared.names, "fragile")


class Rough(Compared):
    """One element of the fastest is off: too many of eight, unless a run allows for it."""

    names = (*Compared.names, "rough")
