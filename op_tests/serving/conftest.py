"""A device that this machine lacks, a family of each test's own, and the log that says why a row does not serve."""

import ctypes
import itertools
import logging

import pytest

from aiter_tuning.serving import answers, bound
from op_tests.serving.scaled import HERE, Bucketed, Scaled

_serial = itertools.count()


def fresh(cls):
    """A family under a name that no test has used, so that nothing is known of it yet."""
    return type(cls.__name__, (cls,), {"name": f"{cls.name}{next(_serial)}"})


@pytest.fixture
def scaled():
    return fresh(Scaled)


@pytest.fixture
def bucketed():
    return fresh(Bucketed)


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch, tmp_path):
    """Lookups think they are on this GPU, and find no tables but those of the test."""
    monkeypatch.setattr(bound, "identity_here", lambda kinds, device=None: HERE)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


@pytest.fixture
def every_time(monkeypatch):
    """Tables are looked at by every lookup, not twice a second."""
    monkeypatch.setattr(answers, "LOOK_EVERY_S", 0.0)


@pytest.fixture
def said(caplog):
    """What was logged, as far as it has these words."""
    caplog.set_level(logging.WARNING, "aiter_tuning")
    return lambda words="": [r.getMessage() for r in caplog.records if words in r.getMessage()]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    target = tmp_path / "small"
    target.mkdir()
    libc = ctypes.CDLL(None)
    if libc.mount(b"tmpfs", bytes(target), b"tmpfs", 0, b"size=64k") != 0:
        pytest.skip("no file system can be mounted here")
    yield target
    libc.umount2(bytes(target), 2)
