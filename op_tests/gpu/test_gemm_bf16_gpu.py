"""The bf16 linear layer and workload W1 on a real GPU: results, a kill in the middle, and faults that are real."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from aiter_tuning import MpTunerTask, Pool, mp_tuner
from aiter_tuning.status import Status
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.task import ALL_INPUTS
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.tasks import MakeInputs, MakeReference, RunCandidate

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "bench_gpu.py"
W1 = f"{TOOL}:W1"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(240),
]


def start(folder, *words):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "aiter_tuning", "tune", *words, "-o", "tuned.csv", "--device", "cuda", "--json"]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process):
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, f"exit code {process.returncode}\n{err[-4000:]}\n{out[-2000:]}"
    return json.loads(out), err


def rows_of(path):
    return [row.cells for row in read_rows(path).rows]


def finished_in(path):
    return [row for row in rows_of(path) if row["event"] == "finished"] if path.exists() else []


def screened(folder):
    """The screening's results in the profile that a run leaves, one row each."""
    (profile,) = folder.glob("tuned.profile.*.csv")
    return [row for row in finished_in(profile) if row["phase"] == "screen"]


def test_every_candidate_of_three_shapes_is_right_or_says_that_it_cannot(tmp_path):
    shapes = ["16,1024,4096,bf16,False", "130,520,1032,fp16,True", "1030,2056,1001,bf16,True"]
    (tmp_path / "shapes.csv").write_text("\n".join(("M,N,K,dtype,bias", *shapes)) + "\n")
    summary, _ = finish(start(tmp_path, "gemm_bf16", "-i", "shapes.csv"))

    rows = screened(tmp_path)
    bad = [row for row in rows if row["status"] not in ("ok", "unsupported")]
    told = [f"{row['M']} {row['candidate']}: {row['status']}, {row['err_ratio']} wrong, {row['detail']}" for row in bad]
    assert told == []
    ok = collections.Counter(row["M"] for row in rows if row["status"] == "ok")
    assert min(ok.get(m, 0) for m in ("16", "130", "1030")) >= 8, f"hardly anything ran: {ok}, {summary['causes']}"
    kinds = {row["candidate"].split("_")[0].rstrip("0123456789") for row in rows if row["status"] == "ok"}
    assert {"linear", "tiled", "split"} <= kinds
    tuned = rows_of(tmp_path / "tuned.csv")
    assert sorted(row["M"] for row in tuned) == ["1030", "130", "16"]
    for row in tuned:
        assert row["gfx"].startswith(("sm", "gfx")) and float(row["us"]) > 0
        assert json.loads(row["config"])["kernel"]


def test_w1_goes_on_where_it_was_killed_and_measures_nothing_twice(tmp_path):
    (tmp_path / "shapes.csv").write_text("M,N,K\n512,4096,4096\n")
    checkpoint = tmp_path / "tuned.checkpoint.csv"
    process = start(tmp_path, W1, "-i", "shapes.csv")
    deadline = time.monotonic() + 90
    while len(finished_in(checkpoint)) < 10 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.poll() is None, f"it ended before it could be killed: {process.communicate()[1][-3000:]}"
    process.kill()
    process.communicate()
    before = {row["candidate"]: row["us"] for row in finished_in(checkpoint)}
    assert len(before) >= 10, "nothing was measured in 90 s"

    _, err = finish(start(tmp_path, W1, "-i", "shapes.csv"))

    assert "resuming" in err, err[-2000:]
    rows = screened(tmp_path)
    counts = collections.Counter(row["candidate"] for row in rows)
    assert {name: count for name, count in counts.items() if count > 1} == {}, "measured twice"
    assert len(counts) == 48
    after = {row["candidate"]: row["us"] for row in rows}
    assert {name: after[name] for name in before} == before, "what was on record changed"
    assert {row["status"] for row in rows} <= {"ok", "unsupported"}


# Faults. The candidates of tools/gpu_bench/faults.py; loading W1 has put its folder on the import path, which workers
# get from this process.


@pytest.fixture(scope="module")
def faults():
    from gpu_bench import faults

    return faults


@pytest.fixture(scope="module")
def gpu():
    with Pool("cuda", 1) as pool:
        yield pool


CONFIGS = [candidate.config for candidate in load_family(W1).candidates({}, None)][:6]
SHAPE = {"M": 64, "N": 1024, "K": 1024}


def measure(pool, functions, clock_s):
    make_inputs, make_reference = MakeInputs(W1), MakeReference(W1)
    tasks = [
        MpTunerTask(
            ((64, 1024, 1024), index),
            make_inputs,
            (SHAPE, 0),
            function,
            (ALL_INPUTS,),
            {"num_warmup": 2, "num_iters": 20},
            make_reference,
            (ALL_INPUTS,),
            {},
            None,
        )
        for index, function in enumerate(functions)
    ]
    return mp_tuner(
        tasks,
        [(len(tasks), None)],
        shape_grouped=True,
        return_status=True,
        on_fault="continue",
        candidate_timeout=clock_s,
        compile_timeout=clock_s,
        pool=pool,
    )


@pytest.fixture(scope="module")
def undisturbed(gpu, faults):
    """Results without a fault; fills the compile cache, so that a fault's clock measures the fault."""
    good = [RunCandidate(W1, config) for config in CONFIGS]
    results = measure(gpu, [faults.compile_kernels, *good], clock_s=120)
    assert [result.status for result in results] == [Status.ok] * len(results), [r.detail for r in results]
    return results[1:]


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ("exits", Status.crash, "7"),
        ("accesses_illegally", Status.crash, "illegal memory access"),
        ("asserts", Status.crash, "assert"),
        ("spins", Status.timeout, ""),
    ],
)
def test_a_real_fault_costs_the_candidate_that_faulted_and_nothing_else(
    gpu, faults, undisturbed, tmp_path, fault, status, says
):
    moment = tmp_path / "moment"
    functions = [RunCandidate(W1, config) for config in CONFIGS]
    functions[3] = faults.Fault(fault, str(moment))

    results = measure(gpu, functions, clock_s=8)

    assert moment.exists(), f"the fault never ran: {results[3]}"
    assert results[3].status is status, results[3]
    assert says in results[3].detail.lower(), results[3]
    for index in (0, 1, 2, 4, 5):
        assert results[index].status is Status.ok, f"neighbour {index} of {fault}: {results[index]}"
        # Not how fast exactly: that is for tools/bench_gpu.py. A neighbour measured on a broken context is far off.
        assert 0.3 < results[index].us / undisturbed[index].us < 3, (results[index], undisturbed[index])


def test_the_gpu_works_as_before_after_all_of_that(gpu, undisturbed):
    results = measure(gpu, [RunCandidate(W1, config) for config in CONFIGS], clock_s=60)
    assert [result.status for result in results] == [Status.ok] * len(CONFIGS), [r.detail for r in results]
