"""The bf16 linear layer with few candidates, and kernels that a table may name and nobody should serve."""

from __future__ import annotations

from typing import Any

from aiter_tuning.families.gemm_bf16 import GemmBf16
from aiter_tuning.serving import bind
from aiter_tuning.tuner import Candidate

PADDED, WRONG = "padded", "wrong"


def linear(a: Any, weight: Any, bias: Any) -> Any:
    """The public operator."""
    m, k = a.shape
    row = bind(FaultyGemm)(m, weight.shape[0], k, "bf16", bias is not None)
    return FaultyGemm().run(
        {"a": a, "weight": weight, "bias": bias}, {"kernel": "linear"} if row is None else row.config
    )


class FaultyGemm(GemmBf16):
    """``padded`` runs its base and something more; ``wrong`` adds one."""

    name = "faulty_gemm"

    def candidates(self, shape, device):
        found = super().candidates(shape, device)
        tiled = [one for one in found if one.config["kernel"] == "tiled"]
        return [self.default(shape, device), *tiled[:6]]

    def resolve(self, name, config, shape, device):
        if name in (PADDED, WRONG):
            return config
        return super().resolve(name, config, shape, device)

    def run(self, inputs, config):
        if config["kernel"] == WRONG:
            return super().run(inputs, {"kernel": "linear"}) + 1
        if config["kernel"] == PADDED:
            return super().run(inputs, config["base"]).mul(1.0).mul_(1.0)
        return super().run(inputs, config)

    def serve(self, inputs):
        return linear(inputs["a"], inputs["weight"], inputs["bias"])


def padded(base: Candidate | Any) -> dict[str, Any]:
    """The config of something slower than what ``base`` launches."""
    return {"kernel": PADDED, "base": dict(base)}
