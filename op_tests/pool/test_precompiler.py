"""Compiling ahead: what lands in the cache, what the lanes are told, and what trouble costs (nothing)."""

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import triton

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.compile_book import CompileBook, Slots, State
from aiter_tuning.pool.compile_server import CompilerDiedError, claimed
from aiter_tuning.pool.precompiler import Precompiler, can_precompile, spare_cores
from aiter_tuning.status import Status
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.plan import plan_shape
from aiter_tuning.tuner.tasks import FamilyTasks, ShapeGroups
from op_tests.pool.compile_candidates import (
    BreaksOnLoading,
    aborts,
    compiles,
    group,
    hangs,
    leaves_a_session_behind,
    tells,
)
from op_tests.pool.fake_devices import gpu
from op_tests.processes import descendants, wait_for

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"),
]

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 90.0


@pytest.fixture(scope="module")
def spawner():
    with ThreadPoolExecutor(1) as executor:
        yield executor


@pytest.fixture
def cache(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(path))
    return path


@pytest.fixture
def precompile(spawner, tmp_path, cache):
    """Starts a precompiler on groups; it is closed after the test, and nothing of it may be left then."""
    started = []

    def start(groups, **options):
        options = {"cores": sorted(os.sched_getaffinity(0)), "fewest": 1, **options}
        precompiler = Precompiler(groups, options.pop("devices", [gpu(0)]), spawner, str(tmp_path), **options)
        started.append(precompiler)
        return precompiler

    yield start
    for precompiler in started:
        precompiler.close()
    tokens = [precompiler.token for precompiler in started if hasattr(precompiler, "token")]
    wait_for(lambda: descendants(tokens) == [])


def is_alive(file):
    """Whether the process whose id a candidate wrote is still there; as a zombie it is not."""
    try:
        return psutil.Process(int(file.read_text())).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def finish(precompiler):
    wait_for(lambda: not precompiler.running, LONG_S)


def states(precompiler, number, candidates):
    slots = precompiler.slots(number)
    book = CompileBook(slots.path)
    return [book.state(slots.first + index).name for index in range(candidates)]


def verdicts(precompiler, number, candidates):
    view = precompiler.slots(number).open()
    return [view.take(index) for index in range(candidates)]


def binaries(cache):
    return {path.parent.name for path in cache.glob("*/*.cubin")}


def family_groups(name, sizes):
    reference = f"op_tests.families_for_tests.triton_scale:{name}"
    family = load_family(reference)
    tasks = FamilyTasks(family, reference, seed=0, kwargs={"num_warmup": 2, "num_iters": 3})
    plans = [plan_shape(family, {"N": size}, gpu(0)) for size in sizes]
    return plans, ShapeGroups(tasks, plans, [plan.candidates for plan in plans])


def test_a_familys_kernels_are_compiled_once_for_all_shapes_that_share_them(precompile, cache):
    plans, groups = family_groups("Trying", (4096, 8192))
    names = plans[0].names
    precompiler = precompile(groups)
    assert precompiler.running
    finish(precompiler)
    for number in range(2):
        state = dict(zip(names, states(precompiler, number, len(names)), strict=True))
        verdict = dict(zip(names, verdicts(precompiler, number, len(names)), strict=True))
        compiled = {"torch", "block64", "block128", "view", "strided", "falls_back"}
        assert {name for name in names if state[name] == "compiled"} == compiled
        assert {name: v.status for name, v in verdict.items() if v is not None} == {
            "asserts": Status.unsupported,
            "assembly": Status.unsupported,
            "huge": Status.unsupported,
            "malformed": Status.crash,
        }
        assert {name for name in names if state[name] == "no_verdict"} == {"autotunes", "looks"}
        assert "out of resource: shared memory" in verdict["huge"].detail
        assert verdict["malformed"].us == -1 and verdict["malformed"].detail.startswith("compile: CompilationError")
    assert len(binaries(cache)) == 5  # two blocks, the view, the strided one, the product that does not fit


def test_whatever_dies_or_hangs_is_no_verdict_takes_its_assembler_along_and_its_neighbours_compile(
    precompile, cache, tmp_path
):
    file = tmp_path / "pid"
    work = [
        group((compiles, 64), (aborts,), (hangs, str(file)), (compiles, 128)),
        group((BreaksOnLoading(),), (compiles, 32)),
        group((compiles, 256), (aborts,)),
    ]
    precompiler = precompile(work, timeout_s=4.0)
    finish(precompiler)
    assert states(precompiler, 0, 4) == ["compiled", "no_verdict", "no_verdict", "compiled"]
    assert states(precompiler, 1, 2) == ["no_verdict", "no_verdict"]  # loading their group ends each
    assert states(precompiler, 2, 2) == ["compiled", "no_verdict"]
    assert verdicts(precompiler, 0, 4) == [None] * 4
    assert len(binaries(cache)) == 3
    wait_for(lambda: not is_alive(file) and descendants([precompiler.token]) == [])


