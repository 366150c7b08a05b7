"""When a measurement on record may be used again."""

import json
import sys

import pytest

from aiter_tuning.devices.device import Device
from aiter_tuning.families import find_family
from aiter_tuning.tuner.family import Candidate
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.fingerprint import _Walk, candidate_fingerprints, run_fields, source_digest

SOURCE = '''
import functools
from aiter_tuning.keys import Key
from aiter_tuning.tuner import Candidate, Family, Work

BLOCK = 64
UNUSED = 1

class Jit:
    """Holds a function as Triton's JITFunction does."""
    def __init__(self, fn):
        self.fn = fn
    def __call__(self, *args):
        return self.fn(*args)

@Jit
def kernel(x):
    return device_function(x)

@Jit
def device_function(x):
    return x * BLOCK

def logged(fn):
    @functools.wraps(fn)
    def inner(*args):
        return fn(*args)
    return inner

@logged
def launch(x):
    return [kernel(item) for item in x]

def make(n):
    return list(range(n))

def unrelated():
    return 1

class Op(Family):
    name = "op"
    devices = ("cpu",)
    key = Key(N=int)
    scale = 3

    def inputs(self, shape, device, seed):
        return {"x": make(shape["N"])}

    def reference(self, inputs):
        return [self.right(v) for v in inputs["x"]]

    def right(self, v):
        return v * 64

    def default(self, shape, device):
        return Candidate("a")

    def candidates(self, shape, device):
        return [Candidate("a"), Candidate("b", {"w": 2})]

    def run(self, inputs, config):
        """Runs it."""
        return launch(self.scaled(inputs["x"]))

    def scaled(self, x):
        return [v * self.scale for v in x]

    def work(self, shape):
        return Work(1, 1)
'''


@pytest.fixture
def digests(tmp_path):
    """The digests of (run, inputs) for a version of the source, each loaded from a file of its own."""
    count = 0

    def compute(*changes):
        nonlocal count
        count += 1
        source = SOURCE
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        path = tmp_path / f"op{count}" / "op.py"
        path.parent.mkdir()
        path.write_text(source)
        family = load_family(f"{path}:Op")
        module = type(family).__module__
        return (
            source_digest(family, ("run", "prepare")),
            source_digest(family, ("inputs", "reference")),
            module,
        )[:2]

    return compute


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("return [kernel(item)", "return [1 + kernel(item)"), id="a function that run calls"),
        pytest.param(("return device_function(x)", "return 1 + device_function(x)"), id="a kernel"),
        pytest.param(("return x * BLOCK", "return BLOCK * x"), id="what a kernel calls"),
        pytest.param(("BLOCK = 64", "BLOCK = 128"), id="a constant that a kernel uses"),
        pytest.param(("v * self.scale", "self.scale * v"), id="a method of the family"),
        pytest.param(("scale = 3", "scale = 4"), id="an attribute of the family"),
        pytest.param(("return launch(self", "return 2 * launch(self"), id="run itself"),
    ],
)
def test_what_run_reaches_changes_the_candidates_and_not_the_run(digests, change):
    before, after = digests(), digests(change)

    assert after[0] != before[0]
    assert after[1] == before[1]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("list(range(n))", "list(range(1, n))"), id="how inputs are made"),
        pytest.param(("v * 64", "64 * v"), id="what the reference calls"),
    ],
)
def test_what_inputs_and_reference_reach_changes_the_run_and_not_the_candidates(digests, change):
    before, after = digests(), digests(change)

    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(("def unrelated():\n    return 1", "def unrelated():\n    return 2"), id="an unrelated function"),
        pytest.param(("UNUSED = 1", "UNUSED = 2"), id="an unused constant"),
        pytest.param(("return x * BLOCK", "return x * BLOCK  # fast"), id="a comment"),
        pytest.param(("return x * BLOCK", "return (\n        x * BLOCK\n    )"), id="formatting"),
        pytest.param(('"""Runs it."""', '"""Runs it well."""'), id="a docstring"),
        pytest.param(('Candidate("b", {"w": 2})', 'Candidate("c", {"w": 2})'), id="the list of candidates"),
    ],
)
def test_what_they_do_not_reach_changes_nothing(digests, change):
    assert digests(change) == digests()


KERNELS = "from tiles import TILE\n\n\ndef launch(x):\n    return [v * TILE for v in x]\n"


