"""The poison list: what gets a candidate onto it, what it means for later runs, and how it is lost again."""

import itertools
import json
import math
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.devices.device import Device
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.ledger import Ledger
from aiter_tuning.pool.process import describe_exit
from aiter_tuning.pool.watcher import Clocks
from aiter_tuning.status import Status
from aiter_tuning.task import Group, MpTunerTask
from aiter_tuning.tuner import Candidate
from aiter_tuning.tuner.poison import Poisoned, offence_of, sentence_of, withhold
from aiter_tuning.tuner.poison_list import PoisonFile, PoisonList, state_directory
from aiter_tuning.tuner.resume import Remaining

ROOT = Path(__file__).parent.parent.parent
DEVICE = Device("k:K", "gpu0", "GPU-0", gfx="sm90", cu_num=132, gpu_model="H200")
VERSIONS = {"driver": "580", "torch": "2.11", "triton": "3.6"}
CLOCKS = Clocks(1800.0, 60.0, 300.0)
RECORD = Poisoned(
    {"gfx": "sm90", "cu_num": 132, "gpu_model": "H200"}, "ab12", VERSIONS, "gemm", "fast", {"M": 1}, Status.crash,
    "worker exited with code 7", "2026-01-31T12:00:00Z",
)  # fmt: skip
ENDS = {"exit": 7, "SIGSEGV": -11, "SIGABRT": -6, "SIGKILL": -9, "SIGTERM": -15, "SIGINT": -2, "SIGHUP": -1}


def ledger(retries=0):
    task = MpTunerTask(None, None, (), len, (), {}, None, (), {}, None)
    return Ledger(Group((task,), (0,)), on_fault="continue", retries=retries)


def verdict_of_a_death(end, phase="candidate", output="", stranger=False):
    """What the pool's books say of a candidate whose worker ended so."""
    books, verdicts = ledger(), []
    while not verdicts:
        verdicts = books.died(phase, describe_exit(ENDS[end]), output, stranger=stranger)
    return verdicts[0][1]


def crash(detail, us=math.inf):
    return Measurement(Status.crash, us, detail=detail)


# What is an offence


@pytest.mark.parametrize("end", ["exit", "SIGSEGV", "SIGABRT"])
def test_a_candidate_that_ends_its_worker_offends(end):
    measurement = verdict_of_a_death(end, output="something | was said")

    assert offence_of(measurement).what in measurement.detail
    assert "last output" in measurement.detail


@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_that_people_and_systems_send_is_no_offence(end):
    assert offence_of(verdict_of_a_death(end, stranger=end == "SIGKILL")) is None


@pytest.mark.parametrize("phase", ["inputs", "reference", "opening", "handed"])
def test_a_death_before_the_candidate_ran_is_no_offence_of_it(phase):
    assert offence_of(verdict_of_a_death("SIGSEGV", phase)) is None


@pytest.mark.parametrize("clock", ["candidate", "compile"])
def test_a_candidate_that_outlives_its_own_clock_offends(clock):
    ((_, measurement),) = ledger().timed_out("candidate", clock, 60.0, "still at it")

    assert offence_of(measurement) == (f"no result after 60 s ({clock} clock), killed", clock, 60.0)


@pytest.mark.parametrize(
    ("phase", "clock"), [("inputs", "compile"), ("reference", "candidate"), ("candidate", "group")]
)
def test_a_clock_of_something_else_is_no_offence(phase, clock):
    ((_, measurement),) = ledger().timed_out(phase, clock, 60.0, "")

    assert offence_of(measurement) is None


@pytest.mark.parametrize(
    "detail",
    [
        "AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: HSA_STATUS_ERROR_EXCEPTION: an HSAIL operation resulted in a hardware exception",
        "worker closed its result pipe and was killed",
    ],
)
def test_a_device_fault_and_a_broken_worker_are_offences(detail):
    assert offence_of(crash(detail)) is not None
    assert offence_of(crash(f"inputs: {detail}")) is None
    assert offence_of(crash(f"reference: {detail}")) is None


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(Status.ok, 5.0),
        Measurement(Status.mismatch, 5.0, detail="worker exited with code 7"),
        crash("KeyError: 'x'", -1.0),
        crash("ValueError: worker exited with code 7", -1.0),
        crash("cannot be loaded in a worker: ImportError: x"),
        crash("the run died 2 times while it ran; --retry crash tries it again"),
        crash("poisoned: 2026-01-31: worker exited with code 7; --retry crash runs it"),
        crash("RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        crash("worker was killed by signal 6 (SIGABRT); last output: terminate called after throwing std::bad_alloc"),
        Measurement.failed(Status.oom_runtime, "CUDA out of memory"),
        Measurement.failed(Status.oom_preflight, "inputs: out of memory"),
        Measurement.failed(Status.timeout, "TimeoutError: the candidate gave up by itself"),
        Measurement.failed(Status.not_run, "stopped"),
        Measurement.failed(Status.unsupported, "not for this shape"),
    ],
)
def test_nothing_else_is_an_offence(measurement):
    assert offence_of(measurement) is None