@pytest.mark.parametrize("how", [hangs, leaves_a_session_behind])
def test_closing_ends_everything_at_once(precompile, tmp_path, how):
    file = tmp_path / "pid"
    precompiler = precompile([group((how, str(file)), (compiles, 64))])
    wait_for(file.exists, LONG_S)
    assert is_alive(file) and len(descendants([precompiler.token])) >= 3
    start = time.monotonic()
    precompiler.close()
    assert time.monotonic() - start < 10, "it waited for what hangs"
    wait_for(lambda: not is_alive(file) and descendants([precompiler.token]) == [])
    precompiler.close()


def test_a_server_that_is_killed_takes_its_processes_along_and_nobody_notices(precompile, tmp_path):
    file = tmp_path / "pid"
    precompiler = precompile([group((hangs, str(file)), (compiles, 64))])
    wait_for(file.exists, LONG_S)
    os.kill(precompiler.pid, signal.SIGKILL)
    finish(precompiler)
    assert verdicts(precompiler, 0, 2) == [None, None]
    precompiler.close()
    wait_for(lambda: not is_alive(file))


def test_nothing_outlives_a_parent_that_is_killed(tmp_path, cache):
    file = tmp_path / "pid"
    with subprocess.Popen(
        [sys.executable, "-m", "op_tests.pool.precompiling_parent", str(file), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        token = parent.stdout.readline().strip()
        wait_for(file.exists, LONG_S)
        assembler = int(file.read_text())
        parent.kill()
    try:
        # The compile server and its processes go with it; a program that one of them ran has to end by itself.
        wait_for(lambda: {process.pid for process in descendants([token])} <= {assembler}, 10)
    finally:
        os.kill(assembler, signal.SIGKILL)


# A server imports torch and Triton and compiles once before it begins, so several tests look at the work of one


class Aside(NamedTuple):
    """What one server did on one core, beside a lane that had come to the third group already."""

    cache: Path
    cores: list
    pid: int
    taken: list
    """What the lane was told about the candidates that it had come to."""
    slots: list
    """Of each group; None where it was not sent."""
    states: list
    """Of each group that was sent."""
    facts: dict
    """What a compile process saw."""
    moments: dict
    """When a candidate of the cheap and one of the dear group ran, in ns."""


@pytest.fixture(scope="module")
def aside(spawner, tmp_path_factory):
    folder = tmp_path_factory.mktemp("aside")
    cheap, dear, cache = folder / "cheap", folder / "dear", folder / "cache"
    cores = sorted(os.sched_getaffinity(0))[:1]
    work = [
        replace(group((tells, str(cheap))), cost=1.0),
        replace(group((tells, str(dear))), cost=2.0),
        group((compiles, 64), (compiles, 128), (compiles, 256)),
        group((compiles, 32)),
        group((compiles, (n for n in ()))),  # cannot be sent
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(cache))
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")
        precompiler = Precompiler(work, [gpu(0)], spawner, str(folder), cores=cores, fewest=1)
        try:
            lane = precompiler.slots(2).open()
            taken = [lane.take(index) for index in range(3)]
            finish(precompiler)
            slots = [precompiler.slots(number) for number in range(5)]
            seen = [states(precompiler, number, count) for number, count in enumerate((1, 1, 3, 1))]
            moments = {file.name: file.stat().st_mtime_ns for file in (cheap, dear)}
            facts = json.loads(dear.read_text())
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
            return Aside(cache, cores, precompiler.pid, taken, slots, seen, facts, moments)
        finally:
            precompiler.close()


def test_candidates_that_a_lane_has_come_to_are_passed_over(aside):
    assert aside.taken == [None] * 3
    assert aside.states[2] == ["skipped"] * 3
    assert len(binaries(aside.cache)) == 1, "the other group's"


def test_compile_processes_see_no_device_and_leave_the_lanes_cores_alone(aside):
    facts = aside.facts
    assert (facts["device"], facts["gpus"], facts["masks"]) == ("meta", 0, ["-1", "-1"])
    assert facts["cores"] == aside.cores and facts["nice"] >= 5
    assert facts["leads_its_group"] and facts["parent"] == aside.pid
    assert (facts["cwd"], facts["cache"]) == (os.getcwd(), str(aside.cache))


def test_groups_are_compiled_in_the_order_in_which_lanes_take_them(aside):
    """A list is worked off with the costliest first."""
    assert aside.moments["dear"] < aside.moments["cheap"]
    assert aside.states[:2] == [["compiled"]] * 2


def test_a_group_that_cannot_be_sent_is_left_to_its_lane(aside):
    assert [slots is None for slots in aside.slots] == [False] * 4 + [True]
    assert aside.states[3] == ["compiled"]


def test_the_second_time_nothing_is_compiled(aside, precompile, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(aside.cache))
    before = {path: path.stat().st_mtime_ns for path in aside.cache.rglob("*")}
    again = precompile([group((compiles, 32))])
    finish(again)
    assert states(again, 0, 1) == ["compiled"]
    assert {path: path.stat().st_mtime_ns for path in aside.cache.rglob("*")} == before


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_what_launches_kernels_is_built_ahead_too(precompile, cache, tmp_path, monkeypatch):
    """With a driver's library that has every name and does nothing; there is no real one without a GPU."""
    backend = Path(triton.__file__).parent / "backends" / "nvidia"
    sources = (backend / "driver.c").read_text() + (backend / "driver.py").read_text()
    names = set(re.findall(r"\bcu[A-Z]\w*", sources))
    (tmp_path / "cuda.c").write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in sorted(names)))
    library = tmp_path / "library"
    library.mkdir()
    command = ["gcc", "-shared", "-fPIC", "-o", str(library / "libcuda.so.1"), str(tmp_path / "cuda.c")]
    subprocess.run(command, check=True)
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(library))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    precompiler = precompile([group((compiles, 64), (compiles, 128))])
    finish(precompiler)
    assert states(precompiler, 0, 2) == ["compiled", "compiled"]
    assert len(list(cache.glob("*/cuda_utils*.so"))) == 1
    has_launchers = hasattr(importlib.import_module("triton.backends.nvidia.driver"), "make_launcher")
    assert len(list(cache.glob("*/__triton_launcher*.so"))) == (1 if has_launchers else 0)