@pytest.fixture
def digests_with_kernels(tmp_path):
    """The digest of run for a family that imports its kernels when it runs, never before."""
    count = 0

    def compute(kernels=KERNELS, tiles="TILE = 64\n"):
        nonlocal count
        count += 1
        directory = tmp_path / f"op{count}"
        directory.mkdir()
        lazily = "return launch(self.scaled", "import kernels\n        return kernels.launch(self.scaled"
        (directory / "op.py").write_text(SOURCE.replace(*lazily))
        (directory / "kernels.py").write_text(kernels)
        (directory / "tiles.py").write_text(tiles)
        family = load_family(f"{directory / 'op.py'}:Op")
        assert not {"kernels", "tiles"} & sys.modules.keys(), "reading is not importing"
        return source_digest(family, ("run",))

    return compute


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        pytest.param({"kernels": KERNELS.replace("v * TILE", "TILE * v")}, True, id="a kernel"),
        pytest.param({"tiles": "TILE = 32\n"}, True, id="what the kernels' module imports"),
        pytest.param({"kernels": f'"""Fast."""\n{KERNELS}  # really\n'}, False, id="a docstring and a comment"),
    ],
)
def test_a_module_beside_the_family_that_run_imports_is_part_of_its_candidates(digests_with_kernels, change, counts):
    assert (digests_with_kernels(**change) != digests_with_kernels()) is counts


@pytest.mark.parametrize("name", ["gemm_bf16", "gemm_cpu"])
def test_the_packages_own_kernels_are_part_of_their_familys_candidates(name):
    family = type(find_family(name))
    walk = _Walk(family)
    walk.visit("run", family.run)
    assert f"module aiter_tuning.ops.kernels.{name}" in walk.found


def test_a_config_changes_only_its_own_candidate(tmp_path):
    path = tmp_path / "op.py"
    path.write_text(SOURCE)
    family = load_family(f"{path}:Op")

    before = candidate_fingerprints(family, [Candidate("a", {"w": 1}), Candidate("b", {"w": 2, "v": 1})])
    after = candidate_fingerprints(family, [Candidate("a", {"w": 3}), Candidate("b", {"v": 1, "w": 2})])

    assert before["a"] != after["a"]
    assert before["b"] == after["b"], "the order of a config's entries means nothing"


def test_a_runs_fields_name_what_times_depend_on_and_no_number_of_lanes(tiny):
    device = Device("k:K", "cpu0", "cpu:0", gfx="x86-64-v4", cu_num=1, gpu_model="EPYC")
    settings = {"warmup": 5, "iters": 101, "err_ratio": 0.05, "seed": 1, "timer": "wall"}
    fields = run_fields(tiny(), device, **settings)

    assert {"gfx", "cu_num", "gpu_model", "torch", "triton", "timer", "warmup", "iters", "key"} <= fields.keys()
    assert json.loads(json.dumps(fields)) == fields
    assert run_fields(tiny(), device, **(settings | {"iters": 100})) != fields
    other_lane = Device("k:K", "cpu1", "cpu:1", gfx="x86-64-v4", cu_num=1, gpu_model="EPYC")
    assert run_fields(tiny(), other_lane, **settings) == fields


MANY_NODES = """
from dataclasses import dataclass
from aiter_tuning.keys import Key
from aiter_tuning.tuner import Candidate, Family, Work

@dataclass(frozen=True)
class Tile:
    rows: int = 8
    name: str | None = None

    def area(self, *, deep: bool = False) -> int:
        return self.rows if not deep else -self.rows

class Op(Family):
    name = "many_nodes"
    devices = ("cpu",)
    key = Key(N=int)

    def inputs(self, shape, device, seed):
        return {"x": [None, ..., 1.5, b"x", "ü"]}

    def reference(self, inputs):
        return inputs["x"]

    def default(self, shape, device):
        return Candidate("a", {})

    def candidates(self, shape, device):
        return []

    def work(self, shape):
        return Work(1, 1)

    def run(self, inputs, config):
        async def waits():
            await other()
        tile = Tile(name=f"{config['a']!r:>{8}} of {len(inputs)=}")
        if (n := tile.area(deep=True)) and not inputs[1:n, ::2]:
            global GONE
        match config:
            case {"a": [1, *_]} | {"b": None}:
                return lambda *a, k=1, **kw: {x: y for x, y in (*a, k) if x}
        try:
            with open(n) as file, file:
                yield from file
        except* (OSError, ValueError):
            raise KeyError from None
"""


def test_a_fingerprint_is_the_same_under_every_python(tmp_path):
    """Python 3.11, 3.12 and 3.13 dump trees differently; a row from another Python is no row of other code."""
    file = tmp_path / "many.py"
    file.write_text(MANY_NODES)
    family = load_family(f"{file}:Op")
    assert source_digest(family, ("inputs", "run")) == "e453cedd7dad"
