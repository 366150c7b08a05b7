"""The ways of computing a linear layer on the CPU, C (M, N) = A (M, K) · Wᵀ + b with W (N, K).

::

    a, weight, bias ── prepare(inputs, config), once for a weight ──▶ the weight packed or transposed, beside them
                    └─ run(inputs, config), each call ─────────────▶ c (M, N), contiguous

A config names its ``kernel`` here, and how finely to cut. What is prepared depends on the weight alone; it is a copy,
or the weight itself, never a view of it. How many threads compute is set by whoever calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Inputs: TypeAlias = Mapping[str, Any]
Config: TypeAlias = Mapping[str, Any]


class Way(NamedTuple):
    """One way to compute the layer: what is done once to the weight, and each call."""

    prepare: Callable[[Inputs, Config], Mapping[str, Any]]
    """What the call needs beside the inputs."""
    run: Callable[[Inputs, Config], Tensor]
    copies: bool = False
    """Whether it computes from a copy of the weight, which knows nothing of later writes to it."""


def prepare(inputs: Inputs, config: Config) -> Inputs:
    """The inputs with ``packed``, what the config's way makes of the weight; nothing that is given is changed.

    Raises:
        NotImplementedError: this processor or this torch lacks it.
    """
    return {**inputs, **WAYS[config["kernel"]].prepare(inputs, config)}


def run(inputs: Inputs, config: Config) -> Tensor:
    """One call on prepared inputs."""
    return WAYS[config["kernel"]].run(inputs, config)


def _nothing(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    return {}


def _linear(inputs: Inputs, config: Config) -> Tensor:
    return torch.nn.functional.linear(inputs["a"], inputs["weight"], inputs["bias"])


def _transpose(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    return {"packed": inputs["weight"].t().clone(memory_format=torch.contiguous_format)}


def _weight_transposed(inputs: Inputs, config: Config) -> Tensor:
    a, packed, bias = inputs["a"], inputs["packed"], inputs["bias"]
    return torch.mm(a, packed) if bias is None else torch.addmm(bias, a, packed)


def _weight_first(inputs: Inputs, config: Config) -> Tensor:
    """(W · Aᵀ)ᵀ: the long side of the weight becomes the rows, over which BLAS libraries like to share the work."""
    at, weight, bias = inputs["a"].t(), inputs["weight"], inputs["bias"]
    product = torch.mm(weight, at) if bias is None else torch.addmm(bias.unsqueeze(1), weight, at)
    return product.t().contiguous()


def _vector(inputs: Inputs, config: Config) -> Tensor:
    row, weight, bias = inputs["a"][0], inputs["weight"], inputs["bias"]
    return (torch.mv(weight, row) if bias is None else torch.addmv(bias, weight, row)).unsqueeze(0)


def _as_fp32(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    return {"packed": inputs["weight"].float().t().contiguous()}


def _fp32_weight(inputs: Inputs, config: Config) -> Tensor:
    """Twice the memory, but no bf16 arithmetic, which many processors emulate."""
    a, packed, bias = inputs["a"], inputs["packed"], inputs["bias"]
    product = torch.mm(a.float(), packed) if bias is None else torch.addmm(bias.float(), a.float(), packed)
    return product.to(a.dtype)


def _split_n(inputs: Inputs, config: Config) -> Tensor:
    """Column blocks as a batch, which oneDNN and MKL share among threads in another way."""
    a, weight, bias, parts = inputs["a"], inputs["weight"], inputs["bias"], config["parts"]
    cut = weight.view(parts, weight.shape[0] // parts, weight.shape[1]).transpose(1, 2)
    rows = a.expand(parts, *a.shape)
    blocks = torch.bmm(rows, cut) if bias is None else torch.baddbmm(bias.view(parts, 1, -1), rows, cut)
    return blocks.transpose(0, 1).reshape(a.shape[0], -1)


def _cut_k(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    weight, parts = inputs["weight"], config["parts"]
    cut = weight.view(weight.shape[0], parts, -1).permute(1, 2, 0)
    return {"packed": cut.clone(memory_format=torch.contiguous_format)}


def _split_k(inputs: Inputs, config: Config) -> Tensor:
    """Partial sums as a batch, added up afterwards; they are rounded to the dtype in between."""
    a, packed, bias, parts = inputs["a"], inputs["packed"], inputs["bias"], config["parts"]
    total = torch.bmm(a.view(a.shape[0], parts, -1).transpose(0, 1), packed).sum(0)
    return total if bias is None else total + bias


def _need_onednn(inputs: Inputs) -> None:
    ops = torch.ops.mkldnn
    if not hasattr(ops, "_linear_pointwise"):
        raise NotImplementedError(f"torch {torch.__version__} has no oneDNN linear")
    if inputs["weight"].dtype == torch.bfloat16 and not ops._is_mkldnn_bf16_supported():
        raise NotImplementedError("oneDNN does not compute bf16 on this processor")


def _check_onednn(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    _need_onednn(inputs)
    return {"packed": inputs["weight"]}


def _pack_onednn(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    _need_onednn(inputs)
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        raise NotImplementedError(f"torch {torch.__version__} cannot pack a weight for oneDNN")
    return {"packed": torch.ops.mkldnn._reorder_linear_weight(inputs["weight"], None)}


def _onednn(inputs: Inputs, config: Config) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs["a"], inputs["packed"], inputs["bias"], "none", [], "")
    return result


def _pack_mkl(inputs: Inputs, config: Config) -> Mapping[str, Any]:
    available = torch.backends.mkl.is_available()
    if not (available and hasattr(torch.ops.mkl, "_mkl_linear")):
        raise NotImplementedError(f"torch {torch.__version__} has no MKL linear with a packed weight")
    return {"packed": torch.ops.mkl._mkl_reorder_linear_weight(inputs["weight"], config["batch"])}


def _mkl(inputs: Inputs, config: Config) -> Tensor:
    result: Tensor = torch.ops.mkl._mkl_linear(
        inputs["a"], inputs["packed"], inputs["weight"], inputs["bias"], config["batch"]
    )
    return result


WAYS: Mapping[str, Way] = {
    "linear": Way(_nothing, _linear),
    "weight_transposed": Way(_transpose, _weight_transposed, copies=True),
    "weight_first": Way(_nothing, _weight_first),
    "vector": Way(_nothing, _vector),
    "fp32_weight": Way(_as_fp32, _fp32_weight, copies=True),
    "split_n": Way(_nothing, _split_n),
    "split_k": Way(_cut_k, _split_k, copies=True),
    "onednn": Way(_check_onednn, _onednn),
    "onednn_packed": Way(_pack_onednn, _onednn, copies=True),
    "mkl_packed": Way(_pack_mkl, _mkl, copies=True),
}
