"""``tune`` and ``tune --compare --update_improved`` of a model's shapes on a real GPU, as a person runs them.

The flow is that of ``op_tests/cli/test_mended_table.py``. Needs two minutes, half of them for the first compiles.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from op_tests.gpu.wrong_gemm import WRONG, WrongGemm
from op_tests.seeded_table import Ran, mend

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "configs" / "model_configs" / "qwen3_8b_gemm_bf16_untuned.csv"
WRONG_GEMM = Path(__file__).with_name("wrong_gemm.py")
LM_HEAD = 32
"""Where the shapes with a whole vocabulary begin, one of which is enough."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(240),
]


@pytest.fixture
def run(tmp_path):
    """A command of ``aiter-tune`` in a process of its own; says how long it took."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    environment.pop("TRITON_INTERPRET", None)

    def start(*words):
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "aiter_tuning", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        print(
            f"{time.monotonic() - began:.1f} s, exit code {done.returncode}: aiter-tune {' '.join(words)}", flush=True
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return start


def test_a_models_table_is_mended_by_the_command_line_and_then_left_alone(run, tmp_path):
    header, *shapes = MODEL.read_text().splitlines()
    chosen = [*shapes[:LM_HEAD:3], shapes[LM_HEAD]]
    assert len(chosen) == 12 and {int(shape.split(",")[0]) for shape in chosen} >= {1, 16, 64, 1024, 4096, 8192}
    (tmp_path / "model.csv").write_text("\n".join([header, *chosen]) + "\n")
    common = ("-i", "model.csv", "-o", "tuned.csv", "--device", "cuda")

    mend(
        run,
        WrongGemm(),
        WRONG,
        tmp_path / "tuned.csv",
        tune=("tune", "gemm_bf16", *common),
        compare=("tune", f"{WRONG_GEMM}:WrongGemm", *common),
    )
