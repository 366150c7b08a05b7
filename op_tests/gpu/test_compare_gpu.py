"""Comparing on a real GPU: good rows stay, slow, wrong and dead ones are replaced, and reruns change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aiter_tuning import Pool
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.evidence import EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv
from aiter_tuning.tuner import TunerCommon
from aiter_tuning.tuner.arguments import TuneArguments
from aiter_tuning.tuner.outcome import ExitCode
from aiter_tuning.tuner.reporter import Silent
from aiter_tuning.tuner.run_config import RunConfig
from op_tests.gpu.faulty_gemm import WRONG, FaultyGemm, padded

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
]

SHAPES = ((16, 4096, 4096), (64, 4096, 4096), (256, 2048, 4096), (512, 4096, 2048))


class Notes(Silent):
    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


@pytest.fixture(scope="module")
def pool():
    with Pool("cuda", 1) as open_pool:
        yield open_pool


@pytest.fixture
def table(tmp_path):
    return tmp_path / "tuned.csv"


@pytest.fixture
def run(pool, table, tmp_path):
    shapes = tmp_path / "shapes.csv"
    shapes.write_text("M,N,K\n" + "".join(f"{m},{n},{k}\n" for m, n, k in SHAPES))

    def tune(reporter=None, **flags):
        args = {"untune_file": str(shapes), "tune_file": str(table), "device": "cuda", **flags}
        return TunerCommon(FaultyGemm()).run(args, reporter, pool=pool)

    return tune


def verdicts(summary):
    return {shape.shape["M"]: str(shape.verdict) for shape in summary.shapes}


def test_a_table_is_mended_by_what_serving_was_seen_to_run_and_then_left_alone(run, pool, table):
    run()
    good = {row.shape["M"]: row for row in TunedCsv(table, FaultyGemm.key).rows()}
    assert set(good) == {16, 64, 256, 512}
    TunedCsv(table, FaultyGemm.key).update(
        [
            replace(good[64], kernelName="padded", config=padded(good[64].config)),
            replace(good[256], kernelName=WRONG, config={"kernel": WRONG}),
            replace(good[512], kernelName="tiled_of_another_release", config={"kernel": "tiled_of_another_release"}),
        ]
    )
    seeded, notes = table.read_bytes(), Notes()

    proposed = run(compare=True)
    assert table.read_bytes() == seeded, "not without --update_improved"
    assert sum(shape.proposed for shape in proposed.shapes) == 3

    summary = run(notes, compare=True, update_improved=True, fresh=True)

    told = verdicts(summary)
    assert told[16] == "retained", summary.shapes
    assert told[64] in ("promoted", "default_reclaimed"), summary.shapes
    assert told[256] == "correctness_fix", summary.shapes
    assert told[512] in ("promoted", "default_reclaimed"), summary.shapes
    assert any("tiled_of_another_release" in text for text in notes.texts)
    rows = {row.shape["M"]: row for row in TunedCsv(table, FaultyGemm.key).rows()}
    assert rows[16] == good[16], "left as it was"
    assert not {"padded", WRONG, "tiled_of_another_release"} & {row.kernelName for row in rows.values()}
    index = EvidenceIndex(read_evidence(evidence_path(table)))
    for m in (64, 256, 512):
        record = index.newest_for(rows[m])
        assert record is not None and record.published and record.served["after"]["us"] > 0
    mended = table.read_bytes()
    for _ in range(3):
        again = run(compare=True, update_improved=True)
        assert not any(shape.proposed for shape in again.shapes), again.shapes
        assert table.read_bytes() == mended
        assert again.exit_code is ExitCode.done
    assert len(read_rows(table).rows) == len(SHAPES)

    arguments = TuneArguments.of({"device": "cuda"}, FaultyGemm())
    benchmark = RunConfig(FaultyGemm(), arguments, str(table)).run(pool=pool)
    assert benchmark.is_ok and all(0 < shape.us < 1000 for shape in benchmark.shapes), benchmark.shapes
