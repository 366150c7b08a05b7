"""Triton autotuning on a real GPU: pinned choices and bits, what a launch costs, what fits, and NCCL."""

import json
import os
import statistics
import subprocess
import sys
import time

import pytest
import torch

from aiter_tuning.triton_autotune import choice_log, choice_sources, merge_records, use_policy, write
from aiter_tuning.triton_autotune.merge import judge_all
from aiter_tuning.triton_autotune.recording import read_recording

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(scope="module")
def gemm():
    from op_tests.gpu import autotuned_gemm

    return autotuned_gemm


class Fleet:
    """Processes that are started together and launch one at a time."""

    def __init__(self, cache):
        self.environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
        self.environment.pop("TRITON_INTERPRET", None)

    def run(self, count, policy):
        command = [sys.executable, "-m", "op_tests.gpu.autotune_process", json.dumps(policy)]
        processes = [
            subprocess.Popen(
                command,
                env=self.environment | {"RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        answers = []
        for process in processes:
            out, _ = process.communicate("go\n", timeout=300)
            assert process.returncode == 0
            answers.append(json.loads(out))
        return answers


def acceptance(tmp_path, gemm, *, recorders, fresh):
    """Records, merges, pins; returns (pinned answers, timed answers)."""
    fleet = Fleet(tmp_path / "cache")
    modules = [gemm.__name__]
    fleet.run(recorders, {"record_path": str(tmp_path / "r"), "modules": modules})
    recordings = sorted(tmp_path.glob("r.rank*.json"))
    assert len(recordings) == recorders
    ((arch, kernels),) = merge_records(recordings).items()
    write(arch, kernels, tmp_path / "tables" / f"{arch}.json")
    for recording in recordings:
        for tuning in read_recording(recording).tunings.values():
            assert len(tuning.times) == len(gemm.CONFIGS) >= 24
    assert len(judge_all([read_recording(path) for path in recordings], arch)) == len(gemm.SHAPES)
    pinned = fleet.run(
        fresh, {"mode": "pinned", "modules": modules, "table_path": [str(tmp_path / "tables")], "on_miss": "error"}
    )
    timed = fleet.run(fresh, {"mode": "auto", "verify_every": 1, "modules": modules})
    return pinned, timed


def columns(answers, field):
    """For each shape, the different values that processes saw."""
    return [{answer["results"][shape][field] for answer in answers} for shape in range(len(answers[0]["results"]))]


def check(pinned, timed):
    assert [len(values) for values in columns(pinned, "config")] == [1] * len(columns(pinned, "config"))
    assert [len(values) for values in columns(pinned, "bits")] == [1] * len(columns(pinned, "bits"))
    first = [
        statistics.median(result["first_call_ms"] for answer in answers for result in answer["results"][1:])
        for answers in (pinned, timed)
    ]
    print(f"first call, warm compile cache: pinned {first[0]:.2f} ms, timed {first[1]:.2f} ms")
    print("configs chosen by timing, for each shape:", [len(values) for values in columns(timed, "config")])
    assert first[1] > 10 * first[0]


def test_fresh_processes_choose_the_same_and_compute_the_same_bits(tmp_path, gemm):
    check(*acceptance(tmp_path, gemm, recorders=2, fresh=3))


@pytest.mark.slow
@pytest.mark.timeout(580)
def test_twenty_processes_agree_where_timing_makes_them_differ(tmp_path, gemm):
    pinned, timed = acceptance(tmp_path, gemm, recorders=4, fresh=20)
    check(pinned, timed)
    assert max(len(values) for values in columns(timed, "config")) > 1


def test_a_pinned_kernel_is_right_and_never_timed(gemm, monkeypatch):
    import triton

    kernel = triton.autotune(gemm.CONFIGS, key=["M", "N", "K"])(gemm.gemm_kernel)
    monkeypatch.setattr(type(kernel), "_bench", lambda *args, **kwargs: pytest.fail("a pinned kernel was timed"))
    with use_policy({"mode": "pinned", "modules": [gemm.__name__]}):
        for shape in gemm.SHAPES:
            a, b, c = gemm.multiply(kernel, *shape)
            torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-1)
        major, minor = torch.cuda.get_device_capability()
        if torch.version.hip is None:
            assert {text.partition("|")[0] for text in choice_log()} == {f"sm{major}{minor}"}


def test_what_does_not_fit_on_this_device_is_passed_over(gemm):
    import triton

    def kernel():
        return triton.autotune(gemm.TOO_LARGE_FIRST, key=["M", "N", "K"])(gemm.gemm_kernel)

    policy = {"mode": "pinned", "modules": [gemm.__name__]}
    with use_policy(policy), pytest.raises(Exception, match=r"out of resource|shared memory"):
        gemm.multiply(kernel(), 512, 512, 512)
    with use_policy(policy | {"on_miss": "launchable"}):
        a, b, c = gemm.multiply(kernel(), 512, 512, 512)
        torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-1)
        assert choice_sources() == {f"{gemm.__name__}.gemm_kernel": {"launchable": 1}}
        assert ";pinned;passed over 1/" in next(iter(choice_log().values()))


def launch_us(kernel, x, out, launches=500):
    """Host time of a launch: the device is never the limit of so small a kernel."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(launches):
        kernel[1,](x, out, 128)
    seconds = time.perf_counter() - begin
    torch.cuda.synchronize()
    return seconds / launches * 1e6


@pytest.mark.parametrize("modules", ["in scope", "out of scope"])
def test_a_launch_costs_what_it_costs_without_us(gemm, modules):
    policy = {"mode": "pinned", "modules": [gemm.__name__] if modules == "in scope" else []}
    x = torch.ones(128, device="cuda")
    out = torch.empty_like(x)
    kernel = gemm.scale()
    launch_us(kernel, x, out)
    ratios, ours = [], []
    for _ in range(40):
        plain = launch_us(kernel, x, out)
        with use_policy(policy):
            launch_us(kernel, x, out, 5)
            ours.append(launch_us(kernel, x, out))
        ratios.append(ours[-1] / ((plain + launch_us(kernel, x, out)) / 2))
    ratio = statistics.median(ratios)
    print(f"{modules}: {statistics.median(ours):.2f} us a launch, {ratio:.4f} of plain Triton")
    assert ratio < 1.03


@pytest.mark.parametrize("size", [1, 2])
def test_nccl_ranks_agree_and_are_told_when_they_don_t(tmp_path, size):
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs")
    command = [sys.executable, "-m", "op_tests.gpu.nccl_rank", str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size)], stdout=subprocess.PIPE, text=True) for rank in range(size)
    ]
    said = [rank.communicate(timeout=100)[0].splitlines()[-1] for rank in ranks]
    assert said == [str([True, True, "raised" if size > 1 else True])] * size
