"""Small operators whose candidates behave as their names say, for tests of whole runs.

``x + 1`` on a handful of elements. A candidate's latency is a sleep, long enough that noise does not reorder them.
"""

import os
import time

from aiter_tuning.keys import Key
from aiter_tuning.tuner import Candidate, Family, Tolerance, Work


def pause(us):
    time.sleep(us / 1e6)


class Tiny(Family):
    """Two candidates; ``quick`` beats the default."""

    name = "tiny"
    devices = ("cpu",)
    key = Key(N=int, dtype="fp32")
    tolerance = Tolerance(err_ratio=0.05)
    extra = ()

    def inputs(self, shape, device, seed):
        import torch

        return {"x": torch.arange(shape["N"], dtype=torch.float32, device=device)}

    def reference(self, inputs):
        return inputs["x"] + 1

    def default(self, shape, device):
        return Candidate("steady", {"do": "steady"})

    def candidates(self, shape, device):
        names = ("steady", "quick", *self.extra)
        return [Candidate(name, {"do": name}, kernel_id=number) for number, name in enumerate(names)]

    def run(self, inputs, config):
        return getattr(self, config["do"])(inputs["x"])

    def work(self, shape):
        return Work(flops=shape["N"], bytes=8 * shape["N"])

    def steady(self, x):
        pause(2000)
        return x + 1

    def quick(self, x):
        pause(200)
        return x + 1

    def wrong(self, x):
        return x + 2

    def refuses(self, x):
        raise NotImplementedError("not for this shape")

    def raises(self, x):
        raise KeyError("x")

    def dies(self, x):
        os._exit(7)

    def hangs(self, x):
        time.sleep(3600)

    def talks(self, x):
        print("hello from a candidate")
        return x + 1

    def waits(self, x):
        """Until the file named by the environment is there."""
        while not os.path.exists(os.environ["TINY_GATE"]):
            time.sleep(0.01)
        return x + 1


class Troubled(Tiny):
    """Every kind of trouble beside two candidates that work."""

    name = "troubled"
    extra = ("wrong", "refuses", "raises", "dies")


class Hopeless(Tiny):
    """No candidate is right."""

    name = "hopeless"

    def default(self, shape, device):
        return Candidate("raises", {"do": "raises"})

    def candidates(self, shape, device):
        return [Candidate("raises", {"do": "raises"}), Candidate("wrong", {"do": "wrong"})]


class Hanging(Tiny):
    name = "hanging"
    extra = ("hangs",)


class Gated(Tiny):
    """Its last candidate runs until a file is made."""

    name = "gated"
    extra = ("waits",)


class Talking(Tiny):
    name = "talking"
    extra = ("talks",)


class Bucketed(Tiny):
    """Serves sizes up to the next power of two."""

    name = "bucketed"

    def bucket(self, shape):
        return {**shape, "N": 1 << (shape["N"] - 1).bit_length()}


class Picky(Tiny):
    """Lists nothing to try for sizes below ten, and refuses those above a hundred."""

    name = "picky"

    def candidates(self, shape, device):
        if shape["N"] > 100:
            raise ValueError(f"no more than 100, not {shape['N']}")
        return super().candidates(shape, device) if shape["N"] >= 10 else []


class Elsewhere(Tiny):
    """Runs on GPUs only."""

    name = "elsewhere"
    devices = ("cuda", "hip")
