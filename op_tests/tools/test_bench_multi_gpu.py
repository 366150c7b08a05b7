"""The benchmark of several GPUs, as far as it goes without any: its accounts, and whole runs on lanes of the CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "bench_multi_gpu.py"


@pytest.fixture(autouse=True)
def in_tools(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOL.parent))


def bench(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    env = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run([sys.executable, str(TOOL), *words], capture_output=True, text=True, env=env)


@pytest.mark.parametrize("words", [("--part", "speed"), ("--mp", "two"), ("--mp", "0,1"), ("--mp", "")])
def test_what_makes_no_sense_is_refused_in_one_line(words):
    done = bench(*words)
    assert done.returncode == 2
    assert words[1] in done.stderr.splitlines()[-1]


def test_without_a_gpu_it_ends_4_with_a_clear_line():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = bench()
    assert done.returncode == 4, done.stderr
    assert "GPU" in done.stderr and "Traceback" not in done.stderr


def row(shape, device, second, phase="screen", event="finished"):
    time = f"2026-01-01T00:00:{second:06.3f}Z"
    return {"M": shape, "event": event, "device_uuid": device, "time": time, "phase": phase}


def test_a_profiles_rows_become_shapes_of_lanes():
    from gpu_bench.scaling import lanes_of, moments, seconds_of_shapes

    rows = [
        row("1", "A", 1.0),
        row("1", "A", 2.0),
        row("2", "B", 2.5),
        row("1", "A", 3.0, "finalist:1"),
        row("3", "A", 4.0),
        row("3", "", 4.1, "decision"),
        row("3", "A", 9.0, event="stopped"),
        row("2", "B", 4.5),
        row("4", "A", 5.5),
    ]
    lanes = lanes_of(moments(rows[::-1], ["M"]))
    assert {device: [(span.shape, span.candidates) for span in lane] for device, lane in lanes.items()} == {
        "A": [("1", 2), ("3", 1), ("4", 1)],
        "B": [("2", 2)],
    }
    assert seconds_of_shapes(lanes["A"]) == pytest.approx({"3": 1.0, "4": 1.5})


def test_a_shape_that_changed_its_lane_belongs_to_the_one_that_ended_it():
    from gpu_bench.scaling import lanes_of, moments

    lanes = lanes_of(moments([row("1", "A", 1.0), row("1", "B", 2.0)], ["M"]))
    assert list(lanes) == ["B"]


def lane(*ends):
    from gpu_bench.scaling import Span

    return [Span(name, float(ended), 10) for name, ended in ends]


def test_twice_the_lanes_in_half_the_time_is_linear():
    from gpu_bench.scaling import rate, seconds_of_shapes, share_of_linear

    single = lane(("a", 5), ("b", 6), ("c", 7), ("d", 8), ("e", 9))
    alone = seconds_of_shapes(single)
    assert share_of_linear(alone, [single]) == pytest.approx(1.0)
    two = [lane(("a", 5), ("c", 6), ("e", 7)), lane(("b", 5), ("d", 6))]
    # Lane 2 has nothing to do in the last of its two seconds.
    assert share_of_linear(alone, two) == pytest.approx(3 / 4)
    assert share_of_linear(alone, [lane(("a", 5), ("c", 6)), lane(("b", 5), ("d", 6))]) == pytest.approx(1.0)
    assert share_of_linear(alone, [lane(("a", 5), ("c", 7)), lane(("b", 5), ("d", 7))]) == pytest.approx(0.5)
    assert rate([single]) == pytest.approx(10.0)
    assert rate(two) == pytest.approx(15.0)


def test_a_mix_of_shapes_is_weighed_by_what_each_takes_alone():
    from gpu_bench.scaling import seconds_of_shapes, share_of_linear

    alone = seconds_of_shapes(lane(("a", 9), ("b", 18), ("c", 24), ("d", 30), ("e", 31), ("f", 32)))
    two = [lane(("a", 9), ("c", 15), ("e", 16)), lane(("b", 9), ("d", 15), ("f", 16))]
    assert share_of_linear(alone, two) == pytest.approx(1.0)


def test_lanes_without_a_second_shape_tell_nothing():
    from gpu_bench.scaling import rate, share_of_linear

    assert math.isnan(share_of_linear({}, [lane(("a", 1)), lane(("b", 2))]))
    assert math.isnan(rate([lane(("a", 1)), []]))


@pytest.mark.parametrize(("count", "size"), [(1, 64), (16, 2048), (64, 2048), (64, 1024)])
def test_shapes_are_distinct_alike_and_share_their_binaries(count, size):
    from gpu_bench.scaling import similar_shapes

    shapes = similar_shapes(count, size)
    assert len(set(shapes)) == count
    assert all(side % 16 == 0 and side > 0 for shape in shapes for side in shape)
    work = [math.prod(shape) for shape in shapes]
    assert max(work) < 2 * min(work)


def test_shapes_that_there_are_not_are_refused():
    from gpu_bench.scaling import similar_shapes

    with pytest.raises(ValueError, match="no 64 shapes of about 32"):
        similar_shapes(64, 32)


def test_some_of_a_models_shapes_are_spread_over_it():
    from gpu_bench.scaling import some_of

    assert some_of(range(40), 8) == [0, 5, 10, 15, 20, 25, 30, 35]
    assert some_of(range(3), 8) == [0, 1, 2]


def test_what_is_compiled_meanwhile_is_compiled_by_nobody_else():
    from gpu_bench.jitter import binaries_to_compile, load_of

    groups = load_of(100, 4)
    configs = [json.dumps(task.func.config, sort_keys=True) for group in groups for task in group.tasks]
    assert len(configs) == len(set(configs)) == 100
    assert [len(group.tasks) for group in groups] == [25] * 4
    assert load_of(0, 4) == []
    assert len(load_of(binaries_to_compile(1), 8)) >= 8
    assert 500 < binaries_to_compile(32) < 2000


def test_only_measurements_under_the_load_count():
    from gpu_bench.jitter import account

    results = [
        (Measurement(Status.ok, us, timer="kernel"), counts) for us, counts in ((9, False), (5, True), (5, True))
    ]
    told = account(results, [[100.0] * 10, [2.0] * 98 + [3.0, 40.0], [2.0] * 100])
    assert (told["counted"], told["measurements"], told["launches"]) == (2, 3, 200)
    assert (told["launch_us"], told["launch_999_us"], told["launch_most_us"]) == (2.0, 40.0, 40.0)
    assert (told["kernel_us"], told["kernel_spread_pct"], told["timer"]) == (5, 0.0, "kernel")
    with pytest.raises(SystemExit, match="of 1 measurements none"):
        account(results[:1], [[1.0]])
    with pytest.raises(SystemExit, match="it broke"):
        account([(Measurement.failed(Status.crash, "it broke"), True)], [[]])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lanes_of_the_cpu_scale_in_whole_runs(tmp_path):
    words = ["--part", "w1", "--device", "cpu", "--mp", "1,2", "--shapes", "2", "--size", "32", "--iters", "1"]
    done = bench(*words, "--json", str(tmp_path / "figures.json"), TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr + done.stdout
    figures = json.loads((tmp_path / "figures.json").read_text())
    runs = figures["w1"]["runs"]
    assert [(run["cache"], run["lanes"]) for run in runs] == [
        ("cold", max(figures["lanes"])),
        *(("warm", count) for count in figures["lanes"]),
    ]
    for run in runs:
        assert run["candidates"] == {"ok": 2 * 48}
        assert sum(run["devices"].values()) == 2
        assert run["s"] > run["until_first_verdict_s"] > 0
        assert 0 < run["measured_share"] < 1
    assert runs[1]["of_linear"] == pytest.approx(1.0)
    assert "of linear" in done.stdout


@pytest.mark.slow
def test_launches_are_timed_on_a_lane_of_the_cpu(tmp_path, monkeypatch):
    from gpu_bench.jitter import _condition

    from aiter_tuning.devices.cpu import cpu_lanes
    from aiter_tuning.tuner.family_reference import load_family

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("gpu_bench.jitter.SHAPE", (4, 16, 32))
    config = load_family(f"{ROOT / 'tools' / 'bench_gpu.py'}:W1").default({}, None).config
    told = _condition(cpu_lanes(1), config, 0, 3, tmp_path)
    assert (told["counted"], told["measurements"]) == (3, 4)
    assert told["launches"] == 6 and told["launch_us"] > 0 and told["kernel_us"] > 0