# For whom a record holds


def sentence(*records, shape=None, versions=VERSIONS, clocks=CLOCKS):
    return sentence_of(records, shape or {"M": 1}, versions, clocks)


def test_the_sentence_is_a_result_that_says_what_happened_when_and_how_to_run_it():
    assert sentence(RECORD) == crash("poisoned: 2026-01-31: worker exited with code 7; --retry crash runs it")


def test_a_long_story_is_shortened_and_the_advice_is_not():
    detail = sentence(replace(RECORD, detail="worker exited with code 7; last output: " + "x" * 1000)).detail

    assert len(detail) <= 500
    assert detail.endswith("...; --retry crash runs it")


def test_a_record_holds_for_its_shape_and_for_every_shape_once_there_are_three():
    records = [replace(RECORD, shape={"M": m}) for m in (1, 2, 3)]

    assert sentence(*records[:2], shape={"M": 9}) is None
    assert sentence(*records[:2], records[1], shape={"M": 9}) is None
    assert "with 3 other shapes" in sentence(*records, shape={"M": 9}).detail


@pytest.mark.parametrize("name", list(VERSIONS))
def test_other_versions_give_it_a_new_chance(name):
    assert sentence(RECORD, versions=VERSIONS | {name: "99"}) is None


@pytest.mark.parametrize(
    ("clock", "clocks", "holds"),
    [
        ("candidate", Clocks(None, 60.0, 300.0), True),
        ("candidate", Clocks(None, 10.0, None), True),
        ("candidate", Clocks(None, 61.0, None), False),
        ("candidate", Clocks(None, None, None), False),
        ("compile", Clocks(None, 10.0, 61.0), False),
        ("compile", Clocks(None, 10.0, 60.0), True),
        ("compile", Clocks(None, 61.0, None), False),
    ],
)
def test_a_hang_holds_only_for_clocks_that_are_no_longer(clock, clocks, holds):
    hang = replace(RECORD, status=Status.timeout, clock=clock, clock_s=60.0)

    assert (sentence(hang, clocks=clocks) is not None) is holds


def test_the_poisoned_are_taken_out_and_put_on_record_unless_they_are_asked_for():
    left = Remaining({}, {}, (Candidate("good"), Candidate("fast")))
    sentences = {"fast": sentence(RECORD)}

    kept = withhold(left, sentences, {"fast": 2}, frozenset())
    assert [candidate.name for candidate in kept.todo] == ["good"]
    assert (kept.convicted["fast"].attempt, kept.convicted["fast"].status) == (3, Status.crash)
    assert withhold(left, sentences, {}, frozenset({Status.crash})) is left
    assert withhold(left, {}, {}, frozenset()) is left


# The file


@pytest.fixture
def file(tmp_path):
    return PoisonFile(tmp_path / "deep" / "poison.jsonl")


def test_what_was_put_there_is_read_again_until_it_is_cleared(file):
    other = replace(RECORD, candidate="other", fingerprint="cd34", shape={"M": 2, "bias": True, "dtype": "bf16"})
    assert file.read() == []
    file.add([RECORD, other])
    assert file.read() == [RECORD, other]
    file.clear([RECORD])
    assert file.read() == [other]
    file.add([RECORD])
    assert file.read() == [other, RECORD]


def test_a_newer_record_of_the_same_thing_takes_the_place_of_the_older(file):
    newer = replace(RECORD, when="2026-02-01T00:00:00Z", detail="worker exited with code 8", host="b")
    file.add([RECORD])
    file.add([newer])
    assert file.read() == [newer]


