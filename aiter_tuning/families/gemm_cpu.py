"""A linear layer on the CPU: C = A · Wᵀ + b.

torch gives one way of computing it unasked, ``F.linear``; the same product can be had from oneDNN with a weight packed
at load time, from another BLAS call on another layout, or cut along N or K into a batched product. Which one is fastest
depends on the shape, the dtype, the processor and the number of cores: that is what is tuned. ::

    a (M, K)   weight (N, K)   bias (N) or None ──prepare──▶ weight transposed, packed or cut, once
                                                ──run──────▶ (M, N), contiguous

The ways were chosen by measuring (2 cores of an AVX-512 server, torch 2.13): each wins somewhere or did within a few
per cent of it; ``torch.cat`` of chunks, cutting along M and a bfloat16 ``mv`` never did and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aiter_tuning.keys import Key
from aiter_tuning.tuner.family import Candidate, Config, Family, Inputs, Shape, Tolerance, Work

if TYPE_CHECKING:
    from torch import Tensor

    from aiter_tuning.devices.device import Device

_ITEM_BYTES = {"fp32": 4, "bf16": 2}
_SMALL_M = 16
"""Up to this many rows a product is bound by reading the weight, so that cutting it finer can pay."""


class Way(NamedTuple):
    """One way to compute the layer: what is done once to the weight, and each call."""

    prepare: Callable[[Inputs, Config], Mapping[str, Any]]
    """What the call needs beside the inputs."""
    run: Callable[[Inputs, Config], Tensor]


class GemmCpu(Family):
    name = "gemm_cpu"
    devices = ("cpu",)
    key = Key(M=int, N=int, K=int, dtype="fp32", bias=False)
    # Outputs are of order 1. bf16 rounds to 2^-9 of a value, so partial sums rounded to it stay inside; a dropped row,
    # block or bias does not.
    tolerance = Tolerance(rtol=1e-2, atol=1e-2, err_ratio=0.01, max_abs_delta=0.25)

    def inputs(self, shape: Shape, device: str, seed: int) -> Inputs:
        import torch

        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[shape["dtype"]]
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, device=device)

        m, n, k = shape["M"], shape["N"], shape["K"]
        a, weight = normal(m, k).to(dtype), (normal(n, k) / k**0.5).to(dtype)
        return {"a": a, "weight": weight, "bias": normal(n).to(dtype) if shape["bias"] else None}

    def reference(self, inputs: Inputs) -> Tensor:
        import torch

        a, weight, bias = inputs["a"], inputs["weight"], inputs["bias"]
        wide = torch.float64 if a.dtype == torch.float32 else torch.float32
        product = torch.mm(a.to(wide), weight.to(wide).t())
        return (product if bias is None else product + bias.to(wide)).to(a.dtype)

    def default(self, shape: Shape, device: Device) -> Candidate:
        return _candidate("linear", "linear")

    def candidates(self, shape: Shape, device: Device) -> Sequence[Candidate]:
        if shape["dtype"] not in _ITEM_BYTES:
            raise ValueError(f"gemm_cpu computes fp32 and bf16, not {shape['dtype']}")
        whole_lane = [
            self.default(shape, device),
            _candidate("weight_transposed", "weight_transposed"),
            _candidate("weight_first", "weight_first"),
            _candidate("onednn", "onednn"),
            _candidate("onednn_packed", "onednn_packed"),
            *_cut_ways(shape),
        ]
        if shape["dtype"] == "fp32":
            whole_lane.append(_candidate("mkl_packed", "mkl_packed", batch=shape["M"]))
            if shape["M"] == 1:
                whole_lane.append(_candidate("vector", "vector"))
        elif shape["M"] <= 4:
            whole_lane.append(_candidate("fp32_weight", "fp32_weight"))
        # Starting a thread's share costs microseconds, which the smallest products do not have; torch always uses all.
        fewer = [
            _candidate(f"{kernel}_t{threads}", kernel, threads=threads)
            for threads in _smaller_teams(device.cu_num)
            for kernel in ("linear", "onednn_packed")
        ]
        return whole_lane + fewer

    def prepare(self, inputs: Inputs, config: Config) -> Inputs:
        import torch

        if "threads" in config:
            torch.set_num_threads(config["threads"])
        return {**inputs, **_WAYS[config["kernel"]].prepare(inputs, config)}

    def run(self, inputs: Inputs, config: Config) -> Tensor:
        return _WAYS[config["kernel"]].run(inputs, config)

    def work(self, shape: Shape) -> Work:
        m, n, k = shape["M"], shape["N"], shape["K"]
        item, bias = _ITEM_BYTES[shape["dtype"]], n if shape["bias"] else 0
        return Work(
            flops=2.0 * m * n * k + m * bias,
            bytes=float(item * (m * k + n * k + m * n + bias)),
            workspace_bytes=4.0 * n * k,  # a second weight: packed, transposed or in fp32
        )


def _candidate(name: str, kernel: str, **config: int) -> Candidate:
    split_k = config["parts"] if kernel == "split_k" else 0
    return Candidate(name, {"kernel": kernel, **config}, kernel_id=list(_WAYS).index(kernel), split_k=split_k)


def _cut_ways(shape: Shape) -> list[Candidate]:
    parts_of = {"split_n": shape["N"], "split_k": shape["K"]}
    worth_four = {"split_n": shape["dtype"] == "fp32", "split_k": shape["M"] <= _SMALL_M and shape["dtype"] == "fp32"}
    return [
        _candidate(f"{kernel}{parts}", kernel, parts=parts)
        for kernel, length in parts_of.items()
        for parts in ((2, 4) if worth_four[kernel] else (2,))
        if length % parts == 0 and length > parts
    ]


def _smaller_teams(cores: int) -> list[int]:
    """Thread counts below the lane's: a half, a quarter and one."""
    return sorted({cores // 2, cores // 4, 1} & set(range(1, cores)))


def _nothing(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    return {}


def _linear(inputs: Inputs, config: Config) -> Tensor:
    import torch

    return torch.nn.functional.linear(inputs["a"], inputs["weight"], inputs["bias"])


def _transpose(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    return {"packed": inputs["weight"].t().contiguous()}


def _weight_transposed(inputs: Inputs, config: Config) -> Tensor:
    import torch

    a, packed, bias = inputs["a"], inputs["packed"], inputs["bias"]
    return torch.mm(a, packed) if bias is None else torch.addmm(bias, a, packed)


def _weight_first(inputs: Inputs, config: Config) -> Tensor:
    """(W · Aᵀ)ᵀ: the long side of the weight becomes the rows, over which BLAS libraries like to share the work."""
    import torch

    at, weight, bias = inputs["a"].t(), inputs["weight"], inputs["bias"]
    product = torch.mm(weight, at) if bias is None else torch.addmm(bias.unsqueeze(1), weight, at)
    return product.t().contiguous()


def _vector(inputs: Inputs, config: Config) -> Tensor:
    import torch

    row, weight, bias = inputs["a"][0], inputs["weight"], inputs["bias"]
    return (torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)).unsqueeze(0)


def _as_fp32(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    bias = inputs["bias"]
    return {"packed": inputs["weight"].float().t().contiguous(), "bias32": None if bias is None else bias.float()}


def _fp32_weight(inputs: Inputs, config: Config) -> Tensor:
    """Twice the memory, but no bf16 arithmetic, which many processors emulate."""
    import torch

    a, packed, bias = inputs["a"], inputs["packed"], inputs["bias32"]
    product = torch.mm(a.float(), packed) if bias is None else torch.addmm(bias, a.float(), packed)
    return product.to(a.dtype)


def _cut_n(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    weight, bias, parts = inputs["weight"], inputs["bias"], config["parts"]
    cut = weight.view(parts, weight.shape[0] // parts, weight.shape[1]).transpose(1, 2)
    return {"packed": cut, "bias_cut": None if bias is None else bias.view(parts, 1, -1)}


def _split_n(inputs: Inputs, config: Config) -> Tensor:
    """Column blocks as a batch, which oneDNN and MKL share among threads in another way."""
    import torch

    a, packed, bias = inputs["a"], inputs["packed"], inputs["bias_cut"]
    rows = a.expand(config["parts"], *a.shape)
    blocks = torch.bmm(rows, packed) if bias is None else torch.baddbmm(bias, rows, packed)
    return blocks.transpose(0, 1).reshape(a.shape[0], -1)


def _cut_k(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    weight, parts = inputs["weight"], config["parts"]
    return {"packed": weight.view(weight.shape[0], parts, -1).permute(1, 2, 0).contiguous()}


def _split_k(inputs: Inputs, config: Config) -> Tensor:
    """Partial sums as a batch, added up afterwards; they are rounded to the dtype in between."""
    import torch

    a, packed, bias, parts = inputs["a"], inputs["packed"], inputs["bias"], config["parts"]
    total = torch.bmm(a.view(a.shape[0], parts, -1).transpose(0, 1), packed).sum(0)
    return total if bias is None else total + bias


def _need_onednn(inputs: Inputs) -> None:
    import torch

    ops = torch.ops.mkldnn
    if not hasattr(ops, "_linear_pointwise"):
        raise NotImplementedError(f"torch {torch.__version__} has no oneDNN linear")
    if inputs["a"].dtype == torch.bfloat16 and not ops._is_mkldnn_bf16_supported():
        raise NotImplementedError("oneDNN does not compute bf16 on this processor")


def _check_onednn(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    _need_onednn(inputs)
    return {"packed": inputs["weight"]}


def _pack_onednn(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    import torch

    _need_onednn(inputs)
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        raise NotImplementedError(f"torch {torch.__version__} cannot pack a weight for oneDNN")
    return {"packed": torch.ops.mkldnn._reorder_linear_weight(inputs["weight"], None)}


def _onednn(inputs: Inputs, config: Config) -> Tensor:
    import torch

    result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs["a"], inputs["packed"], inputs["bias"], "none", [], "")
    return result


def _pack_mkl(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    import torch

    available = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]  # torch leaves it without types
    if not (available and hasattr(torch.ops.mkl, "_mkl_linear")):
        raise NotImplementedError(f"torch {torch.__version__} has no MKL linear with a packed weight")
    return {"packed": torch.ops.mkl._mkl_reorder_linear_weight(inputs["weight"], config["batch"])}


def _mkl(inputs: Inputs, config: Config) -> Tensor:
    import torch

    result: Tensor = torch.ops.mkl._mkl_linear(
        inputs["a"], inputs["packed"], inputs["weight"], inputs["bias"], config["batch"]
    )
    return result


_WAYS: Mapping[str, Way] = {
    "linear": Way(_nothing, _linear),
    "weight_transposed": Way(_transpose, _weight_transposed),
    "weight_first": Way(_nothing, _weight_first),
    "vector": Way(_nothing, _vector),
    "fp32_weight": Way(_as_fp32, _fp32_weight),
    "split_n": Way(_cut_n, _split_n),
    "split_k": Way(_cut_k, _split_k),
    "onednn": Way(_check_onednn, _onednn),
    "onednn_packed": Way(_pack_onednn, _onednn),
    "mkl_packed": Way(_pack_mkl, _mkl),
}
