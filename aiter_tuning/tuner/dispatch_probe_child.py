"""The process that serves staged rows; see :mod:`aiter_tuning.tuner.dispatch_probe`."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiter_tuning.devices.device import Device, load_kind
from aiter_tuning.keys import KeyFieldError
from aiter_tuning.pool.parent_death import die_with
from aiter_tuning.pool.uncollected import uncollected
from aiter_tuning.serving import bind, explain, record_misses, refusals, serve_from, watch
from aiter_tuning.serving.answers import Seen
from aiter_tuning.status import describe
from aiter_tuning.tuner.family import Family
from aiter_tuning.tuner.family_reference import load_family


def main() -> None:
    """Serves what the file named on stdin asks for; answers go to the descriptor that the parent has passed."""
    die_with(int(sys.argv[3]))
    if sys.argv[4]:
        with uncollected():
            importlib.import_module(sys.argv[4])  # while nobody waits for it
    with os.fdopen(int(sys.argv[2]), "w", buffering=1) as answers:
        name = sys.stdin.buffer.read()
        if not name:
            return  # nobody asks any more
        request = json.loads(Path(os.fsdecode(name)).read_text())
        sys.path[:] = request["path"]
        record_misses(None)  # nothing here is asked for by serving
        device = Device(**{**request["device"], "cores": tuple(request["device"]["cores"])})
        _bind(device)
        family = load_family(request["reference"])
        limit = family.tolerance.err_ratio if request["err_ratio"] is None else request["err_ratio"]
        for number, shape in request["shapes"]:
            print(json.dumps({"started": number}), file=answers)
            answer = _serve(family, Path(request["table"]), shape, device, request["seed"], limit)
            print(json.dumps({"done": number, **answer}), file=answers)


def _bind(device: Device) -> None:
    kind = load_kind(device.kind)
    kind.prepare_process(device)
    import torch

    torch.set_grad_enabled(False)
    kind.bind(device)


def _serve(
    family: Family, table: Path, shape: Mapping[str, Any], device: Device, seed: int, limit: float
) -> dict[str, Any]:
    """One row's answer; whatever goes wrong is its reason."""
    answer: dict[str, Any] = {"chosen": None, "config": {}, "err_ratio": None, "reason": ""}
    try:
        with serve_from(family, table), watch(family) as seen:
            answer["reason"] = _prove(family, shape, device, seed, seen, answer, limit)
    except Exception as error:
        answer["reason"] = describe(error)
    return answer


def _prove(
    family: Family,
    shape: Mapping[str, Any],
    device: Device,
    seed: int,
    seen: list[Seen],
    answer: dict[str, Any],
    limit: float,
) -> str:
    """Why the row is not proven; empty if it is. Fills ``answer`` in as it goes."""
    inputs = family.inputs(shape, device.torch_device, seed)
    reference = family.reference(inputs)
    _poison(family, inputs)
    if type(family).serve is not Family.serve:
        result = family.serve(inputs)
        asked = [one for one in seen if family.key.values(one.shape) == family.key.values(shape)]
        if not asked:
            return "its public operator did not look this shape up"
        row = asked[-1].row
    else:
        row = bind(family)(**shape)
        result = None if row is None else family.run(family.prepare(inputs, row.config), row.config)
    if row is None:
        return _why_not_found(family, shape)
    answer["chosen"], answer["config"] = row.kernelName, dict(row.config)
    refusal = refusals.refusal_of(family.name, row)
    if refusal is not None:
        return f"its operator fell back to the default: {refusal}"
    return _compare(family, inputs, reference, result, device, answer, limit)


def _poison(family: Family, inputs: Mapping[str, Any]) -> None:
    from aiter_tuning.measure.poison import poison

    poison(inputs[name] for name in family.outputs)


def _compare(
    family: Family,
    inputs: Mapping[str, Any],
    reference: Any,
    result: Any,
    device: Device,
    answer: dict[str, Any],
    limit: float,
) -> str:
    from aiter_tuning.measure.compare import Tolerance, compare

    load_kind(device.kind).synchronize()
    if result is None:
        result = [inputs[name] for name in family.outputs]
    wanted = family.tolerance
    tolerance = Tolerance(wanted.rtol, wanted.atol, wanted.max_abs_delta, limit)
    comparison = compare(reference, result, tolerance)
    answer["err_ratio"] = comparison.err_ratio
    if comparison.within(limit):
        return ""
    return f"its result is wrong: {comparison.detail}"


def _why_not_found(family: Family, shape: Mapping[str, Any]) -> str:
    try:
        near = explain(family, **shape).near
    except KeyFieldError as error:
        return f"a lookup does not understand the shape: {error}"
    if not near:
        return "a lookup finds no row: the staged table has none"
    if not near[0].differs:
        return f"a lookup finds no row: {near[0].objection}"
    fields = ", ".join(f"{name} is {has} there, {asked} here" for name, (asked, has) in near[0].differs.items())
    return f"a lookup finds no row; in the nearest one {fields}"
