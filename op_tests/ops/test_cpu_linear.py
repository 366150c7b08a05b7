"""gemm_cpu runs what its table says, computes right whatever that is, and never from a stale copy of a weight."""

import gc
import threading

import pytest
import torch
from torch.nn.functional import linear

from aiter_tuning import ops
from aiter_tuning.devices.device import Device
from aiter_tuning.families.gemm_cpu import GemmCpu
from aiter_tuning.ops import cpu_linear
from aiter_tuning.ops.kernels import gemm_cpu as ways
from aiter_tuning.serving import watch

SHAPE = {"M": 4, "N": 64, "K": 32, "dtype": "fp32", "bias": True}
CANDIDATES = {
    candidate.name: candidate
    for m in (1, 4)
    for dtype in ("fp32", "bf16")
    for candidate in GemmCpu().candidates({**SHAPE, "M": m, "dtype": dtype}, Device("", "", "", "", 2, ""))
}


def tensors(m=4, n=64, k=32, dtype=torch.float32, bias=True):
    generator = torch.Generator().manual_seed(0)
    a, weight, b = (torch.randn(*size, generator=generator).to(dtype) for size in ((m, k), (n, k), (n,)))
    return a, weight, b if bias else None


@pytest.fixture
def ran(monkeypatch):
    """Kernels that ran, in order."""
    names = []

    def run(inputs, config):
        names.append(config["kernel"])
        return original(inputs, config)

    original = ways.run
    monkeypatch.setattr(ways, "run", run)
    return names


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("m", [1, 4])
def test_every_tuned_way_gives_what_torch_gives(serve, ran, m, dtype, bias):
    threads = torch.get_num_threads()
    shape = {**SHAPE, "M": m, "dtype": dtype, "bias": bias}
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    a, weight, b = tensors(m, dtype=torch_dtype, bias=bias)
    for candidate in GemmCpu().candidates(shape, Device("", "", "", "", 2, "")):
        serve("gemm_cpu", (shape, candidate.name, candidate.config))
        ran.clear()
        try:
            ways.prepare({"weight": weight}, candidate.config)
        except NotImplementedError:
            continue  # this processor lacks it
        for _ in range(2):
            got = ops.gemm_cpu(a, weight, b, constant_weight=True)
        assert got.dtype == torch_dtype
        torch.testing.assert_close(got, linear(a, weight, b), rtol=1e-2, atol=1e-1)
        assert ran == [candidate.config["kernel"]] * 2
    assert torch.get_num_threads() == threads


def test_without_a_row_torch_computes_it(serve, ran):
    serve("gemm_cpu", (SHAPE, "split_n2", {"kernel": "split_n", "parts": 2}))
    a, weight, bias = tensors(m=5)
    assert torch.equal(ops.gemm_cpu(a, weight, bias), linear(a, weight, bias))
    assert ran == []


def test_leading_dimensions_count_as_rows(serve, ran):
    serve("gemm_cpu", (SHAPE, "split_n2", {"kernel": "split_n", "parts": 2}))
    a, weight, bias = tensors()
    got = ops.gemm_cpu(a.view(2, 2, 32), weight, bias)
    torch.testing.assert_close(got, linear(a, weight, bias).view(2, 2, 64))
    assert ran == ["split_n"]
    assert ops.gemm_cpu(a[0], weight, bias).shape == (64,)


@pytest.mark.parametrize("name", sorted(name for name, c in CANDIDATES.items() if ways.WAYS[c.config["kernel"]].copies))
def test_a_copy_is_made_only_of_a_weight_that_is_said_to_be_constant(serve, ran, name):
    config = CANDIDATES[name].config
    shape = {**SHAPE, "M": config.get("batch", 4), "dtype": "bf16" if name == "fp32_weight" else "fp32"}
    dtype = torch.bfloat16 if name == "fp32_weight" else torch.float32
    a, weight, bias = tensors(shape["M"], dtype=dtype)
    serve("gemm_cpu", (shape, name, config))
    ops.gemm_cpu(a, weight, bias)
    assert ran == []
    weight.data.mul_(2)
    assert torch.equal(ops.gemm_cpu(a, weight, bias), linear(a, weight, bias))


def test_a_write_that_torch_counts_makes_the_copy_anew_all_the_same(serve, ran):
    serve("gemm_cpu", (SHAPE, "weight_transposed", {"kernel": "weight_transposed"}))
    a, weight, bias = tensors()
    ops.gemm_cpu(a, weight, bias, constant_weight=True)
    weight.mul_(2)
    torch.testing.assert_close(ops.gemm_cpu(a, weight, bias, constant_weight=True), linear(a, weight, bias))
    assert ran == ["weight_transposed"] * 2


