"""Proving rows in a fresh process: the right ones pass, and whatever is wrong with a row is told of that row alone."""

import dataclasses
import os

import pytest

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.families.gemm_cpu import GemmCpu
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner.dispatch_probe import probe
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
    table = staged(tmp_path, *names)
    results = probe(SERVED, table, [shape(n) for n in range(1, 9)], LANE)
    assert [one.shape["N"] for one in results] == list(range(1, 9))
    assert [one.verified for one in results] == [True, False, False, False, False, True, False, False]
    right, wrong, raises, nope, dies, again, silent, absent = results
    assert (right.chosen, right.config, right.err_ratio, right.reason) == ("quick", {"do": "quick"}, 0.0, "")
    assert wrong.chosen == "wrong" and wrong.err_ratio == 1.0 and wrong.reason.startswith("its result is wrong")
    assert raises.chosen == "raises" and "fell back to the default: RuntimeError" in raises.reason
    assert nope.chosen is None and "has no kernel 'nope'" in nope.reason
    assert "exited with code 9" in dies.reason and "farewell" in dies.reason
    assert again.verified
    assert silent.reason == "its public operator did not look this shape up"
    assert "in the nearest one N is 7 there, 8 here" in absent.reason


def test_a_row_for_another_device_is_not_found_and_the_field_is_named(tmp_path):
    other = dataclasses.replace(LANE, cu_num=LANE.cu_num + 3)
    table = staged(tmp_path, "quick", device=other)
    (result,) = probe(SERVED, table, [shape(1)], LANE)
    assert not result.verified
    assert f"cu_num is {other.cu_num} there, {LANE.cu_num} here" in result.reason


def test_a_row_that_hangs_is_killed_and_costs_only_itself(tmp_path):
    table = staged(tmp_path, "hangs", "quick")
    hung, right = probe(SERVED, table, [shape(1), shape(2)], LANE, row_timeout_s=4.0)
    assert not hung.verified and hung.reason == "it took more than 4 s to serve it"
    assert right.verified


def test_a_family_that_cannot_be_loaded_verifies_nothing_and_says_why(tmp_path):
    (result,) = probe(f"{tmp_path}/gone.py:Gone", staged(tmp_path, "quick"), [shape(1)], LANE)
    assert not result.verified and "gone.py" in result.reason


def test_a_stopped_run_waits_for_no_row(tmp_path):
    (result,) = probe(SERVED, staged(tmp_path, "hangs"), [shape(1)], LANE, stop=lambda: True)
    assert not result.verified and result.reason == "not tried: the run was stopped"


def test_nothing_to_prove_starts_no_process(tmp_path):
    assert probe(SERVED, tmp_path / "none.csv", [], LANE) == []


@pytest.mark.parametrize("kernel", ["onednn_packed", "split_n"])
def test_the_operator_of_gemm_cpu_serves_what_the_table_says(tmp_path, kernel, monkeypatch):
    monkeypatch.setenv("AITER_TUNE_RECORD", str(tmp_path / "misses"))
    size = {"M": 4, "N": 64, "K": 32, "dtype": "fp32", "bias": True}
    name, config = (kernel, {"kernel": kernel}) if kernel != "split_n" else ("split_n2", {"kernel": kernel, "parts": 2})
    table = TunedCsv(tmp_path / "staged.csv", GemmCpu.key)
    table.update([TunedRow(LANE.gfx, LANE.cu_num, LANE.gpu_model, size, 0, 0, 5.0, name, config=config)])
    found, absent = probe(reference_of(GemmCpu), table.path, [size, {**size, "M": 5}], LANE)
    assert (found.verified, found.chosen, found.reason) == (True, name, "")
    assert not absent.verified and "M is 4 there, 5 here" in absent.reason
    assert not os.path.exists(tmp_path / "misses"), "a probe's misses are nobody's"
