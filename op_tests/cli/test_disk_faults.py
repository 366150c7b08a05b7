"""Full, read-only, vanished and foreign: what a disk may do to a run, before it begins and in its midst.

Whatever happens, the table is as it was or has more rows, what was measured is in the checkpoint, and the exit code is
2 where nothing was begun and 5 where something was. Real file systems, and in the midst of a run a real worker.
"""

import argparse
import os
import shutil
import subprocess

import pytest

from aiter_tuning.cli import main
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner import TunerCommon
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.outcome import ExitCode
from op_tests.cli.conftest import TINY

OTHER = TunedRow("sm90", 132, "H200", {"N": 999, "dtype": "fp32"}, 1, 0, 5.0, "quick", config={"do": "quick"})
"""A row of another device, which no run here has to do with."""

WITHOUT_POWERS = ["setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search,-fowner"]
"""Root, bound by permissions as everybody is."""
NOBODY = 65534


def files(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != "hog" and not path.name.endswith(".lock"))


# Before any work


@pytest.fixture
def refused(tmp_path, capsys):
    """Runs ``aiter-tune tune`` into a file; it has to end with 2 and one line, which is returned."""

    def run(out, *flags):
        (tmp_path / "shapes.csv").write_text("N\n8\n")
        code = main(["tune", f"{TINY}:Tiny", "-i", str(tmp_path / "shapes.csv"), "-o", str(out), *flags])
        said = capsys.readouterr()
        assert (code, said.out) == (2, "")
        (line,) = said.err.splitlines()
        return line

    return run


def test_a_read_only_file_system_is_found_before_any_work(disk, refused):
    TunedCsv(disk.path / "out.csv", load_family(f"{TINY}:Tiny").key).update([OTHER])
    before = (disk.path / "out.csv").read_bytes()
    disk.make_read_only()

    assert "cannot be written, Read-only file system" in refused(disk.path / "out.csv")
    assert (disk.path / "out.csv").read_bytes() == before
    assert files(disk.path) == ["out.csv"]


def test_a_missing_directory_is_found_before_any_work_and_not_made(tmp_path, refused):
    assert "there is no directory" in refused(tmp_path / "none" / "out.csv")
    assert not (tmp_path / "none").exists()


def test_a_disk_without_room_for_a_checkpoint_is_found_before_any_work(disk, refused):
    TunedCsv(disk.path / "out.csv", load_family(f"{TINY}:Tiny").key).update([OTHER])
    before = (disk.path / "out.csv").read_bytes()
    disk.fill()

    assert "the checkpoint cannot be opened, No space left on device" in refused(disk.path / "out.csv")
    assert (disk.path / "out.csv").read_bytes() == before
    assert files(disk.path) == ["out.csv"]


@pytest.fixture
def bound(command, tmp_path):
    """``aiter-tune tune`` by somebody who is bound by permissions."""
    if subprocess.run([*WITHOUT_POWERS, "true"], capture_output=True).returncode:
        pytest.skip("privileges cannot be dropped here")

    def run(out):
        (tmp_path / "shapes.csv").write_text("N\n8\n")
        words = ("tune", f"{TINY}:Tiny", "-i", "shapes.csv", "-o", out)
        process = command(*words, limit=WITHOUT_POWERS)
        _, err = process.communicate()
        return process.returncode, err

    return run


@pytest.mark.parametrize("what", ["directory", "table", "checkpoint", "lock"])
def test_what_belongs_to_somebody_else_is_found_before_any_work(bound, tmp_path, what):
    directory = tmp_path / "theirs"
    directory.mkdir()
    TunedCsv(directory / "out.csv", load_family(f"{TINY}:Tiny").key).update([OTHER])
    before = (directory / "out.csv").read_bytes()
    name = {"table": "out.csv", "checkpoint": "out.checkpoint.csv", "lock": ".out.csv.lock"}.get(what, ".")
    target = directory / name
    target.touch()
    os.chown(target, NOBODY, NOBODY)
    target.chmod(0o755 if what == "directory" else 0o644)

    code, err = bound(directory / "out.csv")

    assert code == 2, err
    assert "ermission denied" in err
    assert (directory / "out.csv").read_bytes() == before


# In the midst of a run


class Meanwhile:
    """A reporter that does something once, as soon as so many candidates are measured."""

    def __init__(self, act, after=1):
        self.act, self.left, self.notes, self.resumed = act, after, [], 0

    def run_started(self, overview):
        self.resumed = sum(shape.resumed for shape in overview.shapes)

    def candidate_measured(self, *what):
        self.left -= 1
        if self.left == 0:
            self.act()

    def note(self, text):
        self.notes.append(text)

    def __getattr__(self, name):
        return lambda *what: None


