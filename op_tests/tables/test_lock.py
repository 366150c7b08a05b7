"""Locks between processes: exclusive, ended by any death, and with a name to the holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from aiter_tuning.tables.lock import FileLock, LockTimeoutError

HOLD = """
import sys
from aiter_tuning.tables.lock import FileLock
with FileLock(sys.argv[1]):
    print("held")
    sys.stdin.readline()
"""

HOLD_AND_FORK = """
import os, sys
from aiter_tuning.tables.lock import FileLock
FileLock(sys.argv[1]).acquire()
child = os.fork()
if child == 0:
    print(os.getpid())  # by now it has closed what it inherited
    sys.stdin.readline()
    os._exit(0)
sys.stdin.readline()
"""


def test_only_one_process_has_it_and_the_other_is_told_who(tmp_path, program):
    path = tmp_path / "table.lock"
    holder = program(HOLD, path)
    assert holder.line() == "held"
    began = time.monotonic()
    with pytest.raises(LockTimeoutError) as refused:
        FileLock(path, timeout=0.2).acquire()
    assert 0.2 <= time.monotonic() - began < 5
    assert str(refused.value).startswith(f"{path}: locked by process {holder.process.pid} on ")
    with pytest.raises(LockTimeoutError):
        FileLock(path, timeout=0).acquire()
    holder.tell()
    with FileLock(path, timeout=30):
        pass


def test_it_ends_with_its_holder_even_one_that_nobody_has_waited_for(tmp_path, program):
    path = tmp_path / "table.lock"
    holder = program(HOLD, path)
    assert holder.line() == "held"
    os.kill(holder.process.pid, signal.SIGKILL)  # a zombie until the fixture reaps it
    with FileLock(path, timeout=30):
        pass


def test_a_stopped_holder_keeps_it(tmp_path, program):
    path = tmp_path / "table.lock"
    holder = program(HOLD, path)
    assert holder.line() == "held"
    os.kill(holder.process.pid, signal.SIGSTOP)
    with pytest.raises(LockTimeoutError, match=f"it is stopped; `kill -CONT {holder.process.pid}` lets it go on"):
        FileLock(path, timeout=0.1).acquire()
    os.kill(holder.process.pid, signal.SIGCONT)


def test_a_holder_in_another_container_keeps_it_until_it_is_killed(tmp_path, program):
    path = tmp_path / "table.lock"
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces can be made here")
    holder = subprocess.Popen(
        [*apart, sys.executable, "-u", "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockTimeoutError, match=r"locked by process \d+ on .* wait until it has ended"):
            FileLock(path, timeout=0.1).acquire()
    finally:
        holder.kill()
        holder.communicate()
    with FileLock(path, timeout=30):
        pass


def test_a_forked_child_that_outlives_the_holder_does_not_keep_it(tmp_path, program):
    path = tmp_path / "table.lock"
    holder = program(HOLD_AND_FORK, path)
    child = int(holder.line())
    try:
        holder.kill()
        os.kill(child, 0)
        with FileLock(path, timeout=30):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("left", ["", "process 1 on elsewhere since 2020 (long gone)\n"])
def test_a_lock_file_that_was_left_behind_locks_nobody_out(tmp_path, left):
    path = tmp_path / "table.lock"
    path.write_text(left)
    os.utime(path, (0, 0))
    with FileLock(path, timeout=0) as lock:
        assert lock.holder().startswith(f"process {os.getpid()} on ")


def test_the_lock_of_a_file_lies_hidden_beside_what_it_links_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "real" / "table.csv")
    assert FileLock.beside(tmp_path / "link.csv").path == tmp_path / "real" / ".table.csv.lock"


def test_two_locks_of_one_process_exclude_each_other_too(tmp_path):
    with FileLock(tmp_path / "l"), pytest.raises(LockTimeoutError):
        FileLock(tmp_path / "l", timeout=0).acquire()


def test_a_directory_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "gone" / "l", timeout=0).acquire()
    assert os.listdir(tmp_path) == []


def test_it_locks_on_a_full_disk(small_disk, fill_disk):
    (small_disk / "l").touch()
    fill_disk(small_disk)
    with FileLock(small_disk / "l", timeout=0):
        pass
