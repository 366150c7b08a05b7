"""What candidates disturb is put back."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from aiter_tuning.measure.surroundings import Surroundings


@contextlib.contextmanager
def captured() -> Iterator[Surroundings]:
    """Inside the test, not in a fixture: pytest changes the environment between the two."""
    surroundings = Surroundings.capture()
    try:
        yield surroundings
    finally:
        surroundings.restore()
        surroundings.close()


def _add_environment() -> None:
    os.environ["AITER_TEST_ADDED"] = "1"


DISTURBANCES: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
    ("environ", _add_environment, lambda: "AITER_TEST_ADDED" in os.environ),
    ("environ", lambda: os.environ.pop("PATH"), lambda: os.environ.get("PATH")),
    ("environ", lambda: os.environ.update(PATH="/nowhere"), lambda: os.environ.get("PATH")),
    ("signals", lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), lambda: signal.getsignal(signal.SIGTERM)),
    ("signals", lambda: signal.signal(signal.SIGINT, lambda *_: None), lambda: signal.getsignal(signal.SIGINT)),
    ("sys.path", lambda: sys.path.insert(0, "/nowhere"), lambda: list(sys.path)),
    ("warnings", lambda: warnings.simplefilter("error"), lambda: list(warnings.filters)),
    ("gc", gc.disable, gc.isenabled),
    ("clocks", lambda: setattr(time, "monotonic", float), lambda: time.monotonic),
    ("recursion_limit", lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    ("default_dtype", lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    ("grad_mode", lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    ("matmul_precision", lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    ("default_device", lambda: torch.set_default_device("meta"), torch.get_default_device),
]


@pytest.mark.parametrize(
    ("name", "disturb", "look"), DISTURBANCES, ids=[f"{d[0]}-{i}" for i, d in enumerate(DISTURBANCES)]
)
def test_what_a_candidate_changed_is_named_and_put_back(
    name: str, disturb: Callable[[], object], look: Callable[[], object]
) -> None:
    with captured() as surroundings:
        before = look()
        disturb()
        assert look() != before
        assert name in surroundings.restore()
        assert look() == before
        assert surroundings.restore() == ()


def test_a_changed_directory_is_put_back(tmp_path: Path) -> None:
    with captured() as surroundings:
        before = os.getcwd()
        os.chdir(tmp_path)
        assert surroundings.restore() == ("cwd",)
    assert os.getcwd() == before


def test_a_deleted_directory_is_left(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with captured() as surroundings:
        os.chdir(gone)
        gone.rmdir()
        assert surroundings.restore() == ("cwd",)
    assert Path.cwd().is_dir()


def test_a_closed_stdout_works_again() -> None:
    # In a process of its own: pytest's stdout is not to be closed.
    code = """
import os, sys
from aiter_tuning.measure.surroundings import Surroundings
s = Surroundings.capture()
os.close(1)
os.close(2)
assert s.restore() == ("output",), s
print("closed by number", flush=True)
sys.stdout.close()
found = s.restore()
assert "output" in found, found
print("closed as an object", flush=True)
sys.stdout = open(os.devnull, "w")
assert s.restore() == ("sys.stdout",)
print("replaced", flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
assert s.restore() == ("output",)
print("redirected", flush=True)
assert s.restore() == ()
s.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["closed by number", "closed as an object", "replaced", "redirected"]


def test_an_affinity_that_was_narrowed_is_widened_again() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    with captured() as surroundings:
        os.sched_setaffinity(0, {min(allowed)})
        assert surroundings.restore() == ("affinity",)
    assert os.sched_getaffinity(0) == allowed


def test_an_alarm_does_not_go_off_in_a_neighbour() -> None:
    # In a process of its own: pytest-timeout uses the same timer.
    code = """
import signal
from aiter_tuning.measure.surroundings import Surroundings
s = Surroundings.capture()
signal.alarm(1000)
assert s.restore() == ("alarm",)
assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_surroundings_know_torch_even_if_it_came_later() -> None:
    code = """
import sys
from aiter_tuning.measure.surroundings import Surroundings
s = Surroundings.capture()
assert s.restore() == () and "torch" not in sys.modules
import torch
s.restore()
torch.set_default_dtype(torch.float64)
assert s.restore() == ("default_dtype",)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_descriptors_are_given_back() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        Surroundings.capture().close()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_looking_is_cheap() -> None:
    best = float("inf")
    with captured() as surroundings:
        for _ in range(20):
            start = time.perf_counter()
            for _ in range(100):
                surroundings.restore()
            best = min(best, (time.perf_counter() - start) * 1e4)
    assert best < 50, f"{best:.1f} us; it takes about 10 us on an idle machine"


def test_a_number_of_threads_is_put_back_without_a_word() -> None:
    surroundings = Surroundings.capture()
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    assert surroundings.restore() == ()
    assert torch.get_num_threads() == before
    surroundings.close()