@pytest.fixture
def tune(tmp_path, one_lane):
    """Tunes three sizes on a real lane, into a table with a row of another device; returns summary and reporter."""
    (tmp_path / "shapes.csv").write_text("N\n8\n16\n32\n")

    def run(out, act=lambda: None, after=1):
        reporter = Meanwhile(act, after)
        files = {"untune_file": str(tmp_path / "shapes.csv"), "tune_file": str(out)}
        args = argparse.Namespace(**files, batch=1, iters=5, confirm=False)
        family = load_family(f"{TINY}:Tiny")
        if not out.exists():
            TunedCsv(out, family.key).update([OTHER])
        return TunerCommon(family).run(args, reporter, pool=one_lane), reporter

    return run


def kernels(out):
    rows = read_rows(out).rows
    return {int(row.cells["N"]): row.cells["kernelName"] for row in rows}


ALL = {999: "quick", 8: "quick", 16: "quick", 32: "quick"}


def on_record(directory):
    """Finished candidates in the checkpoint, every line of which has to be whole."""
    (checkpoint,) = directory.glob("out.checkpoint.csv")
    assert checkpoint.read_bytes().endswith(b"\n")
    return [row.cells["candidate"] for row in read_rows(checkpoint).rows if row.cells["event"] == "finished"]


@pytest.mark.parametrize("after", [1, 4])
def test_a_disk_that_fills_up_costs_nothing_that_was_measured(disk, tune, after):
    out = disk.path / "out.csv"
    summary, _ = tune(out, disk.fill, after)

    assert summary.exit_code is ExitCode.write_failed
    assert "make room, then run the same command again" in summary.message
    assert 999 in kernels(out)
    assert set(kernels(out).items()) <= set(ALL.items())
    kept = on_record(disk.path)
    assert len(kept) >= after
    assert not list(disk.path.glob("*.tmp"))

    (disk.path / "hog").unlink()
    summary, reporter = tune(out)
    assert summary.exit_code is ExitCode.done
    assert kernels(out) == ALL
    assert reporter.resumed > 0 or len(kept) == 0


def test_a_disk_that_becomes_read_only_costs_nothing_that_was_measured(disk, tune):
    out = disk.path / "out.csv"
    summary, _ = tune(out, disk.make_read_only_over)

    assert summary.exit_code is ExitCode.write_failed
    assert "put that right, then run the same command again" in summary.message
    disk.uncover()
    assert 999 in kernels(out)
    assert on_record(disk.path)

    summary, reporter = tune(out)
    assert (summary.exit_code, kernels(out)) == (ExitCode.done, ALL)
    assert reporter.resumed > 0


def test_a_directory_that_is_moved_away_ends_the_run_and_is_gone_on_with_once_it_is_back(tmp_path, tune):
    directory, away = tmp_path / "out", tmp_path / "away"
    directory.mkdir()
    summary, _ = tune(directory / "out.csv", lambda: directory.rename(away))

    assert summary.exit_code is ExitCode.write_failed
    assert "No such file or directory" in summary.message
    assert not directory.exists(), "nothing is made anew in its place"
    assert kernels(away / "out.csv") == {999: "quick"}
    assert on_record(away)

    away.rename(directory)
    summary, reporter = tune(directory / "out.csv")
    assert (summary.exit_code, kernels(directory / "out.csv")) == (ExitCode.done, ALL)
    assert reporter.resumed > 0


def test_a_directory_that_is_deleted_ends_the_run_and_nobody_is_told_that_something_is_kept(tmp_path, tune):
    directory = tmp_path / "out"
    directory.mkdir()
    summary, _ = tune(directory / "out.csv", lambda: shutil.rmtree(directory))

    assert summary.exit_code is ExitCode.write_failed
    assert "the checkpoint is gone" in summary.message
    assert "is kept in the checkpoint" not in summary.message
    assert not directory.exists()


def test_a_table_that_becomes_somebody_elses_directory_ends_with_5_and_keeps_the_measurements(tmp_path, tune):
    out = tmp_path / "out.csv"

    def replace_by_directory():
        out.rename(tmp_path / "saved.csv")
        out.mkdir()

    summary, _ = tune(out, replace_by_directory)
    assert summary.exit_code is ExitCode.write_failed
    assert on_record(tmp_path)

    out.rmdir()
    (tmp_path / "saved.csv").rename(out)
    summary, _ = tune(out)
    assert (summary.exit_code, kernels(out)) == (ExitCode.done, ALL)
