"""``mp_tuner`` from where people call it: scripts without a main guard, ``python -c``, notebooks, threads."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from aiter_tuning import mp_tuner
from op_tests.pool.fault_candidates import right, task
from op_tests.processes import descendants, wait_for

pytestmark = pytest.mark.timeout(180)
ROOT = str(Path(__file__).parents[2])

BODY = """
import sys
sys.path.insert(0, {root!r})
from aiter_tuning import MpTunerTask, Pool, mp_tuner
print("the script runs", flush=True)
FACTOR = 2

class Scale:
    def __init__(self, by): self.by = by
    def __call__(self, x, y): return y.copy_(x * self.by)

def gen(n, device=None):
    import torch
    return {{"x": torch.arange(float(n)), "y": torch.empty(n)}}
def reference(x): return x * FACTOR
def candidate(x, y): return y.copy_(x * FACTOR)

def tasks(*funcs):
    return [MpTunerTask(("s", i), gen, (8,), f, (["x", "y"],), {{"num_iters": 2}}, reference, (["x"],), {{}}, None)
            for i, f in enumerate(funcs)]
"""


def script(more):
    return BODY.format(root=ROOT) + textwrap.dedent(more)


def run(*arguments, text=None, cwd=None):
    done = subprocess.run(
        [sys.executable, *arguments], input=text, capture_output=True, text=True, cwd=cwd, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CALL = """
results = mp_tuner(tasks(candidate, Scale(2), lambda x, y: y.copy_(x * FACTOR)), [(3, None)], return_status=True)
print([str(result.status) for result in results])
"""
ON_A_POOL = """
with Pool("cpu", 1, standbys=False) as pool:  # half as many imports of torch
    three = tasks(candidate, Scale(2), lambda x, y: y.copy_(x * FACTOR))
    results = mp_tuner(three, [(3, None)], return_status=True, pool=pool)
print([str(result.status) for result in results])
"""


@pytest.fixture(scope="module")
def plain_script(tmp_path_factory):
    """What a script printed that calls ``mp_tuner`` and nothing else."""
    file = tmp_path_factory.mktemp("script") / "tune.py"
    file.write_text(script(CALL + "print('torch' in sys.modules)\n"))
    return run(str(file))


def test_a_script_without_a_main_guard_runs_once(plain_script):
    assert plain_script.count("the script runs") == 1
    assert "['ok', 'ok', 'ok']" in plain_script


def test_the_parent_imports_no_torch(plain_script):
    assert plain_script.splitlines()[-1] == "False"


def test_from_the_command_line_and_from_standard_input(tmp_path):
    assert "['ok', 'ok', 'ok']" in run("-c", script(ON_A_POOL), cwd=tmp_path)
    assert "['ok', 'ok', 'ok']" in run("-", text=script(ON_A_POOL), cwd=tmp_path)


def test_from_a_thread_that_ends_before_the_pool_does(tmp_path):
    file = tmp_path / "tune.py"
    file.write_text(
        script(
            """
            import threading
            made = []
            thread = threading.Thread(target=lambda: made.append(Pool("cpu", 1, standbys=False)))
            thread.start(); thread.join()
            answers = []
            call = lambda: answers.extend(mp_tuner(tasks(candidate), [(1, None)], pool=made[0]))
            thread = threading.Thread(target=call)
            thread.start(); thread.join()
            print(answers[0][1] > 0, made[0].lanes[0].worker is not None)
            """
        )
    )
    assert "True True" in run(str(file))


def test_from_a_cell_whose_functions_have_no_file(tmp_path):
    notebook = script(
        "namespace = dict(globals())\nexec(compile('''" + ON_A_POOL.strip() + "''', '<cell 2>', 'exec'), namespace)\n"
    )
    assert "['ok', 'ok', 'ok']" in run("-c", notebook, cwd=tmp_path)


def test_from_a_thread_of_this_process(two_lanes):
    answers = []
    thread = threading.Thread(
        target=lambda: answers.extend(mp_tuner([task(("s", 0), right)], [(1, None)], pool=two_lanes))
    )
    thread.start()
    thread.join()
    assert answers[0][1] > 0


def workers_of(pid):
    """Tokens of the workers that a process started."""
    return {
        process.environ()["AITER_TUNING_WORKER"]
        for process in psutil.process_iter()
        if process.is_running() and _token(process).startswith(f"{pid}.")
    }


def _token(process):
    try:
        return process.environ().get("AITER_TUNING_WORKER", "")
    except psutil.Error:
        return ""


SLEEPER = """
import time
def sleeper(x, y):
    print("sleeping", flush=True)
    open({flag!r}, "w").close()
    time.sleep(3600)
try:
    mp_tuner(tasks(candidate, sleeper), [(2, None)])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_no_process_outlives_a_script_that_is_killed(tmp_path, number):
    flag, file = tmp_path / "flag", tmp_path / "tune.py"
    file.write_text(script(SLEEPER.format(flag=str(flag))))
    process = subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, text=True)
    wait_for(flag.exists, 60)
    tokens = workers_of(process.pid)
    assert tokens
    os.kill(process.pid, number)
    out, _ = process.communicate(timeout=30)
    assert ("interrupted" in out) == (number == signal.SIGINT)
    deadline = time.monotonic() + 5
    while descendants(tokens) and time.monotonic() < deadline:
        time.sleep(0.01)
    wait_for(lambda: descendants(tokens) == [])


def test_a_script_that_forgets_its_pool_leaves_nothing(tmp_path):
    file = tmp_path / "tune.py"
    file.write_text(
        script(
            """
            pool = Pool("cpu", 1, standbys=False)
            mp_tuner(tasks(candidate), [(1, None)], pool=pool)
            print("token", pool.lanes[0].worker.token)
            """
        )
    )
    token = next(line.split()[1] for line in run(str(file)).splitlines() if line.startswith("token"))
    wait_for(lambda: descendants({token}) == [])
