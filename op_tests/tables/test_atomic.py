"""Replacing a file: the old one or the new one, whole, whatever happens in between."""

from __future__ import annotations

import os
import stat

import pytest

from aiter_tuning.tables.atomic import atomic_write


def test_a_new_file_has_the_usual_mode_and_nothing_beside_it(tmp_path):
    umask = os.umask(0o027)
    try:
        atomic_write(tmp_path / "new.csv", "M\né\n")
    finally:
        os.umask(umask)
    assert (tmp_path / "new.csv").read_text(encoding="utf-8") == "M\né\n"
    assert stat.S_IMODE((tmp_path / "new.csv").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["new.csv"]


def test_the_mode_of_the_file_is_kept(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text("old")
    path.chmod(0o604)
    atomic_write(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o604)


def test_a_link_stays_a_link_and_its_target_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    target = tmp_path / "real" / "table.csv"
    target.write_text("old")
    (tmp_path / "link.csv").symlink_to(target)
    atomic_write(tmp_path / "link.csv", "new")
    assert (tmp_path / "link.csv").is_symlink()
    assert target.read_text() == "new"


def test_a_reader_that_has_it_open_keeps_the_old_one(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with path.open() as reader:
        atomic_write(path, "new")
        assert reader.read() == "old"


def test_a_full_disk_leaves_the_file_as_it_was_and_nothing_beside_it(small_disk, fill_disk):
    path = small_disk / "table.csv"
    path.write_text("old\n")
    fill_disk(small_disk, leave=2)
    with pytest.raises(OSError, match="No space left"):
        atomic_write(path, "x" * 20_000)
    assert path.read_text() == "old\n"
    assert sorted(os.listdir(small_disk)) == ["hog", "table.csv"]
    atomic_write(path, "it fits\n")
    assert path.read_text() == "it fits\n"


def test_a_missing_folder_is_the_caller_s_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        atomic_write(tmp_path / "none" / "table.csv", "x")


REPLACE_FOR_EVER = """
import sys
from aiter_tuning.tables.atomic import atomic_write
print("ready")
for i in range(10**9):
    atomic_write(sys.argv[1], f"{i % 10}" * 40_000)
"""


def test_a_killed_writer_leaves_a_whole_file(tmp_path, program):
    path = tmp_path / "table.csv"
    for _ in range(5):
        writer = program(REPLACE_FOR_EVER, path)
        assert writer.line() == "ready"
        seen = set()
        while len(seen) < 3:  # it is in the midst of it
            try:
                seen.add(path.read_text()[:1])
            except FileNotFoundError:
                continue
        writer.kill()
        text = path.read_text()
        assert len(text) == 40_000
        assert len(set(text)) == 1


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"):
        atomic_write(pipe, "text")
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
