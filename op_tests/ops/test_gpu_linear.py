"""gemm_bf16 runs what its table says and leaves the rest to torch. Kernels run in Triton's interpreter, on the CPU.

The interpreter has to be chosen before Triton's decorators run, so they run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import linear

from aiter_tuning import ops
from aiter_tuning.devices.device import Device
from aiter_tuning.families.gemm_bf16 import GemmBf16
from aiter_tuning.serving import watch

ROOT = Path(__file__).resolve().parents[2]
TILE = {"block_m": 16, "block_n": 32, "block_k": 32, "num_warps": 4, "num_stages": 2, "group_m": 8}
NAME = "tiled_16x32x32_w4_s2"
SHAPE = {"M": 5, "N": 40, "K": 64, "dtype": "bf16", "bias": True}

INTERPRETED = """
import itertools, sys, torch
from torch.nn.functional import linear
from aiter_tuning import ops
from aiter_tuning.devices.device import Device
from aiter_tuning.families.gemm_bf16 import GemmBf16
from aiter_tuning.ops.kernels import gemm_bf16 as kernels
from aiter_tuning.serving import bind, refusals, serve_from
from aiter_tuning.tables.tuned import TunedCsv, TunedRow

family, here, ran, launch = GemmBf16(), bind("gemm_bf16", device="cpu").device, [], kernels.launch

def noted(a, weight, bias, config):
    ran.append(config["kernel"])
    return launch(a, weight, bias, config)

kernels.launch = noted
lane = Device("", "", "", here.gfx, here.cu_num, here.gpu_model)

def served(shape, candidate, *tensors):
    table = TunedCsv(f"{sys.argv[1]}/{next(tables)}.csv", family.key)  # a new one is read at once
    table.update([TunedRow(*here, shape, 0, 0, 5.0, candidate.name, config=candidate.config)])
    ran.clear()
    with serve_from("gemm_bf16", table.path):
        got = ops.gemm_bf16(*tensors)
        if layer is not None:
            torch.testing.assert_close(layer(*tensors), got)
    torch.testing.assert_close(got, linear(*tensors), rtol=2e-2, atol=2e-1)
    return list(ran)

torch.manual_seed(0)
layer, tables = None, itertools.count()
for dtype, torch_dtype, bias in (("bf16", torch.bfloat16, True), ("fp16", torch.float16, False)):
    shape = {"M": 5, "N": 40, "K": 128, "dtype": dtype, "bias": bias}
    a, weight = torch.randn(5, 128).to(torch_dtype), torch.randn(40, 128).to(torch_dtype)
    b = torch.randn(40).to(torch_dtype) if bias else None
    for candidate in family.candidates(shape, lane):
        kind = candidate.config["kernel"]
        assert served(shape, candidate, a, weight, b) == [kind] * (kind != "linear"), kind
    by_name = {c.config["kernel"]: c for c in family.candidates(shape, lane)}
    assert served(shape, by_name["tiled"], a.view(5, 1, 128), weight, b) == ["tiled"]
    # A descriptor's rows start at multiples of 16 bytes, pointers need not.
    odd = torch.randn(5, 129).to(torch_dtype)[:, 1:]
    assert served(shape, by_name["tma"], odd, weight, b) == []
    assert served(shape, by_name["tiled"], odd, weight, b) == ["tiled"]
    assert served(shape, by_name["tiled"], a.t().contiguous().t(), weight, b) == []