@given(st.lists(st.sampled_from([(how, m) for how in ("add", "clear") for m in range(4)])), st.binary(max_size=40))
def test_what_stands_is_what_was_added_and_not_cleared_since_whatever_damage_lies_between(tmp_path_factory, acts, junk):
    file = PoisonFile(tmp_path_factory.mktemp("poison") / "p.jsonl")
    expected = set()
    for how, m in acts:
        getattr(file, how)([replace(RECORD, shape={"M": m})])
        expected = expected | {m} if how == "add" else expected - {m}
        with file.path.open("ab") as out:
            out.write(junk)
    assert {record.shape["M"] for record in file.read()} == expected


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", "1", "\xff", '{"schema": 2, "event": "poisoned"}', '{"schema": 1, "event": "eaten"}',
        json.dumps({"schema": 1, "event": "poisoned", **RECORD.__dict__, "shape": 5}),
        json.dumps({"schema": 1, "event": "poisoned", **RECORD.__dict__, "status": "bad"}),
        json.dumps({"schema": 1, "event": "poisoned", **RECORD.__dict__, "clock_s": "long"}),
        json.dumps({"schema": 1, "event": "poisoned", **RECORD.__dict__, "detail": None}),
    ],
)  # fmt: skip
def test_a_line_that_is_no_record_is_left_out_and_named(file, line):
    file.add([RECORD])
    with file.path.open("a", encoding="latin-1") as out:
        out.write(line + "\n")
    file.add([replace(RECORD, shape={"M": 2})])

    assert [record.shape["M"] for record in file.read()] == [1, 2]
    assert file.warnings[0].startswith(f"{file.path}:2: no record of the poison list")


def test_a_record_behind_half_a_line_is_not_lost(file):
    file.add([RECORD])
    with file.path.open("a") as out:
        out.write('{"schema": 1, "eve')
    file.add([replace(RECORD, shape={"M": 2})])
    assert [record.shape["M"] for record in file.read()] == [1, 2]


