"""The plan that travels with each group."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.statistics import StopRule


def test_a_plan_travels_to_another_process_unchanged() -> None:
    plan = MeasurePlan(err_ratio=0.1, early_stop=StopRule(min_samples=7), warmup=5)
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize(
    "wrong", [{"err_ratio": 1.5}, {"err_ratio": -0.1}, {"iters": 0}, {"warmup": -1}, {"timer": "sundial"}]
)
def test_a_plan_that_cannot_be_followed_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        MeasurePlan(**wrong)


def test_the_parent_can_make_a_plan_without_torch() -> None:
    code = (
        "import sys; import aiter_tuning.measure.plan, aiter_tuning.measure.sampling; "
        "print({'torch', 'numpy', 'scipy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
