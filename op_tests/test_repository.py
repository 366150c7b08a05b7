"""What holds for the repository as a whole: its layout, what an import costs, which way imports go."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from aiter_tuning.families import family_names, find_family

ROOT = Path(__file__).resolve().parents[1]
LAID_OUT = {
    *("aiter_tuning", "op_tests", "configs", "tuned_csv", "tools", "docs", ".ci"),
    *("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore"),
}
HEAVY = ("torch", "triton", "pandas", "numpy", "rich", "scipy")


def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def sources() -> list[Path]:
    return sorted((ROOT / "aiter_tuning").rglob("*.py"))


def loaded_after(code: str) -> set[str]:
    report = f"import sys; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(re.findall(r"\w+", done.stdout.splitlines()[-1]))


def test_nothing_strays_at_the_top_level():
    assert {path.split("/")[0] for path in tracked()} <= LAID_OUT


def test_no_result_of_a_run_is_tracked_but_shipped_tables_and_why_their_rows_are_there():
    left = [path for path in tracked() if path.endswith((".checkpoint.csv", ".evidence.jsonl", ".pyc"))]
    assert [path for path in left if not re.fullmatch(r"tuned_csv/\w+_tuned\.evidence\.jsonl", path)] == []


def test_tests_mirror_the_package():
    parts = {path.stem for path in (ROOT / "aiter_tuning").iterdir()} | {"tools", "gpu"}
    folders = {path.parent for path in (ROOT / "op_tests").rglob("test_*.py")} - {ROOT / "op_tests"}
    assert {folder.name for folder in folders} <= parts


def test_no_module_is_named_after_nothing_in_particular():
    vague = {"utils", "util", "helpers", "common", "misc"}
    assert [str(path) for path in sources() if path.stem in vague] == []


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import aiter_tuning") == set()


@pytest.mark.parametrize("vocabulary", ["status", "task", "measurement", "keys", "tuning_policy"])
def test_the_vocabulary_loads_nothing_heavy(vocabulary):
    assert loaded_after(f"import aiter_tuning.{vocabulary}") == set()


def test_reading_and_writing_tables_loads_no_torch():
    assert not {"torch", "triton"} & loaded_after("import aiter_tuning.tables.checkpoint, aiter_tuning.tables.tuned")


def test_imports_go_downwards_only():
    # --no-cache: a cache left by a run as another user, or in a read-only checkout, is no business of this test
    linter = Path(sys.executable).with_name("lint-imports")
    if not linter.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_product_names_nothing_outside_itself():
    # what would tie it to the place where it was written
    foreign = re.compile(r"\.\./shared|/work/|/root/|pypi\.org|pythonhosted|download\.pytorch")
    kept = [path for path in tracked() if not path.startswith("op_tests/") and (ROOT / path).is_file()]
    found = [path for path in kept if foreign.search((ROOT / path).read_text(errors="replace"))]
    assert found == []


def test_each_shipped_shape_file_belongs_to_a_family_and_reads():
    shipped = sorted((ROOT / "configs").rglob("*_untuned.csv"))
    assert len(shipped) > len(family_names()), "those of families, and those of models"
    for path in shipped:
        (name,) = [name for name in family_names() if path.name.endswith(f"{name}_untuned.csv")]
        key = find_family(name).key
        with path.open(newline="") as file:
            shapes = [tuple(key.parse(row).values()) for row in csv.DictReader(file)]
        assert shapes
        assert len(shapes) == len(set(shapes)), f"{path.name} names a shape twice"


def test_the_command_is_declared_and_answers_help():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"aiter-tune": "aiter_tuning.cli:main"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "aiter_tuning", "--help"], capture_output=True, text=True, env=environment, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert "tune" in done.stdout
