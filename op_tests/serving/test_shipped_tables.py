"""Tables in the tree's tuned_csv travel in the wheel, and a checkout serves from them wherever it is called from."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from aiter_tuning.serving.places import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


def test_a_wheel_holds_tables_and_their_evidence_and_nothing_else_of_a_run(tmp_path):
    pytest.importorskip("setuptools")
    tree = tmp_path / "tree"
    (tree / "aiter_tuning").mkdir(parents=True)
    (tree / "tuned_csv").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "aiter_tuning/__init__.py"):
        shutil.copy(ROOT / name, tree / name)
    shutil.copy(ROOT / "aiter_tuning/tuned_csv", tree / "aiter_tuning/tuned_csv", follow_symlinks=False)
    for name in ("op_tuned.csv", "op_tuned.evidence.jsonl", "op_tuned.checkpoint.csv", "op_tuned.profile.1.csv"):
        (tree / "tuned_csv" / name).write_text("M\n1\n")
    done = subprocess.run([sys.executable, "-c", BUILD, str(tmp_path)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if "tuned_csv" in name}
    assert names == {"aiter_tuning/tuned_csv/op_tuned.csv", "aiter_tuning/tuned_csv/op_tuned.evidence.jsonl"}


def test_in_a_checkout_the_shipped_tables_are_the_trees():
    assert os.path.samefile(SHIPPED, ROOT / "tuned_csv")
