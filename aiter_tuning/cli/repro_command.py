"""``aiter-tune repro``: one candidate of one shape, in this process, with nothing around it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiter_tuning.cli.serving_flags import key_mistake, named_fields
from aiter_tuning.devices.device import Device, DeviceKind, NoDeviceError, load_kind
from aiter_tuning.devices.discovery import discover, kind_of
from aiter_tuning.families import find_family
from aiter_tuning.keys import KeyFieldError, Shape
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.family import Candidate, Family
from aiter_tuning.tuner.plan import plan_shape
from aiter_tuning.tuning_policy import SAMPLE_SEED

WRONG = 1


def run(args: argparse.Namespace) -> int:
    """Runs the candidate once, compares its result, times it; 0 if it is right, else 1.

    Raises:
        UsageError: a field means nothing, there is no such candidate, or the family does not run on the device.
        NoDeviceError: there is no such device.
    """
    fields = named_fields(args.fields)
    family = find_family(args.family)
    try:
        shape = family.key.parse(_known(family, fields))
    except KeyFieldError as error:
        raise key_mistake(error, fields) from None
    device = _device(family, args.device)
    candidates = plan_shape(family, shape, device).candidates
    if args.list:
        for candidate in candidates:
            print(f"{candidate.name}  {json.dumps(dict(candidate.config))}")
        return 0
    return _run(family, shape, _named(candidates, args.candidate), device, args.times)


def _known(family: Family, fields: dict[str, str]) -> dict[str, str]:
    unknown = next((name for name in fields if name not in family.key.columns), None)
    if unknown is not None:
        raise KeyFieldError(unknown, "no field", f"one of {', '.join(family.key.columns)}")
    return fields


def _device(family: Family, request: str | None) -> Device:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    kinds = (*family.devices, *(("cpu",) if interpreted else ()))
    for kind in kinds if request is None else ():
        with contextlib.suppress(NoDeviceError):
            return discover(kind)[0]
    if request is None:
        raise NoDeviceError(f"{family.name} runs on {', '.join(family.devices)}, and there is none")
    try:
        device = discover(request)[0]
    except ValueError as error:
        raise UsageError(f"--device {request}: {error}") from None
    if kind_of(device) not in kinds:
        hint = "; TRITON_INTERPRET=1 runs Triton kernels on the CPU" if request == "cpu" else ""
        raise UsageError(f"--device {request}: {family.name} runs on {', '.join(family.devices)} only{hint}")
    return device


def _named(candidates: Sequence[Candidate], name: str | None) -> Candidate:
    names = [candidate.name for candidate in candidates]
    if name is None:
        raise UsageError(f"which candidate? Give --candidate NAME, or --list to see all {len(names)}")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"no candidate {name!r} for this shape; {hint}--list names all {len(names)}")
    return candidates[names.index(name)]


def _run(family: Family, shape: Shape, candidate: Candidate, device: Device, times: int) -> int:
    kind = load_kind(device.kind)
    kind.prepare_process(device)
    import torch

    from aiter_tuning.measure.inputs import tensors_in
    from aiter_tuning.measure.poison import poison

    torch.set_grad_enabled(False)
    kind.bind(dataclasses.replace(device, memory_bytes=0))  # a debugger needs memory of its own
    print(f"{family.name} {family.key.label(shape)} on {device.name}, {device.gpu_model}")
    print(f"  candidate  {candidate.name}  {json.dumps(dict(candidate.config))}")
    inputs = family.inputs(shape, device.torch_device, SAMPLE_SEED)
    for name, value in inputs.items():
        print(f"  input      {name}: {_described(value)}")
    reference = family.reference(inputs)
    prepared = family.prepare(inputs, candidate.config)
    outputs = list(tensors_in([inputs[name] for name in family.outputs]))
    poison(outputs)
    sys.stdout.flush()  # what comes next may end the process

    result = family.run(prepared, candidate.config)
    kind.synchronize()
    right = _compare(family, reference, result if result is not None or not outputs else outputs)
    if times:
        _time(lambda: family.run(prepared, candidate.config), kind, times)
    return 0 if right else WRONG


def _compare(family: Family, reference: Any, result: Any) -> bool:
    """Whether the result is right; prints how far it is off."""
    from aiter_tuning.measure.compare import Tolerance, compare

    wanted = family.tolerance
    tolerance = Tolerance(wanted.rtol, wanted.atol, wanted.max_abs_delta, wanted.err_ratio)
    comparison = compare(reference, result, tolerance)
    right = comparison.within(wanted.err_ratio)
    told = f"; {comparison.detail}" if comparison.detail else ""
    print(f"  result     {_described(result)}")
    print(f"  compared   {'right' if right else 'WRONG'}: {comparison.err_ratio:.4%} of its elements are off{told}")
    errors = _max_errors(reference, result)
    for name, error in errors:
        print(f"  max error  {error:.6g}" + (f" in output {name}" if len(errors) > 1 else ""))
    return right


def _time(call: Callable[[], object], kind: DeviceKind, times: int) -> None:
    us = []
    for _ in range(times):
        began = time.perf_counter_ns()
        call()
        kind.synchronize()
        us.append((time.perf_counter_ns() - began) / 1e3)
    print(f"  time       median {statistics.median(us):.2f} us, fastest {min(us):.2f} us of {times} single calls")
    print("             (host and launch included; not comparable with tuned rows)")


def _described(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "stride"):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}, strides {tuple(value.stride())}"
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_described(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return "; ".join(map(_described, value))
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _max_errors(reference: Any, result: Any) -> list[tuple[object, float]]:
    """The largest difference in each output whose shape fits, by its name or number."""
    import torch

    from aiter_tuning.measure.compare import as_tensor, paired

    expected, found = paired(reference, result)
    errors = []
    for (name, right), got in zip(expected, found, strict=False):
        a, b = as_tensor(right), as_tensor(got)
        if a is not None and b is not None and a.shape == b.shape and a.numel():
            exact = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
            errors.append((name, float((a.to(exact) - b.to(a.device, exact)).abs().max())))
    return errors
