"""A table with slow, wrong and dead rows among good ones, mended through the command line; on a GPU see
``op_tests/gpu/test_compare_command_gpu.py``."""

import json

import pytest

from aiter_tuning.tuner import Candidate
from op_tests.cli.conftest import ROOT, write_shapes
from op_tests.families_for_tests.compared import Compared
from op_tests.seeded_table import GONE, Ran, Seed, check_mended, check_unchanged, mend, seed_table, slower

COMPARED = ROOT / "op_tests" / "families_for_tests" / "compared.py"
WRONG = Candidate("wrong", {"do": "wrong"}, kernel_id=3)
WORDS = ("tune", f"{COMPARED}:Compared", "-i", "shapes.csv", "-o", "out.csv", "--warmup", "1", "--iters", "9")


def test_bad_rows_are_replaced_good_ones_stay_and_reruns_change_nothing(run_here, tmp_path):
    write_shapes(tmp_path, (8, 16, 32, 64))

    table = tmp_path / "out.csv"

    mend(lambda *words: Ran(*run_here(*words)), Compared(), WRONG, table, tune=WORDS, compare=WORDS, reruns=1)


def test_seeds_are_what_they_are_called_and_a_table_that_nobody_mended_is_told(run_here, tmp_path):
    write_shapes(tmp_path, (8, 16, 32, 64))
    table = tmp_path / "out.csv"
    assert run_here(*WORDS, "--probe", "False", "--confirm", "False").returncode == 0
    tuned = table.read_bytes()

    seeded = seed_table(table, Compared(), WRONG)

    kinds = {shape[0]: kind for shape, kind in seeded.seeds.items()}
    kernels = {kinds[shape[0]]: row.kernelName for shape, row in seeded.rows.items()}
    assert kernels == {Seed.good: "quick", Seed.slow: "fair", Seed.wrong: "wrong", Seed.gone: GONE}
    assert len(set(tuned.splitlines()) & set(table.read_bytes().splitlines())) == 2, "the header and the good row"

    def told(**fields):
        shapes = [{"shape": {"N": n, "dtype": "fp32"}, "verdict": "retained", "published": False} for n in kinds]
        return Ran(0, json.dumps({"shapes": [shape | fields for shape in shapes]}), "")

    with pytest.raises(AssertionError, match='"seed": "slow"'):
        check_mended(seeded, told())
    with pytest.raises(AssertionError, match='"proposed": true'):
        check_unchanged(table, table.read_bytes(), told(proposed=True))
    with pytest.raises(AssertionError, match="byte for byte"):
        check_unchanged(table, tuned, told(proposed=False))


def test_of_slower_candidates_that_which_is_clearly_and_not_absurdly_slower_is_taken():
    us = {"best": 100.0, "close": 109.0, "slow": 112.0, "slower": 124.0, "absurd": 900.0}

    assert slower(us, "best") == ("slower", 124.0)
    with pytest.raises(AssertionError, match=r"no candidate is 10\.0 % slower"):
        slower({"best": 100.0, "close": 109.0}, "best")
