"""A comparison of ``gemm_cpu`` that is killed in its middle: the next one goes on, and its report has every shape."""

import json

import psutil
import pytest

from aiter_tuning.devices.discovery import discover
from aiter_tuning.families.gemm_cpu import GemmCpu
from aiter_tuning.tables.evidence import evidence_path
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from op_tests.processes import wait_for

SHAPES = [(1, n, 64) for n in (64, 128, 192, 256, 320, 384)]
WORDS = ("tune", "gemm_cpu", "-i", "shapes.csv", "-o", "out.csv", "--compare", "--update_improved",
         "--warmup", "1", "--iters", "3", "--full_iters", "--rounds", "2", "--min_improvement_pct", "95")  # fmt: skip


@pytest.fixture
def table(tmp_path):
    """A table with a row of the default for every shape but the last one."""
    (tmp_path / "shapes.csv").write_text("M,N,K\n" + "".join(f"{m},{n},{k}\n" for m, n, k in SHAPES))
    path, device, key = tmp_path / "out.csv", discover("cpu", 0)[0], GemmCpu.key
    TunedCsv(path, key).update(
        TunedRow(device.gfx, device.cu_num, device.gpu_model, key.parse({"M": m, "N": n, "K": k}), 0, 0, 1.0, "linear",
                 config={"kernel": "linear"})
        for m, n, k in SHAPES[:-1]
    )  # fmt: skip
    return path


def decided(table):
    path = evidence_path(table)
    return path.read_text().count("\n") if path.exists() else 0


def test_the_report_of_a_comparison_that_was_killed_has_every_shape_once(
    command, run_here, descendants, table, tmp_path
):
    process = command(*WORDS)
    wait_for(lambda: decided(table) >= 2 or process.poll() is not None, timeout_s=90)
    workers = descendants(process)
    process.kill()
    process.communicate()
    psutil.wait_procs(workers, timeout=10)
    before = decided(table)
    assert 2 <= before < len(SHAPES), "it was killed in its middle"

    code, out, err = run_here(*WORDS, "--json")

    assert code == 0, err
    told = json.loads(out)["shapes"]
    assert [shape["shape"]["N"] for shape in told] == [n for _, n, _ in SHAPES]
    earlier = sum(shape["decided_earlier"] for shape in told)
    assert before - 1 <= earlier <= before  # the last one was killed between its evidence and the checkpoint, if at all
    assert [shape["verdict"] for shape in told] == ["retained"] * 5 + ["first_row"]
    assert all(shape["served"]["before"]["us"] > 0 and shape["candidates"]["ok"] > 1 for shape in told)
    (report,) = tmp_path.glob("out.compare.*.txt")
    text = report.read_text()
    assert [text.count(f"\nM=1 N={n} ") for _, n, _ in SHAPES] == [1] * len(SHAPES)
    assert f"{earlier} of these decided in an earlier part of this run" in text
    assert not list(tmp_path.glob("*.checkpoint*.csv"))
