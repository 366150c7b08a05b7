"""Where tables are looked for, and which of several places answers."""

import os
from pathlib import Path

import pytest

from aiter_tuning.serving import bind, places
from aiter_tuning.serving.places import named_places, split_paths, usual_places, variable_of
from op_tests.serving.scaled import line, write_table

pytestmark = pytest.mark.usefixtures("every_time")


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    directory = tmp_path / "shipped"
    monkeypatch.setattr(places, "SHIPPED", directory)
    return directory


def write(directory, family, *lines):
    directory.mkdir(parents=True, exist_ok=True)
    return write_table(directory / f"{family.name}_tuned.csv", *lines)


def test_the_users_row_wins_over_the_trees_and_that_over_the_packages(scaled, tmp_path, shipped):
    tuned = bind(scaled)
    assert tuned(64, 64) is None
    write(shipped, scaled, line(64, us=3.0), line(65, us=3.0), line(66, us=3.0))
    assert tuned(64, 64).us == 3.0
    write(Path("tuned_csv"), scaled, line(64, us=20.0), line(65, us=20.0))
    assert tuned(64, 64).us == 20.0
    write(tmp_path / "data/aiter_tuning", scaled, line(64, us=10.0))
    assert [tuned(m, 64).us for m in (64, 65, 66)] == [10.0, 20.0, 3.0]


def test_a_users_row_that_cannot_serve_leaves_the_next_place_to_answer(scaled, tmp_path, shipped, said):
    write(shipped, scaled, line(64, us=3.0))
    write(tmp_path / "data/aiter_tuning", scaled, line(64, us=1.0, kernel="nope"))
    assert bind(scaled)(64, 64).us == 3.0
    assert len(said("has no kernel 'nope'")) == 1


def test_the_variable_names_the_tables_and_no_others_count_then(scaled, tmp_path, shipped, monkeypatch):
    write(shipped, scaled, line(64, us=3.0), line(65, us=3.0))
    first = write_table(tmp_path / "a.csv", line(64, us=9.0))
    second = write_table(tmp_path / "b.csv", line(66, us=8.0))
    tuned = bind(scaled)
    assert tuned(64, 64).us == 3.0
    monkeypatch.setenv(variable_of(scaled.name), os.pathsep.join(map(str, (first, second))))
    assert [found and found.us for found in (tuned(64, 64), tuned(65, 64), tuned(66, 64))] == [9.0, None, 8.0]
    monkeypatch.delenv(variable_of(scaled.name))
    assert tuned(64, 64).us == 3.0


def test_an_argument_wins_over_the_variable(scaled, tmp_path, monkeypatch):
    monkeypatch.setenv(variable_of(scaled.name), str(write_table(tmp_path / "a.csv", line(64, us=9.0))))
    given = write_table(tmp_path / "b.csv", line(64, us=8.0))
    assert bind(scaled, given)(64, 64).us == 8.0


def test_variables_are_named_after_the_family():
    assert variable_of("gemm_bf16") == "AITER_TUNING_TUNED_GEMM_BF16"
    assert variable_of("my-op.2") == "AITER_TUNING_TUNED_MY_OP_2"


def test_paths_come_as_one_text_a_path_or_a_list():
    assert split_paths(f"a.csv{os.pathsep} b.csv {os.pathsep}") == (Path("a.csv"), Path("b.csv"))
    assert split_paths(Path("a.csv")) == (Path("a.csv"),)
    assert split_paths(["a.csv", Path("b.csv"), "a.csv"]) == (Path("a.csv"), Path("b.csv"))
    assert named_places("op", ("a.csv",)) == ((Path("a.csv"),),)


def test_a_checkout_that_is_also_the_working_directory_is_asked_once(monkeypatch):
    Path("tuned_csv").mkdir()
    monkeypatch.setattr(places, "SHIPPED", Path("tuned_csv").absolute())
    directories = [group[0].parent.name for group in usual_places("op")]
    assert directories == ["aiter_tuning", "tuned_csv"]


def test_a_user_without_a_home_has_no_directory_of_his_own(monkeypatch):
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert len(usual_places("op")) == 2


def test_a_deleted_working_directory_is_no_error(scaled, tmp_path, shipped, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    write(shipped, scaled, line(64, us=3.0))
    assert bind(scaled)(64, 64).us == 3.0
