"""What lanes do with what was compiled ahead: a verdict of the compiler's is theirs, without a try of their own."""

import os
import threading

import pytest

from aiter_tuning import Pool
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.pool import pool as pool_module
from aiter_tuning.pool.compile_book import CompileBook, State
from aiter_tuning.pool.precompiler import Precompiler
from aiter_tuning.pool.watcher import Watcher
from aiter_tuning.task import ALL_INPUTS, Group, MpTunerTask
from aiter_tuning.tuner.tasks import RunCandidate
from op_tests.families_for_tests.triton_scale import TritonScale
from op_tests.pool.fake_devices import gpu
from op_tests.processes import descendants, wait_for

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"),
]

FAMILY = "op_tests.families_for_tests.triton_scale:TritonScale"


def make_inputs(*, device):
    return TritonScale().inputs({"N": 256}, device, 0)


def twice(inputs):
    return inputs["x"] * 2


def waits(inputs, file):
    """In the lane only: until the compile processes are done."""
    if inputs["x"].device.type != "meta":
        wait_for(lambda: os.path.exists(file), 120)
    return twice(inputs)


def task(name, func, *args):
    return MpTunerTask((name,), make_inputs, (), func, (ALL_INPUTS, *args), {}, twice, (ALL_INPUTS,), {}, None)


def candidate(name):
    return task(name, RunCandidate(FAMILY, {"do": name}))


class Listener(Watcher):
    def __init__(self, before=lambda: None):
        self.results = {}
        self.before = before

    def before_start(self, group, index, attempt, lane):
        self.before()

    def measured(self, group, index, measurement, *, logged):
        self.results[index] = measurement


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Precompilers that pools made, with one candidate being enough to start one."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    made = []

    class Kept(Precompiler):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs, fewest=1, cores=sorted(os.sched_getaffinity(0)))
            made.append(self)

    monkeypatch.setattr(pool_module, "Precompiler", Kept)
    return made


def open_gate_when_compiled(opened, file):
    """A bystander that opens the lane's gate once the compile processes are through."""

    def watch():
        wait_for(lambda: opened and not opened[0].running, 120)
        file.touch()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_a_lane_takes_the_compilers_word_and_runs_everything_else(opened, tmp_path):
    gate = tmp_path / "gate"
    names = ("asserts", "malformed", "huge", "looks")
    tasks = (task("waits", waits, str(gate)), *map(candidate, names), task("torch", twice))
    watcher = Listener()
    bystander = open_gate_when_compiled(opened, gate)
    with Pool([gpu(0)], standbys=False) as pool:
        pool.run(
            [Group(tasks, tuple(range(len(tasks))))],
            MeasurePlan(warmup=1, iters=2),
            on_fault="continue",
            watcher=watcher,
            precompile=True,
        )
    bystander.join()
    statuses = {tasks[index].info[0]: result.status for index, result in watcher.results.items()}
    assert statuses == {
        "waits": "ok",
        "asserts": "unsupported",
        "malformed": "crash",
        "huge": "unsupported",
        "looks": "crash",  # no verdict ahead; in this lane, which is no GPU, Triton finds no driver
        "torch": "ok",
    }
    details = {tasks[index].info[0]: result.detail for index, result in watcher.results.items()}
    assert details["malformed"].startswith("compile: CompilationError")
    assert "shared memory, Required" in details["huge"]
    assert "compile:" not in details["looks"]
    assert {result.device for result in watcher.results.values()} == {"fake-0"}
    wait_for(lambda: descendants([opened[0].token]) == [])


def test_without_being_asked_nothing_is_compiled_ahead(opened):
    watcher = Listener()
    with Pool([gpu(0)], standbys=False) as pool:
        pool.run([Group((task("torch", twice),), (0,))], MeasurePlan(warmup=1, iters=2), watcher=watcher)
    assert not opened and watcher.results[0].status == "ok"


def test_a_run_that_ends_early_ends_its_compilations(opened, tmp_path):
    """An exception of the watcher's ends the run, and with it all that was started for it."""

    class StoppedError(Exception):
        pass

    def interrupt():
        raise StoppedError

    with Pool([gpu(0)], standbys=False) as pool:
        with pytest.raises(StoppedError):
            pool.run([Group((candidate("hangs"),), (0,))], MeasurePlan(), watcher=Listener(interrupt), precompile=True)
        assert opened[0].started is False and descendants([opened[0].token]) == []


def test_a_lane_tells_the_book_where_it_is(opened, tmp_path, monkeypatch):
    seen = []
    tasks = tuple(task(f"torch{index}", twice) for index in range(3))

    class Look(Listener):
        def group_ended(self, group, results):
            slots = opened[0].slots(group)
            book = CompileBook(slots.path)
            seen.extend((book.is_taken(slot), book.state(slot)) for slot in range(3))

    with Pool([gpu(0)], standbys=False) as pool:
        pool.run([Group(tasks, (0, 1, 2))], MeasurePlan(warmup=1, iters=2), watcher=Look(), precompile=True)
    assert [taken for taken, _ in seen] == [True] * 3
    assert {state for _, state in seen} <= {State.waiting, State.compiling, State.compiled, State.skipped}
