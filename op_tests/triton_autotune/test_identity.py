"""What a kernel and a launch are called, and when a kernel counts as changed."""

import importlib
import itertools
import textwrap
from types import SimpleNamespace

import pytest
import torch

from aiter_tuning.triton_autotune.identity import (
    cache_key,
    candidates_hash,
    fingerprint,
    kernel_name,
    qualified_name,
    tag_of,
    tuning_key,
)

COUNT = itertools.count()
HEAD = "import triton\nimport triton.language as tl\n\n"
KERNEL = """
@triton.jit
def helper(a):
    return a + {added}

SCALE = {scale}

@triton.autotune([triton.Config({{"BLOCK": {block}}}), triton.Config({{"BLOCK": 64}})], key=["n"])
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(x + o, helper(o) * SCALE, o < n)
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Imports a kernel from source text, each time as another version of one module."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(before="", **values):
        name = f"written_kernel_{next(COUNT)}"
        text = HEAD + before + textwrap.dedent(KERNEL).format(**{"added": 1, "scale": 2, "block": 32, **values})
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name).kernel

    return write


def test_a_kernel_is_named_by_its_module_and_function_through_all_wrappers(kernels):
    import triton

    tuner = kernels.autotuned(triton.heuristics({"EVEN": lambda args: True})(kernels.add_kernel))
    assert kernel_name(tuner) == "add_kernel"
    assert qualified_name(tuner) == f"{kernels.MODULE}.add_kernel"
    assert qualified_name(SimpleNamespace()) == "."


def test_the_tuning_key_is_key_arguments_then_dtypes_in_call_order(kernels):
    tuner = kernels.autotuned(key=("n", "BLOCK"))
    x, y = torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16)
    assert tuning_key(tuner, (x, y, x, 4), {}) == "n=4|torch.float32|torch.bfloat16|torch.float32"
    assert tuning_key(tuner, (x, None, x), {"n": 5}) == "n=5|torch.float32|torch.float32"
    assert tuning_key(tuner, (x, y, x, 4), {}) != tuning_key(tuner, (x, y, x, 8), {})
    assert tuning_key(SimpleNamespace(arg_names=[], keys=[]), (), {}) == ""


def test_the_cache_key_is_the_one_that_triton_computes(kernels):
    tuner = kernels.autotuned()
    kernels.launch(tuner, 100)
    x = torch.ones(100)
    assert list(tuner.cache) == [cache_key(tuner, (x, x, x, 100), {"grid": (1,), "warmup": False})]


def test_a_kernel_changes_with_its_code_its_callees_and_its_constants(written):
    first = fingerprint(written())
    assert fingerprint(written()) == first
    assert fingerprint(written(before="# moved down\n" * 9)) == first
    assert fingerprint(written(added=2)).source != first.source
    assert fingerprint(written(scale=3)).source != first.source


def test_its_candidates_are_not_part_of_its_source(written):
    first, other = fingerprint(written()), fingerprint(written(block=16))
    assert other.source == first.source
    assert other.candidates != first.candidates
    assert tag_of(other) != tag_of(first)


def test_the_order_of_candidates_does_not_count(kernels):
    configs = kernels.three_configs()
    assert candidates_hash(configs) == candidates_hash(reversed(configs))
    assert candidates_hash(configs) != candidates_hash(configs[:2])


def test_a_compiled_and_an_interpreted_kernel_of_the_same_text_are_the_same_kernel(kernels):
    plain = fingerprint(kernels.autotuned(kernels.add_kernel)).source
    compiled = fingerprint(kernels.autotuned(kernels.compiled_add_kernel)).source
    assert plain
    assert compiled
    assert plain != compiled  # their names differ, and the name is part of the text


def test_a_kernel_without_source_has_no_hash_and_no_error():
    namespace = {}
    exec("def kernel(): pass", namespace)
    assert fingerprint(SimpleNamespace(base_fn=namespace["kernel"], configs=[])).source == ""
