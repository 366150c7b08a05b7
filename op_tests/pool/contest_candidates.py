"""Entrants that misbehave at a call of the test's choice. Workers import this module by name.

Calls of an entrant in a contest of two calls a turn, each process counting anew: 1 checked, 2 warm-up, 3 and 4 in the
first block that it takes part in there, 5 and 6 in the second, and so on; the last one is the verifying call.
"""

import os
import time
from collections import Counter
from pathlib import Path

from op_tests.pool.fake_devices import FakeGpu
from op_tests.pool.fault_candidates import write_result

DOOR, FIRST, SECOND = 1, 3, 5
_calls = Counter()


def at_call(x, y, number, name, action, *args):
    """Does what ``action`` does at its call of that number, and is right in all others."""
    _calls[name] += 1
    if _calls[name] == number:
        return action(x, y, *args)
    return write_result(x, y)


def once(x, y, number, name, file, action, *args):
    """The same, in the first process only that comes so far."""
    _calls[name] += 1
    if _calls[name] == number and not Path(file).exists():
        Path(file).write_text("")
        return action(x, y, *args)
    return write_result(x, y)


def counted(x, y, file):
    """Writes down the process of each call."""
    with open(file, "a") as log:
        log.write(f"{os.getpid()}\n")
    return write_result(x, y)


def slow(x, y, seconds):
    time.sleep(seconds)
    return write_result(x, y)


def writes_wrong(x, y):
    return write_result(x * 3, y)


class SickLater(FakeGpu):
    """Fails its probe once its file names it."""

    def bind(self, device):
        self.file = Path(device.settings["file"])
        return super().bind(device)

    def probe(self):
        if self.file.exists() and self.file.read_text() == os.environ["FAKE_VISIBLE_DEVICES"]:
            raise RuntimeError("the small product is wrong")


def makes_its_gpu_sick(x, y, file):
    Path(file).write_text(os.environ["FAKE_VISIBLE_DEVICES"])
    os._exit(7)
