"""Compiling ahead on a real GPU: a lane then compiles nothing, and everything comes out as without it."""

import inspect
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from aiter_tuning import Pool
from aiter_tuning.devices.discovery import discover
from aiter_tuning.measure.compile_target import limits_of
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool import pool as pool_module
from aiter_tuning.pool.compile_book import CompileBook, State
from aiter_tuning.pool.precompiler import Precompiler, spare_cores
from aiter_tuning.pool.watcher import Watcher
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.plan import plan_shape
from aiter_tuning.tuner.tasks import FamilyTasks
from op_tests.processes import descendants, wait_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"),
]

ROOT = Path(__file__).resolve().parents[2]
IMPORT_PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
KIND = "hip" if torch.version.hip else "cuda"
GEMM = "aiter_tuning.families.gemm_bf16:GemmBf16"
TRYING = "op_tests.families_for_tests.triton_scale:Trying"
GEMM_SHAPES = ({"M": 16, "N": 1024, "K": 1024}, {"M": 512, "N": 2048, "K": 1024}, {"M": 1024, "N": 2048, "K": 1024})
ABOUT_OF_A_SHAPE = 5
LANE_COMPILES = {"autotunes", "looks"}
"""Candidates that cannot be run dry."""
COMPILER_REFUSES = {"asserts", "malformed", "assembly", "huge"}


