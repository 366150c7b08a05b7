"""Proving rows in a fresh process: the right ones pass, and whatever is wrong with a row is told of that row alone."""

import dataclasses
import os
import signal

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.families.gemm_cpu import GemmCpu
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner.dispatch_probe import StartedProcess, probe
from aiter_tuning.tuner.family_reference import reference_of
from op_tests.families_for_tests.served import Served

LANE = dataclasses.replace(cpu_lanes(1)[0], memory_bytes=0)
SERVED = reference_of(Served)


def shape(n):
    return {"N": n, "dtype": "fp32"}


def staged(tmp_path, *names, family=Served, shapes=None, device=LANE):
    """A table with one row for each name, for N = 1, 2, …"""
    shapes = shapes or [shape(n) for n in range(1, len(names) + 1)]
    table = TunedCsv(tmp_path / "staged.csv", family.key)
    table.update(
        TunedRow(device.gfx, device.cu_num, device.gpu_model, one, 0, 0, 5.0, name, config={"do": name})
        for one, name in zip(shapes, names, strict=True)
    )
    return table.path


def test_each_row_is_served_once_and_told_apart(tmp_path):
    names = ["quick", "wrong", "raises", "nope", "dies", "quick", "silent"]
    other = dataclasses.replace(LANE, cu_num=LANE.cu_num + 3)
    staged(tmp_path, "quick", shapes=[shape(100)], device=other)
    table = staged(tmp_path, *names)
    results = probe(SERVED, table, [shape(n) for n in (*range(1, 9), 100)], LANE)
    assert [one.shape["N"] for one in results] == [*range(1, 9), 100]
    assert [one.verified for one in results] == [True, False, False, False, False, True, False, False, False]
    right, wrong, raises, nope, dies, again, silent, absent, elsewhere = results
    assert (right.chosen, right.config, right.err_ratio, right.reason) == ("quick", {"do": "quick"}, 0.0, "")
    assert wrong.chosen == "wrong" and wrong.err_ratio == 1.0 and wrong.reason.startswith("its result is wrong")
    assert raises.chosen == "raises" and "fell back to the default: RuntimeError" in raises.reason
    assert nope.chosen is None and "has no kernel 'nope'" in nope.reason
    assert "exited with code 9" in dies.reason and "farewell" in dies.reason
    assert again.verified
    assert silent.reason == "its public operator did not look this shape up"
    assert "in the nearest one N is 7 there, 8 here" in absent.reason
    assert f"cu_num is {other.cu_num} there, {LANE.cu_num} here" in elsewhere.reason, "a row for another device"


def test_a_row_that_hangs_is_killed_and_costs_only_itself(tmp_path):
    table = staged(tmp_path, "hangs", "quick")
    hung, right = probe(SERVED, table, [shape(1), shape(2)], LANE, row_timeout_s=4.0)
    assert not hung.verified and hung.reason == "it took more than 4 s to serve it"
    assert right.verified


def test_a_process_that_never_reads_what_it_is_asked_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("aiter_tuning.tuner.dispatch_probe.START_TIMEOUT_S", 0.3)
    monkeypatch.setattr("aiter_tuning.tuner.dispatch_probe._STARTS_WITHOUT_A_ROW", 1)
    deaf = StartedProcess(LANE)
    os.kill(deaf.process.pid, signal.SIGSTOP)
    shapes = [shape(n) for n in range(5000)]  # more than a pipe takes at once
    results = probe(SERVED, staged(tmp_path, "quick"), shapes, LANE, started=deaf)
    assert {one.reason for one in results} == {"not tried: it took more than 0.3 s until its process came to a row"}
    assert deaf.process.returncode == -signal.SIGKILL


def test_a_family_that_cannot_be_loaded_verifies_nothing_and_says_why(tmp_path):
    (result,) = probe(f"{tmp_path}/gone.py:Gone", staged(tmp_path, "quick"), [shape(1)], LANE)
    assert not result.verified and "gone.py" in result.reason


def test_a_stopped_run_waits_for_no_row(tmp_path):
    (result,) = probe(SERVED, staged(tmp_path, "hangs"), [shape(1)], LANE, stop=lambda: True)
    assert not result.verified and result.reason == "not tried: the run was stopped"


def test_nothing_to_prove_starts_no_process(tmp_path):
    assert probe(SERVED, tmp_path / "none.csv", [], LANE) == []


def test_the_operator_of_gemm_cpu_serves_what_the_table_says(tmp_path, monkeypatch):
    monkeypatch.setenv("AITER_TUNE_RECORD", str(tmp_path / "misses"))
    four, eight, five = ({"M": m, "N": 64, "K": 32, "dtype": "fp32", "bias": True} for m in (4, 8, 5))
    table = TunedCsv(tmp_path / "staged.csv", GemmCpu.key)
    table.update(
        TunedRow(LANE.gfx, LANE.cu_num, LANE.gpu_model, size, 0, 0, 5.0, name, config=config)
        for size, name, config in (
            (four, "onednn_packed", {"kernel": "onednn_packed"}),
            (eight, "split_n2", {"kernel": "split_n", "parts": 2}),
        )
    )
    packed, split, absent = probe(reference_of(GemmCpu), table.path, [four, eight, five], LANE)
    assert (packed.verified, packed.chosen, packed.reason) == (True, "onednn_packed", "")
    assert (split.verified, split.chosen, split.reason) == (True, "split_n2", "")
    assert not absent.verified and "M is 4 there, 5 here" in absent.reason
    assert not os.path.exists(tmp_path / "misses"), "a probe's misses are nobody's"