def test_many_processes_that_write_at_once_lose_nothing(file):
    code = (
        "import sys; from dataclasses import replace; from pathlib import Path\n"
        "from aiter_tuning.tuner.poison_list import PoisonFile\n"
        "from op_tests.tuner.test_poison import RECORD\n"
        "file, by = PoisonFile(Path(sys.argv[1])), int(sys.argv[2])\n"
        "for m in range(50): file.add([replace(RECORD, shape={'M': m, 'by': by})])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file.path), str(i)], cwd=ROOT) for i in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = {(record.shape["by"], record.shape["M"]) for record in file.read()}
    assert found == set(itertools.product(range(4), range(50)))
    assert file.warnings == []


def test_it_lies_where_the_variable_says_else_in_the_users_state_directory():
    assert state_directory({"AITER_TUNING_HOME": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert state_directory({"XDG_STATE_HOME": "/b"}) == Path("/b/aiter_tuning")
    assert state_directory({}) == Path.home() / ".local/state/aiter_tuning"


# A run's use of it


def a_list(path, clocks=CLOCKS, device=DEVICE):
    return PoisonList("gemm", device, VERSIONS, clocks, path)


def test_a_run_remembers_what_it_saw_and_forgives_what_works(file):
    a_list(file.path).saw({"M": 1}, "fast", "ab12", verdict_of_a_death("SIGSEGV"))
    (record,) = file.read()
    assert (record.candidate, record.fingerprint, record.shape, record.versions) == ("fast", "ab12", {"M": 1}, VERSIONS)

    later = a_list(file.path)
    later.saw({"M": 2}, "fast", "ab12", Measurement(Status.ok, 5.0))
    assert file.read() == [record], "another shape says nothing about this one"
    later.saw({"M": 1}, "fast", "ab12", Measurement(Status.mismatch, 5.0))
    assert file.read() == [record]
    later.saw({"M": 1}, "fast", "ab12", Measurement(Status.ok, 5.0))
    assert file.read() == []


def test_another_model_of_device_knows_nothing_of_it(file):
    file.add([RECORD])
    left = Remaining({}, {}, (Candidate("fast"),))
    fingerprints = {"fast": "ab12"}

    assert a_list(file.path).withhold(left, {"M": 1}, fingerprints, {}, frozenset()).todo == ()
    other = a_list(file.path, device=replace(DEVICE, gpu_model="H100"))
    assert other.withhold(left, {"M": 1}, fingerprints, {}, frozenset()) is left


def test_a_list_that_cannot_be_read_or_written_stops_no_run_and_is_told_once(file):
    file.path.parent.mkdir()
    file.path.mkdir()
    unreadable = a_list(file.path)
    unreadable.saw({"M": 1}, "fast", "ab12", verdict_of_a_death("SIGSEGV"))
    first, second = unreadable.notes(), unreadable.notes()
    assert "poison list cannot be read" in first[0]
    assert second == ()

    file.path.rmdir()
    unwritable = a_list(file.path)
    file.path.mkdir()
    for _ in range(2):
        unwritable.saw({"M": 1}, "fast", "ab12", verdict_of_a_death("SIGSEGV"))
    assert len(unwritable.notes()) == 1


# Whole runs, with a scripted pool


class Notes:
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def __getattr__(self, name):
        return lambda *args: None


@pytest.fixture
def tune(tmp_path, tiny, scripted, shapes):
    """Runs Tiny into a table of the given name; returns the summary, what was measured, and the notes."""
    import argparse

    from aiter_tuning.tuner import TunerCommon

    def run(script, table="a.csv", sizes=(8,), **flags):
        pool, notes = scripted(script), Notes()
        args = argparse.Namespace(untune_file=str(shapes(*sizes)), tune_file=str(tmp_path / table), **flags)
        return TunerCommon(tiny()).run(args, notes, pool=pool), pool.calls, notes.notes

    return run


DIES = {"steady": 100.0, "quick": crash("worker was killed by signal 11 (SIGSEGV)")}
WORKS = {"steady": 100.0, "quick": 50.0}


def test_what_killed_a_worker_is_left_alone_by_a_run_into_another_table_with_a_word_about_it(tune):
    tune(DIES)
    summary, calls, notes = tune(WORKS, "b.csv")

    assert calls == [(8, "steady")]
    assert summary.counts == {Status.ok: 1, Status.crash: 1}
    assert summary.causes[0].detail.endswith("worker was killed by signal 11 (SIGSEGV); --retry crash runs it")
    assert [note for note in notes if note.startswith("1 candidate not run, since it killed or hung a worker before")]
    assert summary.exit_code == 0


def test_retry_runs_it_and_takes_it_off_the_list_if_it_works(tune):
    tune(DIES)
    tune(WORKS, "b.csv")
    _, calls, _ = tune(WORKS, "b.csv", retry=("crash",))
    assert calls == [(8, "quick")]

    _, calls, notes = tune(WORKS, "c.csv")
    assert calls == [(8, "steady"), (8, "quick")]
    assert not [note for note in notes if "killed or hung" in note]


def test_another_shape_is_tried_until_three_have_shown_the_same(tune):
    tune(DIES, sizes=(8, 16))
    _, calls, _ = tune(DIES, "b.csv", sizes=(8, 16, 32))
    assert calls == [(32, "steady"), (32, "quick"), (16, "steady"), (8, "steady")]
    _, calls, _ = tune(WORKS, "c.csv", sizes=(64,))
    assert calls == [(64, "steady")]


def test_a_candidate_taken_off_the_list_is_measured_though_the_record_says_poisoned(tune):
    tune(DIES)
    stopped = lambda shape, name: "stop" if name == "steady" else WORKS[name]  # noqa: E731
    tune(stopped, "b.csv")
    PoisonFile().clear(PoisonFile().read())

    _, calls, _ = tune(WORKS, "b.csv")
    assert sorted(calls) == [(8, "quick"), (8, "steady")]


def test_a_resumed_run_puts_no_second_sentence_on_record(tune, tmp_path):
    tune(DIES)
    stopped = lambda shape, name: "stop" if name == "steady" else WORKS[name]  # noqa: E731
    for _ in range(2):
        tune(stopped, "b.csv")
    record = (tmp_path / "b.checkpoint.csv").read_text()
    assert record.count("poisoned: ") == 1


def test_a_stopped_run_a_clock_for_the_shape_and_a_death_of_the_run_poison_nobody(tune):
    for answer in ("stop", "clock"):
        tune(lambda shape, name, answer=answer: answer if name == "quick" else WORKS[name], f"{answer}.csv")
    for _ in range(3):
        try:
            tune(lambda shape, name: "die" if name == "quick" else WORKS[name], "die.csv")
        except SystemExit:
            continue
    assert PoisonFile().read() == []


def test_two_runs_at_once_share_the_list(file):
    lists = [a_list(file.path) for _ in range(4)]
    threads = [
        threading.Thread(target=one.saw, args=({"M": m}, "fast", "ab12", verdict_of_a_death("SIGSEGV")))
        for m, one in enumerate(lists)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.read()) == 4
    assert os.listdir(file.path.parent) == ["poison.jsonl"]
