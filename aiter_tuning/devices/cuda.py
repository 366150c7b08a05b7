"""CUDA lanes: the mask is set just before CUDA initialises, so that any standby serves any lane."""

from __future__ import annotations

from aiter_tuning.devices.gpu import TorchGpuKind

KIND = "aiter_tuning.devices.cuda:CudaKind"


class CudaKind(TorchGpuKind):
    """An NVIDIA GPU or a MIG instance of one, bound late."""

    kind = "cuda"
    bound_at_exec = False
