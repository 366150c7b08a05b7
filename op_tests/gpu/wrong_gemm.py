"""The bf16 linear layer with one more kernel, which is wrong: a user's file, ``path/to/wrong_gemm.py:WrongGemm``."""

from __future__ import annotations

import functools
from typing import Any

from aiter_tuning.families.gemm_bf16 import GemmBf16
from aiter_tuning.serving import bind
from aiter_tuning.tuner import Candidate

WRONG = Candidate("wrong", {"kernel": "wrong"}, kernel_id=99)


def linear(a: Any, weight: Any, bias: Any) -> Any:
    """The public operator."""
    m, k = a.shape
    row = _lookup()(m, weight.shape[0], k, "bf16", bias is not None)
    config = {"kernel": "linear"} if row is None else row.config
    return WrongGemm().run({"a": a, "weight": weight, "bias": bias}, config)


@functools.cache
def _lookup() -> Any:
    return bind(WrongGemm)


class WrongGemm(GemmBf16):
    name = "wrong_gemm"

    def candidates(self, shape, device):
        return [*super().candidates(shape, device), WRONG]

    def resolve(self, name, config, shape, device):
        return config if name == WRONG.name else super().resolve(name, config, shape, device)

    def run(self, inputs, config):
        if config["kernel"] == "wrong":
            return super().run(inputs, {"kernel": "linear"}) + 1
        return super().run(inputs, config)

    def serve(self, inputs):
        return linear(inputs["a"], inputs["weight"], inputs["bias"])