layer = torch.compile(lambda *tensors: ops.gemm_bf16(*tensors) * 1, fullgraph=True, backend="eager")
assert served(shape, by_name["split_k"], a, weight, b) == ["split_k"] * 2
torch.library.opcheck(torch.ops.aiter_tuning.gemm_bf16.default, (a, weight, b))
assert not refusals._refused
print("all served")
"""


def test_every_kind_of_kernel_is_served_and_right(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("this Triton's interpreter does not work with this numpy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["all served"]


def tensors(m=5, n=40, k=64, dtype=torch.bfloat16, bias=True):
    generator = torch.Generator().manual_seed(0)
    a, weight, b = (torch.randn(*size, generator=generator).to(dtype) for size in ((m, k), (n, k), (n,)))
    return a, weight, b if bias else None


def test_a_kernel_that_cannot_be_launched_falls_back_to_torch_once_and_for_all(serve, caplog, monkeypatch):
    launches = []

    def launch(a, weight, bias, config):
        launches.append(config)
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr("aiter_tuning.ops.gpu_linear._launch", lambda: launch)
    config = {"kernel": "tiled", **TILE, "num_stages": 3}
    serve("gemm_bf16", (SHAPE, NAME.replace("s2", "s3"), config))
    for _ in range(3):
        assert torch.equal(ops.gemm_bf16(*tensors()), linear(*tensors()))
    assert launches == [config]
    assert sum("does not run here: RuntimeError: out of resource" in r.getMessage() for r in caplog.records) == 1


def test_what_is_no_business_of_it_is_not_even_looked_up(serve):
    a, weight, bias = tensors()
    serve("gemm_bf16", (SHAPE, NAME, {"kernel": "tiled", **TILE}))
    with watch("gemm_bf16") as seen:
        for args in ((a.float(), weight.float(), bias.float()), (a[:0], weight, bias), (a[:, :0], weight[:, :0], bias)):
            torch.testing.assert_close(ops.gemm_bf16(*args), linear(*args))
        with pytest.raises(RuntimeError):
            ops.gemm_bf16(a, weight.float(), bias)
        with pytest.raises(RuntimeError):
            ops.gemm_bf16(a[:, :16], weight, bias)
    assert seen == []


def test_gradients_flow_through_torch():
    a, weight, bias = tensors()
    a.requires_grad_()
    ops.gemm_bf16(a, weight, bias).float().sum().backward()
    assert a.grad.shape == a.shape


def test_torchs_own_checks_of_an_operator_pass_without_a_row():
    torch.library.opcheck(torch.ops.aiter_tuning.gemm_bf16.default, tensors())
    torch.library.opcheck(torch.ops.aiter_tuning.gemm_bf16.default, tensors(bias=False))


def test_importing_the_operators_loads_no_triton():
    code = "import sys; from aiter_tuning.ops import gemm_bf16; print('triton' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["False", "True"]


# Which rows the family takes for its own


@pytest.mark.parametrize("gfx", ["sm90", "sm80", "gfx942", "x86-64-v4"])
def test_a_row_of_every_candidate_resolves_to_its_own_config(gfx):
    device = Device("", "", "", gfx, 132, "")
    for candidate in GemmBf16().candidates({"M": 64, "N": 4096, "K": 4096, "dtype": "bf16", "bias": False}, device):
        shape = {"M": 3, "N": 7, "K": 8, "dtype": "bf16", "bias": False}  # where this tile is not even tried
        assert GemmBf16().resolve(candidate.name, candidate.config, shape, device) == candidate.config


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("nope", {"kernel": "tiled", **TILE}),
        (NAME, {"kernel": "tiled", **TILE, "num_stages": 3}),
        (NAME, {"kernel": "cuneiform", **TILE}),
        (NAME, {"kernel": "tiled", "block_m": 16}),
        (NAME, {"kernel": "tiled", **TILE, "block_m": "16"}),
        ("persistent_16x32x32_w4_s2", {"kernel": "persistent", **TILE}),
        ("linear", {"kernel": "tiled", **TILE}),
        ("nope", {}),
        ("nope", {"kernel": "linear"}),
    ],
)
def test_a_row_whose_name_and_config_disagree_resolves_to_nothing(name, config):
    device = Device("", "", "", "sm90", 132, "")
    assert GemmBf16().resolve(name, config, SHAPE, device) is None
