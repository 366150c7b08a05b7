"""One of two ranks (gloo, CPU) that go through all situations of a check together, and write down what each saw."""

import dataclasses
import json
import logging
import os
import sys

import torch.distributed as dist

from aiter_tuning.triton_autotune import (
    AutotunePolicy,
    RanksDisagreeError,
    install,
    maybe_verify_choices,
    verify_choices,
)
from op_tests.triton_autotune import kernels

PINNED = AutotunePolicy(mode="pinned", modules=(kernels.MODULE,), arch="sm90", verify_every=2)


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        if "disagree" in record.getMessage():
            self.texts.append(record.getMessage())


class Counted:
    """Counts the exchanges, and fails when told to."""

    def __init__(self):
        self.original, self.calls, self.fails = dist.all_gather_object, 0, False
        dist.all_gather_object = self

    def __call__(self, slots, value, group=None):
        self.calls += 1
        self.slots = len(slots)
        if self.fails:
            raise ConnectionError("the network went away")
        return self.original(slots, value, group=group)


def situations(rank, said, exchanges):
    """(name, what this rank saw) of each."""

    def start(**changes):
        said.texts.clear()
        exchanges.calls = 0
        install(AutotunePolicy())
        install(dataclasses.replace(PINNED, **changes))
        return kernels.autotuned(bench=kernels.Bench(*((3.0, 1.0, 2.0) if rank == 0 else (1.0, 2.0, 3.0))))

    tuner = start()
    kernels.launch(tuner)
    first = [maybe_verify_choices(0), exchanges.calls]
    again = [maybe_verify_choices(1), maybe_verify_choices(2), exchanges.calls]
    yield "agree", {"first": first, "again": again, "said": list(said.texts)}

    tuner = start(chaos=True)
    kernels.launch(tuner)
    yield "chaos", {"result": verify_choices(), "said": list(said.texts), "again": verify_choices()}

    tuner = start(chaos=True, verify_strict=True)
    kernels.launch(tuner)
    try:
        verify_choices()
        yield "strict", None
    except RanksDisagreeError as error:
        yield "strict", str(error)

    tuner = start()
    kernels.launch(tuner)
    if rank == 1:
        kernels.launch(tuner, 300)
    result = verify_choices()
    yield "one rank only", {"result": result, "exchanges": exchanges.calls, "said": list(said.texts)}

    tuner = start(mode="auto")
    if rank == 1:
        kernels.launch(tuner, 300)
    before = verify_choices()
    if rank == 0:
        kernels.launch(tuner, 300)
    yield "contradicted later", {"before": before, "after": verify_choices()}

    tuner = start(chaos=True)
    kernels.launch(tuner)
    exchanges.fails = True
    try:
        verify_choices()
        failed = None
    except ConnectionError as error:
        failed = str(error)
    exchanges.fails = False
    yield "failed collective", {"failed": failed, "next": verify_choices()}

    alone = [dist.new_group([member]) for member in range(2)][rank]
    tuner = start(chaos=True)
    kernels.launch(tuner)
    yield (
        "groups",
        {"alone": verify_choices(alone), "slots": None, "together": verify_choices(), "all": exchanges.slots},
    )


if __name__ == "__main__":
    folder, rank = sys.argv[1], int(sys.argv[2])
    os.environ["RANK"] = str(9)  # the process group's rank counts
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    said = Warnings()
    logging.getLogger("aiter_tuning").addHandler(said)
    results = dict(situations(rank, said, Counted()))
    with open(f"{folder}/rank{rank}.json", "w") as file:
        json.dump(results, file)
    dist.barrier()
    dist.destroy_process_group()
