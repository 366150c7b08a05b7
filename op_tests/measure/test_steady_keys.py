"""The same kernel has the same name in Triton's cache, whatever was launched before it."""

import subprocess
import sys

import pytest

KERNELS = """
import triton
import triton.language as tl

SCALE = tl.constexpr(3)

@triton.jit
def scaled(x):
    return x * SCALE

@triton.jit
def first(x):
    tl.store(x, scaled(tl.load(x)))

@triton.jit
def second(x):
    tl.store(x + 1, scaled(tl.load(x)))
"""


def keys_when(tmp_path, order, prelude):
    (tmp_path / "kernels_with_a_constant.py").write_text(KERNELS)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
{prelude}
import kernels_with_a_constant as k
keys = {{name: getattr(k, name).cache_key for name in {order!r}}}
print(keys["first"], keys["second"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("times", [1, 2])
def test_a_kernels_key_does_not_depend_on_what_was_hashed_before(tmp_path, times):
    prelude = "from aiter_tuning.measure.steady_keys import hash_callees_first\n" + "hash_callees_first()\n" * times
    one_way = keys_when(tmp_path, ["first", "second"], prelude)
    the_other = keys_when(tmp_path, ["second", "first"], prelude)
    assert one_way == the_other
    assert one_way[0] != one_way[1]