def test_another_bias_needs_no_other_copy_and_is_not_forgotten(serve, monkeypatch):
    serve("gemm_cpu", (SHAPE, "weight_transposed", {"kernel": "weight_transposed"}))
    a, weight, _ = tensors()
    for value in range(5):
        bias = torch.full((64,), float(value))
        torch.testing.assert_close(ops.gemm_cpu(a, weight, bias, constant_weight=True), linear(a, weight, bias))
    assert len(cpu_linear._copies[id(weight)].made) == 1


@pytest.mark.parametrize("name", sorted(CANDIDATES))
def test_copies_go_with_their_weight(serve, name):
    config = CANDIDATES[name].config
    for n, k in ((64, 32), (64, 1), (1, 32)):
        shape = {**SHAPE, "M": config.get("batch", 1 if name == "vector" else 4), "N": n, "K": k}
        if n % config.get("parts", 1) or (config["kernel"] == "split_k" and k % config["parts"]):
            continue
        a, weight, bias = tensors(shape["M"], n, k)
        serve("gemm_cpu", (shape, name, config))
        ops.gemm_cpu(a, weight, bias, constant_weight=True)
        number = id(weight)
        del weight
        gc.collect()
        assert number not in cpu_linear._copies


def test_what_cannot_be_run_falls_back_once_and_for_all(serve, ran, caplog):
    shape = {**SHAPE, "bias": False}
    serve("gemm_cpu", (shape, "split_n2", {"kernel": "split_n", "parts": 7}))
    a, weight, _ = tensors(bias=False)
    for _ in range(3):
        assert torch.equal(ops.gemm_cpu(a, weight), linear(a, weight))
    assert ran == ["split_n"]
    assert [
        r.getMessage() for r in caplog.records if "split_n2 does not run here: RuntimeError" in r.getMessage()
    ] != []


def test_what_is_no_business_of_it_is_left_to_torch(serve, ran):
    serve("gemm_cpu", (SHAPE, "split_n2", {"kernel": "split_n", "parts": 2}))
    a, weight, bias = tensors()
    with watch("gemm_cpu") as seen:
        for args in (
            (a.double(), weight.double(), bias.double()),
            (a[:0], weight, bias),
            (a.t().contiguous().t(), weight, bias),
            (a, weight.t().contiguous().t(), bias),
        ):
            torch.testing.assert_close(ops.gemm_cpu(*args), linear(*args))
        with pytest.raises(RuntimeError):
            ops.gemm_cpu(a, weight.bfloat16(), bias)
        with pytest.raises(RuntimeError):
            ops.gemm_cpu(a[:, :16], weight, bias)
    assert (ran, seen) == ([], [])


def test_gradients_flow_through_torch(serve):
    serve("gemm_cpu", (SHAPE, "split_n2", {"kernel": "split_n", "parts": 2}))
    a, weight, bias = tensors()
    weight.requires_grad_()
    ops.gemm_cpu(a, weight, bias).sum().backward()
    torch.testing.assert_close(weight.grad, a.sum(0).expand(64, 32))
    with torch.no_grad():
        assert not ops.gemm_cpu(a, weight, bias).requires_grad


def test_it_compiles_whole_also_with_sizes_that_vary(serve, ran):
    serve("gemm_cpu", (SHAPE, "split_n2", {"kernel": "split_n", "parts": 2}))
    _, weight, bias = tensors()

    def layer(x):
        return ops.gemm_cpu(x, weight, bias).relu() + 1

    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for m in (4, 7, 4):
        a, _, _ = tensors(m)
        torch.testing.assert_close(compiled(a), layer(a))
    assert ran == ["split_n"] * 4


def test_torchs_own_checks_of_an_operator_pass(serve):
    serve("gemm_cpu", (SHAPE, "split_n2", {"kernel": "split_n", "parts": 2}))
    torch.library.opcheck(torch.ops.aiter_tuning.gemm_cpu.default, (*tensors(), False))


def test_threads_share_a_weight(serve):
    serve("gemm_cpu", (SHAPE, "weight_transposed", {"kernel": "weight_transposed"}))
    a, weight, bias = tensors()
    want, wrong = linear(a, weight, bias), []

    def work():
        for _ in range(50):
            got = ops.gemm_cpu(a, weight, bias, constant_weight=True)
            wrong.extend([got] if not torch.allclose(got, want, atol=1e-4) else [])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_family_serves_through_it(serve, ran):
    serve("gemm_cpu", (SHAPE, "weight_transposed", {"kernel": "weight_transposed"}))
    family = GemmCpu()
    inputs = family.inputs(SHAPE, "cpu", 0)
    torch.testing.assert_close(family.serve(inputs), family.reference(inputs), rtol=1e-3, atol=1e-3)
    assert ran == ["weight_transposed"]
