"""Pools are expensive to start (a process imports torch), so tests share open ones."""

import dataclasses
import gc
import itertools
import signal

import pytest
from hypothesis import settings

from aiter_tuning import Pool
from aiter_tuning.devices.cpu import cpu_lanes

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("searching", derandomize=False)
settings.load_profile("repeatable")  # one tree passes or fails the same way everywhere; see tools/run_tests.py --all


def pytest_configure():
    """Started in a shell's background we ignore Ctrl-C, and so would all commands that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """A collection over all that was imported costs 0.1 s each time; frozen it is not looked at."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """Libraries that count what is left at the end, as Triton's, find it collectable."""
    gc.unfreeze()


LANE_MEMORY_BYTES = 2 << 30
"""Small enough that a memory hog meets its limit in a second."""


@pytest.fixture(scope="session")
def homes(tmp_path_factory):
    """A directory, and numbers for what lies in it."""
    return tmp_path_factory.mktemp("homes"), itertools.count()


@pytest.fixture(autouse=True)
def aiter_tuning_home(homes, monkeypatch):
    """What a test leaves in the user's state directory, such as the poison list, concerns no other test and no user."""
    directory, numbers = homes
    home = directory / str(next(numbers))
    monkeypatch.setenv("AITER_TUNING_HOME", str(home))
    return home


def small_lanes(count):
    """CPU lanes as the product makes them, with less memory; on a one-core machine lanes share the core."""
    devices = cpu_lanes(count)
    devices = (*devices, *devices)[:count]
    return [
        dataclasses.replace(device, name=f"cpu{lane}", memory_bytes=LANE_MEMORY_BYTES)
        for lane, device in enumerate(devices)
    ]


@pytest.fixture(scope="session")
def one_lane():
    with Pool(small_lanes(1)) as pool:
        yield pool


@pytest.fixture(scope="session")
def two_lanes():
    with Pool(small_lanes(2)) as pool:
        yield pool
