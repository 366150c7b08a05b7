"""HIP lanes: the mask has to be there when the process starts, because HIP is consulted while torch is imported.

Only ``HIP_VISIBLE_DEVICES`` is set. ``ROCR_VISIBLE_DEVICES`` acts below HIP and stays what the user made it: the
numbers in HIP's mask count what ROCR's leaves.
"""

from __future__ import annotations

from aiter_tuning.devices.gpu import TorchGpuKind

KIND = "aiter_tuning.devices.hip:HipKind"


class HipKind(TorchGpuKind):
    """An AMD GPU, or a partition of one, bound at exec."""

    kind = "hip"
    bound_at_exec = True
