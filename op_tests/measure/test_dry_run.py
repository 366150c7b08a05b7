"""Dry runs: what they find out without a device, and that a real run then finds its kernels in the cache."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import triton
from triton.runtime.driver import driver
from triton.runtime.errors import PTXASError
from triton.runtime.jit import JITFunction

from aiter_tuning.measure.compile_target import Limits, target_of
from aiter_tuning.measure.dry_run import CompiledElsewhereError, DryRun, DryRunner, Outcome, RefusedError, StandInDriver
from aiter_tuning.measure.meta_inputs import make_meta_inputs
from aiter_tuning.measure.throw_away_kernel import throw_away_task
from aiter_tuning.status import Status
from aiter_tuning.task import MpTunerTask
from op_tests.families_for_tests.triton_scale import double
from op_tests.measure.dry_run_process import candidate_task, make_inputs

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"),
]

ROOT = Path(__file__).resolve().parents[2]
SM90 = target_of("sm90")
WORKING = ("block64", "block128", "view", "strided", "falls_back")
FAILING = ("asserts", "malformed", "assembly", "huge", "autotunes", "looks")
CUDA_KERNELS = 5
"""Distinct ones of the above: two blocks, the view, the strided one and the product that does not fit."""


def dry_run_process(cache, gfx, where, *names, **environment):
    """What a fresh process says of candidates, by name."""
    done = subprocess.run(
        [sys.executable, "-m", "op_tests.measure.dry_run_process", gfx, where, *names],
        cwd=ROOT,
        env={**os.environ, "TRITON_CACHE_DIR": str(cache), "CUDA_VISIBLE_DEVICES": "-1", **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    return {line["name"]: line for line in lines}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cold(cache):
    """The first process that meets these kernels."""
    return dry_run_process(cache, "sm90", "meta", *WORKING, *FAILING)


@pytest.fixture(scope="module")
def warm(cold, cache):
    """A second one, with another hash seed, whose inputs have memory as in a lane."""
    return dry_run_process(cache, "sm90", "memory", *WORKING, "huge", PYTHONHASHSEED="7")


def test_candidates_compile_without_a_device(cold):
    assert {name: cold[name]["outcome"] for name in WORKING} == dict.fromkeys(WORKING, "compiled")
    assert sum(line["compilations"] for line in cold.values()) == CUDA_KERNELS
    assert {line["devices"] for line in cold.values()} == {0}


def test_a_real_run_finds_every_kernel_in_the_cache(cold, warm):
    """Its pointers have addresses, its sizes are the same: the keys have to come out alike."""
    assert {name: line["hashes"] for name, line in warm.items()} == {name: cold[name]["hashes"] for name in warm}
    assert {name: line["compilations"] for name, line in warm.items()} == dict.fromkeys(warm, 0)


def test_alignment_and_strides_make_kernels_of_their_own(cold):
    kernels = [cold[name]["hashes"][-1] for name in ("block64", "view", "strided")]
    assert len(set(kernels)) == 3


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        ("asserts", "unsupported", "CompileTimeAssertionFailure"),
        ("assembly", "unsupported", "PTXASError"),
        ("huge", "unsupported", "out of resource: shared memory"),
        ("malformed", "crash", "compile: CompilationError"),
        ("autotunes", "unknown", "get_benchmarker: a dry run has no device"),
        ("looks", "unknown", "meta tensors"),
    ],
)
def test_each_way_to_fail_has_its_verdict(cold, name, outcome, words):
    assert (cold[name]["outcome"], words in cold[name]["detail"]) == (outcome, True), cold[name]


def test_what_does_not_fit_is_told_by_the_metadata_of_the_compiled_kernel(cold):
    (shared,) = cold["huge"]["shared"]
    assert shared > 227 * 1024 and f"Required: {shared}, Hardware limit: {227 * 1024}" in cold["huge"]["detail"]


def test_a_fallback_is_taken_where_a_launch_would_take_it(cold):
    assert cold["falls_back"]["hashes"] == [*cold["huge"]["hashes"], *cold["block64"]["hashes"]]


def test_kernels_for_amd_compile_here_as_well(tmp_path):
    lines = dry_run_process(tmp_path, "gfx942:sramecc+:xnack-", "meta", "block64")
    assert lines["block64"]["outcome"] == "compiled" and lines["block64"]["compilations"] == 1
    assert list(tmp_path.glob("*/*.hsaco"))


# In this process


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for kernel in (double,):
        kernel.device_caches.clear()  # what an earlier test compiled in this process
    return tmp_path / "cache"


def test_afterwards_everything_is_as_it_was(own_cache):
    before = (driver._active, JITFunction.run, triton.compiler.compile, triton.knobs.compilation.listener)
    with DryRunner(SM90, Limits()) as runner:
        assert runner.run(throw_away_task()).outcome is Outcome.compiled
    assert (driver._active, JITFunction.run, triton.compiler.compile, triton.knobs.compilation.listener) == before


def test_a_config_that_fits_elsewhere_is_no_failure_of_the_compiler(own_cache):
    with DryRunner(SM90, Limits(threads=64)) as runner:
        small = runner.run(candidate_task("block64", "meta"))
    with DryRunner(SM90, Limits(threads=128)) as runner:
        large = runner.run(candidate_task("block64", "meta"))
    assert (small.outcome, large.outcome) == ("unsupported", "compiled")
    assert "threads, Required: 128, Hardware limit: 64" in small.detail
    assert small.kernels[0].hash == large.kernels[0].hash


def test_a_kernel_that_somebody_else_is_compiling_is_left_to_them(own_cache):
    asked = []

    def claim(key):
        asked.append(key)
        return nullcontext(False)

    with DryRunner(SM90, Limits(), claim) as runner:
        run = runner.run(candidate_task("block64", "meta"))
    assert run.outcome is Outcome.elsewhere and len(asked) == 1 and run.measurement() is None
    assert not list(own_cache.glob("*/*.cubin"))


def test_the_same_work_has_the_same_key_in_every_try(own_cache):
    asked = []

    def claim(key):
        asked.append(key)
        return nullcontext(False)

    with DryRunner(SM90, Limits(), claim) as runner:
        for name in ("block64", "block64", "block128", "view"):
            runner.run(candidate_task(name, "meta"))
    assert asked[0] == asked[1] and len(set(asked)) == 3


def test_trouble_of_the_host_is_no_verdict(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    double.device_caches.clear()
    with DryRunner(SM90, Limits()) as runner:
        run = runner.run(candidate_task("block64", "meta"))
    assert run.outcome is Outcome.unknown and "NotADirectoryError" in run.detail


@pytest.mark.parametrize(("code", "outcome"), [(-9, Outcome.unknown), (1, Outcome.unsupported)])
def test_an_assembler_that_was_killed_said_nothing(own_cache, monkeypatch, code, outcome):
    def compile_and_fail(*_, **__):
        raise PTXASError(f"`ptxas` failed with error code {code}")

    monkeypatch.setattr(triton.compiler, "compile", compile_and_fail)
    with DryRunner(SM90, Limits()) as runner:
        run = runner.run(candidate_task("block64", "meta"))
    double.device_caches.clear()
    assert run.outcome is outcome


def test_an_error_that_the_candidate_handles_itself_is_none(own_cache):
    def tries(x):
        with pytest.raises(CompiledElsewhereError):
            double[(1,)](x, x, 64, 1, BLOCK=64)

    task = MpTunerTask("tries", make_inputs, (), lambda inputs: tries(inputs["x"]), ("*",), {}, None, (), {}, None)
    with DryRunner(SM90, Limits(), lambda key: nullcontext(False)) as runner:
        assert runner.run(task).outcome is Outcome.compiled


def test_prepare_is_called_as_in_a_lane(own_cache):
    class Prepared:
        def prepare(self, inputs):
            return ({"y": inputs["x"].reshape(2, -1)},)

        def __call__(self, inputs):
            assert inputs["y"].shape == (2, 2048) and inputs["y"].device.type == "meta"

    task = MpTunerTask("prepared", make_inputs, (), Prepared(), ("*",), {}, None, (), {}, None)
    with DryRunner(SM90, Limits()) as runner:
        run = runner.run(task)
    assert (run.outcome, run.detail, run.kernels) == ("compiled", "", ())


def test_the_interpreter_is_refused(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(RefusedError, match="nothing to compile"), DryRunner(SM90, Limits()):
        pass


def test_the_stand_in_names_its_target_and_says_what_it_has_not():
    stand_in = StandInDriver(target_of("gfx942"))
    target = stand_in.get_current_target()
    assert (target.backend, target.arch, target.warp_size) == ("hip", "gfx942", 64)
    assert not hasattr(stand_in, "utils")
    with pytest.raises(RefusedError, match=r"driver\.utils: a dry run has no device"):
        _ = stand_in.utils


@pytest.mark.parametrize(
    ("outcome", "status", "us"),
    [
        (Outcome.unsupported, Status.unsupported, -1.0),
        (Outcome.crash, Status.crash, -1.0),
        (Outcome.compiled, None, None),
        (Outcome.unknown, None, None),
        (Outcome.elsewhere, None, None),
    ],
)
def test_only_the_compilers_word_is_a_verdict(outcome, status, us):
    measurement = DryRun(outcome, "why").measurement()
    if status is None:
        assert measurement is None
    else:
        assert (measurement.status, measurement.us, measurement.detail) == (status, us, "why")


def test_arithmetic_on_meta_tensors_does_not_import_what_torch_traces_with():
    code = """
