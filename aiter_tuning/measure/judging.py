"""Is what a candidate returned right? And if that could not be found out, what is it then?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aiter_tuning.measure.compare import RIGHT, Comparison, Tolerance, compare
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.reference import has_reference
from aiter_tuning.measurement import UNMEASURED_US, Measurement
from aiter_tuning.status import Status, classify, describe, is_device_fault
from aiter_tuning.task import MpTunerTask


class ComparisonError(Exception):
    """The comparison itself failed; the candidate ran. Its cause is what was raised."""


def judge(
    task: MpTunerTask, plan: MeasurePlan, reference: Any, result: Any, outputs: Sequence[torch.Tensor]
) -> Comparison:
    """Compares a result with the reference.

    Args:
        task: the candidate, which says what is tolerated.
        plan: the run's say in it.
        reference: what is right.
        result: what the candidate returned.
        outputs: what it was given to write to; its result where it returned nothing.

    Raises:
        ComparisonError: comparing failed.
        Exception: a device fault, as it is.
    """
    if not has_reference(task):
        if plan.fast_mode:
            return RIGHT
        return Comparison(1.0, "nothing to compare with: neither ref nor ref_func, and fast_mode is off")
    if reference is None:
        return Comparison(1.0, "nothing to compare with: ref_func returned nothing")
    if result is None:
        if not outputs:
            return Comparison(1.0, "returned nothing although there is a reference, and no output_keys are declared")
        result = outputs
    tolerance = Tolerance(task.rtol, task.atol, task.max_abs_delta, plan.err_ratio, plan.equal_nan, plan.row_wise)
    try:
        return compare(reference, result, tolerance, task.compare_fn if callable(task.compare_fn) else None)
    except Exception as error:
        if is_device_fault(error):
            raise
        raise ComparisonError from error


def uncompared(error: ComparisonError) -> Measurement:
    """Neither right nor wrong: the comparison failed, which is no reason to call the candidate unsupported."""
    cause = error.__cause__ or error
    status = classify(cause)
    if not status.is_oom:
        status = Status.crash
    return Measurement.failed(status, f"comparing failed: {describe(cause)}", us=UNMEASURED_US)