# When nothing is started


@pytest.mark.parametrize(
    "options",
    [
        {"fewest": 4},
        {"cores": ()},
        {"devices": cpu_lanes(1)},
        {"devices": [gpu(0), replace(gpu(1), gfx="sm100")]},
        {"devices": [replace(gpu(0), gfx="pentium")]},
    ],
    ids=["few candidates", "no spare core", "a CPU", "two arches", "no arch"],
)
def test_nothing_is_started_where_it_would_not_help(precompile, options, tmp_path):
    precompiler = precompile([group((compiles,), (compiles,), (compiles,))], **options)
    assert not precompiler.started and not precompiler.running and precompiler.pid is None
    assert precompiler.slots(0) is None and not precompiler.counts()
    assert not list(tmp_path.iterdir())


def test_the_interpreter_compiles_nothing_ahead(monkeypatch):
    assert can_precompile([gpu(0), gpu(1)])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not can_precompile([gpu(0)])


@pytest.mark.parametrize(
    ("lanes", "quota", "spare"),
    [
        ([()], "max 100000", (1, 2, 3, 4, 5, 6, 7)),
        ([(), ()], "max 100000", (2, 3, 4, 5, 6, 7)),
        ([(3, 7)], "max 100000", (0, 1, 2, 4, 5, 6)),
        ([(3, 7), ()], "max 100000", (1, 2, 4, 5, 6)),
        ([()], "400000 100000", (1, 2, 3)),
        ([()], "150000 100000", ()),
        ([()] * 8, "max 100000", ()),
        ([()] * 9, "max 100000", ()),
        ([()], None, (1, 2, 3, 4, 5, 6, 7)),
    ],
)
def test_every_lane_keeps_its_cores(monkeypatch, tmp_path, lanes, quota, spare):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    devices = [replace(gpu(index), cores=cores) for index, cores in enumerate(lanes)]
    assert spare_cores(devices, tmp_path) == spare


# The book


def test_a_verdict_is_found_by_the_lane_that_comes_to_it(tmp_path):
    book = CompileBook.create(str(tmp_path / "book"), 5)
    book.enter(2, State.compiling)
    verdict = Measurement.failed(Status.crash, "compile: too much", us=-1.0)
    book.fail(3, verdict)
    lane = Slots(book.path, 2).open()
    assert [lane.take(index) for index in range(3)] == [None, verdict, None]
    assert [book.is_taken(slot) for slot in range(5)] == [False, False, True, True, True]
    assert book.counts() == {State.waiting: 3, State.compiling: 1, State.failed: 1}
    lane.close()


def test_a_book_that_is_gone_or_has_lost_a_verdict_knows_nothing(tmp_path):
    assert Slots(str(tmp_path / "none"), 0).open() is None
    (tmp_path / "empty").touch()
    assert Slots(str(tmp_path / "empty"), 0).open() is None
    book = CompileBook.create(str(tmp_path / "book"), 2)
    book.enter(0, State.failed)
    book.enter(1, State.failed)
    Path(f"{book.path}.1").write_text('{"status": "cra')
    assert (book.take(0), book.take(1)) == (None, None)


# Claims


def test_only_one_process_compiles_a_kernel(tmp_path):
    with claimed(str(tmp_path), "kernel") as first, claimed(str(tmp_path), "kernel") as second:
        assert (first, second) == (True, False)
    with claimed(str(tmp_path), "kernel") as again:
        assert again


def test_a_compiler_that_raises_may_be_asked_again(tmp_path):
    with pytest.raises(ZeroDivisionError), claimed(str(tmp_path), "kernel"):
        raise ZeroDivisionError
    with claimed(str(tmp_path), "kernel") as again:
        assert again


def test_a_kernel_that_ended_a_process_is_not_tried_again(tmp_path):
    pid = os.fork()
    if pid == 0:
        with claimed(str(tmp_path), "kernel"):
            os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(CompilerDiedError), claimed(str(tmp_path), "kernel"):
        pass
