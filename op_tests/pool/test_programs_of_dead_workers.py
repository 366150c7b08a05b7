"""Programs that a candidate started, in sessions of their own, when its worker dies before anybody could look."""

import os
import subprocess
import sys

import psutil

from aiter_tuning import mp_tuner
from op_tests.pool.fault_candidates import task
from op_tests.processes import wait_for


def starts_a_program_and_exits(x, y, file):
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    with open(file, "w") as written:
        written.write(str(program.pid))
    os._exit(7)


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_program_in_a_session_of_its_own_ends_with_the_worker_that_started_it(one_lane, tmp_path):
    file = tmp_path / "pid"
    tasks = [task(("program", 0), starts_a_program_and_exits, str(file))]
    (result,) = mp_tuner(tasks, [(1, None)], return_status=True, pool=one_lane)
    assert "exited with code 7" in result.detail
    wait_for(lambda: not is_alive(int(file.read_text())), 5)
