"""A candidate of W1 that times its own launches on the host. Workers import this module by name."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpu_bench.kernels import launch

LAUNCHES = 2000
AT_A_TIME = 50
"""Launches before the device is waited for: more than it takes would have to queue."""


@dataclass(frozen=True)
class Launches:
    """Times launches in its first call, and leaves them in a file; a candidate like any other from then on."""

    config: Mapping[str, Any]
    file: str

    def __call__(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        a, b = inputs["a"], inputs["b"]
        result = launch(a, b, self.config)
        if a.device.type != "meta" and not os.path.exists(self.file):
            Path(self.file).write_text(json.dumps(launch_us(a, b, self.config, result)))
        return result


def launch_us(a: torch.Tensor, b: torch.Tensor, config: Mapping[str, Any], c: torch.Tensor) -> list[float]:
    """Host time of each of many launches, in microseconds."""
    wait = torch.cuda.synchronize if a.is_cuda else lambda: None
    clock, taken = time.perf_counter_ns, []
    for _ in range(LAUNCHES // AT_A_TIME if a.is_cuda else 1):
        wait()
        for _ in range(AT_A_TIME if a.is_cuda else 2):
            began = clock()
            launch(a, b, config, c)
            taken.append((clock() - began) / 1e3)
    wait()
    return taken
