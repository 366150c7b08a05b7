"""What is right: the caller's reference, computed or given, once for all candidates that share it."""

from __future__ import annotations

from typing import Any

import torch

from aiter_tuning.measure.inputs import Inputs, on_device, tensors_in
from aiter_tuning.task import MpTunerTask


def has_reference(task: MpTunerTask) -> bool:
    """Whether there is anything to compare the candidate with."""
    return task.ref is not None or task.ref_func is not None


def make_reference(task: MpTunerTask, inputs: Inputs, device: torch.device) -> Any:
    """The reference of ``task`` on ``device``: ``ref``, else what ``ref_func`` returns for the inputs.

    It never shares memory with the inputs: one that is computed in place would be overwritten with them.

    Raises:
        Exception: whatever ``ref_func`` raised.
    """
    if task.ref is not None:
        reference = task.ref
    elif task.ref_func is not None:
        named = task.gen_data is not None
        args = inputs.arguments(task.ref_args) if named else tuple(task.ref_args or ())
        reference = task.ref_func(*args, **(task.ref_kwargs or {}))
    else:
        return None
    taken = {storage_of(tensor) for tensor in tensors_in(inputs.values)}
    taken.update(storage_of(tensor) for tensor in tensors_in(task.ref_args))
    return _apart(on_device(reference, device) if device.type != "cpu" else reference, taken)


def storage_of(tensor: torch.Tensor) -> int:
    """Address of the memory that a tensor looks at; equal for all its views. 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and meta tensors
        return 0


def _apart(value: Any, taken: set[int]) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if storage_of(value) in taken else value.detach()
    if isinstance(value, dict):
        return {name: _apart(item, taken) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_apart(item, taken) for item in value]
    return value
