"""What only the operator can tell about its tables: kernels that are gone, foreign archs, shapes that it buckets."""

from __future__ import annotations

import json

import pytest

from aiter_tuning.families.gemm_bf16 import GemmBf16
from aiter_tuning.tables.checking import Target, check_tables
from aiter_tuning.tables.evidence import append_evidence
from aiter_tuning.tables.evidence_record import Evidence, Timed
from aiter_tuning.tables.findings import Code
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tables.tuned_row import TunedRow
from aiter_tuning.tuner.catalogue import check_catalogue, kind_of_arch, untuned_sibling
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.fingerprint import candidate_fingerprints

CPU = ("x86-64-v4", 2, "Some CPU")
HERE = {"torch": "2.13.0", "triton": "3.9.0"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tiny_tuned.csv"


@pytest.fixture(scope="module")
def family():
    return load_family("op_tests.families_for_tests.tiny:Tiny")


def row(n=8, kernel="quick", device=CPU, **changes):
    shape = {"N": n, "dtype": "fp32"}
    return TunedRow(*device, shape, 0, 0, 9.0, kernel, **{"config": {"do": kernel}, **changes})


def findings(family, *paths, versions=HERE, target=None):
    checked = check_tables(paths, family.key, target=target)
    assert checked.findings == []
    return check_catalogue(family, checked, versions=versions, target=target)


def test_rows_of_kernels_that_the_family_offers_are_in_order(family, path):
    TunedCsv(path, family.key).update([row(8), row(16, "steady")])
    assert findings(family, path) == []


def test_kernels_that_were_renamed_are_told_row_by_row(family, path):
    """49 rows named kernels that were gone, and served the default for months."""
    TunedCsv(path, family.key).update([row(n, f"old_quick{n}") for n in range(1, 50)] + [row(64)])
    found = findings(family, path)
    assert [finding.code for finding in found] == [Code.unknown_kernel] * 49
    assert {finding.facts["kernel"] for finding in found} == {f"old_quick{n}" for n in range(1, 50)}
    assert "tiny has no kernel old_quick1 for this shape; tune it again" in str(found[0])


def test_a_row_without_a_kernel_is_told(family, path):
    path.write_text("gfx,cu_num,gpu_model,N,us\nx86-64-v4,2,Some CPU,8,1.5\n")
    (finding,) = findings(family, path)
    assert "no kernel (blank)" in finding.message


def test_a_kernel_whose_config_is_another_one_today_is_told(family, path):
    TunedCsv(path, family.key).update([row(config={"do": "quick", "block": 64})])
    (finding,) = findings(family, path)
    assert finding.code is Code.changed_config
    assert 'is {"do":"quick"} today, not {"block":64,"do":"quick"}' in finding.message


def test_a_row_for_an_arch_that_the_family_does_not_run_on_is_told(family, path):
    TunedCsv(path, family.key).update([row(device=("gfx942", 304, "MI300X")), row()])
    (finding,) = findings(family, path)
    assert (finding.code, finding.message) == (
        Code.foreign_arch,
        "tiny does not run on gfx942; it runs on cpu; delete the row",
    )


@pytest.mark.parametrize(
    ("gfx", "kind"),
    [("sm90", "cuda"), ("sm100a", "cuda"), ("gfx942:xnack-", "hip"), ("x86-64-v4", "cpu"), ("smt", "cpu")],
)
def test_an_arch_tells_the_kind_of_its_device(gfx, kind):
    assert kind_of_arch(gfx) == kind


def test_a_gpu_family_is_asked_on_a_machine_without_that_gpu(tmp_path):
    family, path = GemmBf16(), tmp_path / "gemm_bf16_tuned.csv"
    shape = {"M": 64, "N": 4096, "K": 4096}
    from aiter_tuning.devices.device import Device

    for gfx, cu_num in (("sm90", 132), ("gfx942", 304)):
        candidates = family.candidates(family.key.parse(shape), Device("", "", "", gfx, cu_num, ""))
        one = candidates[-1]
        TunedCsv(path, family.key).update(
            [TunedRow(gfx, cu_num, "some", shape, one.kernel_id, one.split_k, 9.0, one.name, config=one.config)]
        )
    assert findings(family, path) == []
    TunedCsv(path, family.key).update([TunedRow("gfx942", 304, "some", shape, 0, 0, 9.0, "tiled_1x1x1_w1_s1")])
    assert [finding.code for finding in findings(family, path)] == [Code.unknown_kernel]


def test_a_family_that_has_no_candidates_for_a_row_says_why_once(tmp_path):
    family, path = GemmBf16(), tmp_path / "gemm_bf16_tuned.csv"
    rows = [TunedRow("sm90", 132, "", {"M": m, "N": 2, "K": 3, "dtype": "fp32"}, 0, 0, 9.0, "linear") for m in (1, 2)]
    TunedCsv(path, family.key).update(rows)
    (finding,) = findings(family, path)
    assert "gemm_bf16 computes bf16 and fp16, not fp32" in finding.message


# What evidence tells


def record(family, n=8, kernel="quick", **changes):
    side = Timed(kernel, {"do": kernel}, 9.0)
    candidate = next(c for c in family.candidates({"N": n, "dtype": "fp32"}, None) if c.name == kernel)
    fields = {
        "versions": dict(HERE),
        "fingerprints": {"run": "r", "winner": candidate_fingerprints(family, [candidate])[kernel]},
        "began": "2026-01-01T00:00:00+00:00",
        "ended": "2026-01-01T00:00:01+00:00",
    }
    key = {"gfx": CPU[0], "cu_num": CPU[1], "gpu_model": CPU[2], "N": n, "dtype": "fp32"}
    told = ("promote", "faster", True, True, 5.0, 3.0, 0.5, side, side, side, "CPU-0", "wall")
    return Evidence(family.name, key, *told, **{**fields, **changes})


def test_a_row_measured_under_what_is_installed_here_is_in_order(family, path):
    TunedCsv(path, family.key).update([row()])
    append_evidence(path, [record(family)])
    assert findings(family, path) == []


def test_a_row_measured_under_another_version_is_told_with_both(family, path):
    TunedCsv(path, family.key).update([row(), row(16)])
    append_evidence(path, [record(family, versions={"triton": "3.6.0"}), record(family, 16)])
    (finding,) = findings(family, path)
    assert (finding.code, finding.line) == (Code.stale, 2)
    assert finding.message == "triton 3.6.0 -> 3.9.0 since it was measured; tune again"
    assert finding.facts == {"version_of": "triton", "measured_under": "3.6.0", "installed": "3.9.0"}


def test_a_row_measured_under_other_versions_of_several_packages_is_one_finding(family, path):
    TunedCsv(path, family.key).update([row()])
    append_evidence(path, [record(family, versions={"triton": "3.6.0", "torch": "2.11.0"})])
    (finding,) = findings(family, path)
    assert finding.message.startswith("torch 2.11.0 -> 2.13.0, triton 3.6.0 -> 3.9.0 since it was measured")
    assert finding.facts == {
        "version_of": "torch, triton",
        "measured_under": "2.11.0, 3.6.0",
        "installed": "2.13.0, 3.9.0",
    }


@pytest.mark.parametrize("unknown", ["", "unknown", "None", " null "])
def test_a_version_that_nobody_knew_is_no_reason_to_distrust_a_row(family, path, unknown):
    """One machine wrote 'unknown', and its whole cache was unusable for ever."""
    TunedCsv(path, family.key).update([row()])
    append_evidence(path, [record(family, versions={"triton": unknown, "torch": "2.13.0"})])
    assert findings(family, path) == []
    assert findings(family, path, versions={"triton": unknown}) == []


def test_versions_of_what_only_one_side_names_are_not_compared(family, path):
    """A file was thrown away because the set of its validators depended on which operators had run."""
    TunedCsv(path, family.key).update([row()])
    append_evidence(path, [record(family, versions={"hipblaslt": "1.0", "torch": "2.13.0"})])
    assert findings(family, path) == []


def test_a_kernel_whose_code_changed_since_is_told(family, path):
    TunedCsv(path, family.key).update([row()])
    append_evidence(path, [record(family, fingerprints={"run": "r", "winner": "000000000000"})])
    (finding,) = findings(family, path)
    assert finding.code is Code.stale
    assert "the code or config of quick has changed since (000000000000, now " in finding.message


# Shapes


def test_shapes_that_another_one_serves_are_told_in_tables_and_in_files_of_shapes(tmp_path):
    family = load_family("op_tests.families_for_tests.tiny:Bucketed")
    tuned, untuned = tmp_path / "bucketed_tuned.csv", tmp_path / "bucketed_untuned.csv"
    TunedCsv(tuned, family.key).update([row(96), row(128)])
    untuned.write_text("N\n96\n128\n")
    found = findings(family, tuned, untuned)
    assert [(finding.code, finding.path, finding.line) for finding in found] == [
        (Code.bucketed, tuned, 2),
        (Code.bucketed, untuned, 2),
    ]
    assert "N=96 dtype=fp32 is served by N=128 dtype=fp32, which is what a run tunes" in found[0].message


def test_shapes_of_the_sibling_without_a_row_are_told_for_each_device(family, tmp_path):
    tuned, untuned = tmp_path / "tiny_tuned.csv", tmp_path / "tiny_untuned.csv"
    TunedCsv(tuned, family.key).update([row(8), row(8, device=("x86-64-v3", 4, "Other")), row(16)])
    untuned.write_text("N\n8\n16\n32\n")
    found = findings(family, tuned, untuned)
    assert [(finding.code, finding.facts["device"], len(finding.facts["shapes"])) for finding in found] == [
        (Code.untuned, "x86-64-v3/4 Other", 2),
        (Code.untuned, "x86-64-v4/2 Some CPU", 1),
    ]
    assert found[0].message == "2 shapes (N=16 dtype=fp32; N=32 dtype=fp32) without a row on x86-64-v3/4 Other"
    (only,) = findings(family, tuned, untuned, target=Target("x86-64-v4", 2))
    assert only.line == 4


def test_the_sibling_lies_beside_its_table_or_in_configs(family, tmp_path):
    (tmp_path / "tuned_csv").mkdir()
    (tmp_path / "configs").mkdir()
    for folder in ("", "tuned_csv"):
        TunedCsv(tmp_path / folder / "tiny_tuned.csv", family.key).update([row()])
    (beside, apart) = check_tables(
        [tmp_path / "tiny_tuned.csv", tmp_path / "tuned_csv" / "tiny_tuned.csv"], family.key
    ).tuned
    assert untuned_sibling(beside) is None
    (tmp_path / "tiny_untuned.csv").touch()
    (tmp_path / "configs" / "tiny_untuned.csv").touch()
    assert untuned_sibling(beside) == tmp_path / "tiny_untuned.csv"
    assert untuned_sibling(apart).resolve() == (tmp_path / "configs" / "tiny_untuned.csv").resolve()


def test_a_finding_is_json(family, path):
    TunedCsv(path, family.key).update([row(kernel="gone")])
    (finding,) = findings(family, path)
    assert json.loads(json.dumps(finding.as_json()))["kernel"] == "gone"
