"""How long a process's threads have waited for a core, with and without somebody else on it."""

import subprocess
import sys
import time

from aiter_tuning.measure.starvation import waited_s

WORK = """
import os, sys, time
from aiter_tuning.measure.starvation import waited_s
core = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core})
rivals = [os.fork() for _ in range(int(sys.argv[1]))]
if 0 in rivals:
    while os.getppid() == int(os.environ["PARENT"]):
        pass
    os._exit(0)
before, began = waited_s(), time.perf_counter()
while time.perf_counter() < began + 0.5:
    pass
print((waited_s() - before) / (time.perf_counter() - began))
for rival in rivals:
    os.kill(rival, 9)
"""


def share_that_waited(rivals):
    code = f"import os; os.environ['PARENT'] = str(os.getpid())\n{WORK}"
    done = subprocess.run([sys.executable, "-c", code, str(rivals)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_waiting_for_a_core_that_others_have_is_counted():
    assert share_that_waited(2) > 0.3, "two thirds, on a core of three"


def test_time_that_a_thread_sleeps_is_none_that_it_waited():
    before = waited_s()
    time.sleep(0.3)
    assert waited_s() - before < 0.1