class Work:
    """Groups of a few candidates of each family, and the same as a list for a process."""

    def __init__(self, device):
        self.groups, self.wanted, self.names = [], [], []
        for reference, shapes in ((GEMM, GEMM_SHAPES), (TRYING, ({"N": 4096},))):
            family = load_family(reference)
            tasks = FamilyTasks(family, reference, seed=0, kwargs={})
            for fields in shapes:
                plan = plan_shape(family, family.key.parse(fields), device)
                step = max(1, len(plan.candidates) // ABOUT_OF_A_SHAPE)
                candidates = plan.candidates[::step] if reference == GEMM else plan.candidates
                self.groups.append(tasks.group(plan, candidates))
                self.names.append([candidate.name for candidate in candidates])
                self.wanted += [[reference, dict(plan.shape), c.name, dict(c.config)] for c in candidates]


@pytest.fixture(scope="module")
def devices():
    return discover(KIND)[:1]


@pytest.fixture(scope="module")
def work(devices):
    return Work(devices[0])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("precompile")


@pytest.fixture(scope="module")
def precompiled(devices, work, directory):
    """The cache as the compile processes left it, and what their book says: name → state, verdict by group."""
    cache = directory / "ahead"
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(cache)
    try:
        with ThreadPoolExecutor(1) as spawner:
            precompiler = Precompiler(work.groups, devices, spawner, str(directory), fewest=1)
            assert precompiler.started, f"no compile server for {devices}, spare cores {spare_cores(devices)}"
            wait_for(lambda: not precompiler.running, 120)
            book = []
            for number, names in enumerate(work.names):
                slots = precompiler.slots(number)
                pages = CompileBook(slots.path)
                places = {name: slots.first + index for index, name in enumerate(names)}
                book.append({name: (pages.state(slot), pages.take(slot)) for name, slot in places.items()})
            precompiler.close()
            assert descendants([precompiler.token]) == []
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before
    return cache, files_of(cache), book


def files_of(cache):
    return {str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file()}


def run_candidates(cache, wanted, directory):
    """What a fresh process finds: the device's line, then one for each candidate."""
    file = directory / f"wanted-{cache.name}.json"
    file.write_text(json.dumps(wanted))
    done = subprocess.run(
        [sys.executable, "-m", "op_tests.gpu.candidates_process", str(file)],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@{")]
    assert len(lines) == 1 + len(wanted), done.stdout[-3000:]
    return lines[0], lines[1:]


@pytest.fixture(scope="module")
def lane(precompiled, work, directory):
    """A lane that comes after the compile processes, and the files that are new after it."""
    cache, before, _ = precompiled
    device, lines = run_candidates(cache, work.wanted, directory)
    return device, lines, files_of(cache) - before


@pytest.fixture(scope="module")
def alone(work, directory):
    """A lane with an empty cache."""
    return run_candidates(directory / "alone", work.wanted, directory)[1]


def test_dry_runs_reach_every_candidate_that_they_can(precompiled):
    book = precompiled[2]
    for states in book[:-1]:
        assert {name: state.name for name, (state, _) in states.items()} == dict.fromkeys(states, "compiled")
    states = {name: state for name, (state, _) in book[-1].items()}
    assert {name for name, state in states.items() if state is State.no_verdict} == LANE_COMPILES
    assert {name for name, state in states.items() if state is State.failed} == COMPILER_REFUSES


def test_the_lane_compiles_no_kernel(lane):
    _, lines, _ = lane
    missed = {
        f"{line['name']} {line['shape']}": [kernel for kernel in line["kernels"] if not kernel["hit"]]
        for line in lines
        if line["name"] not in LANE_COMPILES | COMPILER_REFUSES
    }
    assert sum(len(line["kernels"]) for line in lines) > 10
    assert {name: kernels for name, kernels in missed.items() if kernels} == {}


def test_the_lane_adds_no_binary_to_the_cache_but_those_it_has_to(lane):
    _, lines, new = lane
    own = {kernel["hash"] for line in lines if line["name"] in LANE_COMPILES for kernel in line["kernels"]}
    assert own, "autotuned kernels compile in the lane"
    binaries = {path for path in new if path.endswith((".cubin", ".hsaco"))}
    # A kernel's directory is the base-32 spelling of its hash; count them instead of spelling it.
    assert len(binaries) <= len(own), sorted(binaries)


def test_the_lane_needs_no_c_compiler(lane):
    """Neither the module for the driver nor, in Triton up to 3.6, a launcher for each signature.

    What only the lane compiles (autotuned kernels) may need launchers of its own.
    """
    built = sorted(path for path in lane[2] if path.endswith(".so"))
    assert [path for path in built if "utils" in path] == []
    assert len(built) <= len(LANE_COMPILES), built


def test_results_and_kernels_are_those_of_a_run_without_it(lane, alone):
    ahead = {(line["name"], str(line["shape"])): line for line in lane[1]}
    for line in alone:
        other = ahead[line["name"], str(line["shape"])]
        assert (line["status"], line["sum"]) == (other["status"], other["sum"]), (line, other)
        if line["name"] not in COMPILER_REFUSES | {"autotunes"}:
            hashes = [kernel["hash"] for kernel in line["kernels"]]
            assert hashes == [kernel["hash"] for kernel in other["kernels"]], (line, other)


def test_what_the_compiler_refused_the_lane_refuses_as_well(precompiled, alone):
    verdicts = {name: verdict.status for name, (_, verdict) in precompiled[2][-1].items() if verdict is not None}
    found = {line["name"]: line["status"] for line in alone if line["name"] in COMPILER_REFUSES}
    assert verdicts == found, [line for line in alone if line["name"] in COMPILER_REFUSES]


def test_names_and_limits_are_those_of_the_driver(lane, devices):
    device = lane[0]
    assert device["named"] == device["target"]
    assert device["gfx"] == devices[0].gfx
    limit = limits_of(device["gfx"], devices[0].settings).shared_bytes
    assert limit in (None, device["max_shared"]), f"{device}: the table says {limit}"


class Statuses(Watcher):
    def __init__(self, names):
        self.names = names
        self.found = {}

    def measured(self, group, index, measurement, *, logged):
        self.found[group, self.names[group][index]] = (measurement.status.value, measurement.detail[:200])


@pytest.mark.skipif("precompile" not in inspect.signature(Pool.run).parameters, reason="Pool.run has no precompile yet")
def test_a_run_with_it_gives_every_candidate_the_status_of_a_run_without(devices, work, directory, monkeypatch):
    made = []

    class Kept(Precompiler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(pool_module, "Precompiler", Kept)
    results = []
    for precompile in (True, False):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(directory / f"pool-{precompile}"))
        watcher = Statuses(work.names)
        with Pool(devices, standbys=False) as pool:
            pool.run(
                work.groups,
                MeasurePlan(warmup=1, iters=3),
                on_fault="continue",
                watcher=watcher,
                precompile=precompile,
            )
        results.append(watcher.found)
    assert len(made) == 1 and descendants([made[0].token]) == []
    with_it, without = ({place: status for place, (status, _) in found.items()} for found in results)
    assert with_it == without, [(place, results[0][place], results[1][place]) for place in without]
    assert {status for (group, _), status in with_it.items() if group < len(GEMM_SHAPES)} == {"ok"}, results[0]
