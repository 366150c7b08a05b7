"""A table with evidence and a profile, as a run leaves them."""

import argparse

import pytest

from aiter_tuning.status import Status
from aiter_tuning.tuner import Candidate, TunerCommon
from aiter_tuning.tuner.family_reference import load_family
from op_tests.tuner.conftest import FAMILIES, ScriptedPool

US = {"steady": 100.0, "quick": 90.0, "slow": 180.0}


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Tunes sizes with a scripted pool; returns the table. In size 8 ``quick`` wins, elsewhere it crashes."""
    family = load_family(f"{FAMILIES}:Tiny")
    monkeypatch.setattr(
        type(family), "candidates", lambda self, shape, device: [Candidate(name, {"do": name}) for name in US]
    )

    def script(shape, name, block=0):
        return Status.crash if name == "quick" and shape["N"] != 8 else US[name] * (1 + 0.001 * (block % 3))

    def run(*sizes, name="tuned.csv"):
        shapes, table = tmp_path / "shapes.csv", tmp_path / name
        shapes.write_text("N\n" + "".join(f"{size}\n" for size in sizes))
        args = argparse.Namespace(untune_file=str(shapes), tune_file=str(table))
        TunerCommon(family).run(args, pool=ScriptedPool(script, script))
        return table

    return run