import sys, torch
from aiter_tuning.measure.meta_inputs import leave_tracing_out
leave_tracing_out()
x = torch.randn(64, 32, device="meta", dtype=torch.bfloat16)
y = (torch.rand(32, 16, device="meta").to(torch.bfloat16) * 0.5 + 1).t().contiguous()
z = torch.cat([x @ y.t(), torch.zeros(1, 16, device="meta", dtype=torch.bfloat16)])[1:].view(8, 128)
print(tuple(z.shape), "sympy.core" in sys.modules, "torch._dynamo.config" in sys.modules)
from torch.fx.experimental.symbolic_shapes import ShapeEnv  # what is really needed is really there
import sympy
print(ShapeEnv.__name__, sympy.Integer(2) + 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["(8, 128) False False", "ShapeEnv 3"]


def test_inputs_on_meta_are_made_with_a_generator_as_on_any_device():
    def seeded(*, device):
        generator = torch.Generator(device=device).manual_seed(3)
        x = torch.randn(4, 8, generator=generator, device=device, dtype=torch.bfloat16)
        return {"x": x, "w": torch.randint(0, 9, (8, 2), generator=generator, device=device)[1:]}

    before = torch.Generator
    task = MpTunerTask("seeded", seeded, (), len, ("*",), {}, None, (), {}, None)
    values = make_meta_inputs(task).values
    assert torch.Generator is before
    assert (values["x"].device.type, values["x"].shape, values["x"].dtype) == ("meta", (4, 8), torch.bfloat16)
    assert values["w"].data_ptr() == 2 * values["w"].element_size()  # where a view begins, as with real memory
