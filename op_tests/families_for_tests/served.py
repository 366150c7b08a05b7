"""A small operator with a public function that looks its config up, and rows that go wrong in their own ways."""

import os
import sys
import time

from aiter_tuning.keys import Key
from aiter_tuning.serving import bind, refuse
from aiter_tuning.tuner import Candidate, Family, Work


def add_one(x):
    """The public operator: ``x + 1`` as the tuned row says; one size is never looked up."""
    if x.numel() == 7:
        return x + 1
    row = bind(Served)(x.numel(), "fp32")
    if row is None:
        return x + 1
    try:
        return Served().run({"x": x}, row.config)
    except RuntimeError as error:
        refuse(Served, row, f"RuntimeError: {error}")
        return x + 1


class Served(Family):
    name = "served"
    devices = ("cpu",)
    key = Key(N=int, dtype="fp32")

    def inputs(self, shape, device, seed):
        import torch

        return {"x": torch.arange(shape["N"], dtype=torch.float32, device=device)}

    def reference(self, inputs):
        return inputs["x"] + 1

    def default(self, shape, device):
        return Candidate("plain", {"do": "plain"})

    def candidates(self, shape, device):
        return [Candidate(name, {"do": name}) for name in ("quick", "wrong", "raises", "dies", "hangs", "silent")]

    def work(self, shape):
        return Work(shape["N"], 8 * shape["N"])

    def serve(self, inputs):
        return add_one(inputs["x"])

    def run(self, inputs, config):
        x = inputs["x"]
        if config["do"] == "wrong":
            return x + 2
        if config["do"] == "raises":
            raise RuntimeError("no such instruction")
        if config["do"] == "dies":
            print("farewell", file=sys.stderr, flush=True)
            os._exit(9)
        if config["do"] == "hangs":
            time.sleep(3600)
        return x + 1
