"""The checkpoint as a record: what is on file, what a rerun makes of it."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiter_tuning.keys import Key
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint, profiles_of
from aiter_tuning.tables.csv_reader import CsvError, read_csv, read_rows
from op_tests.examples import examples

GEMM = Key(M=int, N=int, K=int, dtype="fp32", bias=False)
RUN = RunFingerprint({"device": "AMD, EPYC", "torch": "2.13", "iters": "101"})
SHAPE = GEMM.parse({"M": 1, "N": 256, "K": 7168})
OTHER = GEMM.parse({"M": 2, "N": 256, "K": 7168, "dtype": "bf16"})
PRINTS = {"a": "f" * 12, "b": "0123456789ab"}
OK = Measurement(Status.ok, 12.5, 0.0, samples=101, timer="wall", device="cpu:0-1")


@pytest.fixture
def tuned(tmp_path) -> Path:
    return tmp_path / "out.csv"


def begin(tuned, run=RUN, key=GEMM, **how) -> Checkpoint:
    return Checkpoint.open(tuned, key, run, **how)


def put(checkpoint, candidate, measurement=OK, shape=SHAPE, phase="screen", fingerprint=None):
    print_ = fingerprint or PRINTS[candidate]
    checkpoint.started(shape, candidate, phase=phase, attempt=measurement.attempt, fingerprint=print_)
    checkpoint.finished(shape, candidate, measurement, phase=phase, fingerprint=print_)


def names(tuned) -> list[str]:
    return sorted(os.listdir(tuned.parent))


# On file


def test_it_lies_beside_the_tuned_table_under_one_name_and_nothing_else(tuned):
    with begin(tuned) as checkpoint:
        assert checkpoint.path == tuned.with_name("out.checkpoint.csv")
        put(checkpoint, "a")
        assert names(tuned) == ["out.checkpoint.csv"]
    assert names(tuned) == ["out.checkpoint.csv"]


def test_a_row_is_on_file_as_soon_as_the_call_returns(tuned):
    with begin(tuned) as checkpoint:
        for count, act in enumerate((checkpoint.started, checkpoint.stopped, checkpoint.started)):
            act(SHAPE, "a", attempt=1, fingerprint=PRINTS["a"])
            assert checkpoint.path.read_bytes().count(b"\n") == 3 + count
        checkpoint.finished(SHAPE, "a", OK, fingerprint=PRINTS["a"])
        assert (
            checkpoint.path.read_bytes()
            .splitlines()[-1]
            .startswith(b"finished,1,256,7168,fp32,False,a,screen,1,ok,12.5,")
        )


def test_the_file_is_a_table_that_anybody_can_read(tuned):
    failed = Measurement.failed(Status.timeout, 'killed after 2 s: "x, y"\nsecond line')
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
        put(checkpoint, "b", dataclasses.replace(OK, us=99.0, censored=True, flags=("standby", "throttled")))
        put(checkpoint, "a", failed, shape=OTHER)
        path = checkpoint.path
    frame = read_csv(path)
    assert list(frame.columns) == [
        *("event", "M", "N", "K", "dtype", "bias", "candidate", "phase", "attempt", "status", "us", "censored"),
        *("err_ratio", "samples", "timer", "flags", "device_uuid", "detail", "fingerprint", "time"),
    ]
    assert frame["event"].tolist() == ["run"] + ["started", "finished"] * 3
    assert frame["us"].dtype.kind == "f"
    assert frame["us"].dropna().tolist() == [12.5, 99.0, math.inf]
    last = read_rows(path).rows[-1].cells
    assert (last["status"], last["us"], last["detail"]) == ("timeout", "inf", 'killed after 2 s: "x, y" second line')
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", last["time"])
    assert read_rows(path).rows[4].cells["flags"] == "standby;throttled"


def test_the_run_s_fingerprint_is_on_file_field_by_field(tuned):
    with begin(tuned) as checkpoint:
        first = read_rows(checkpoint.path).rows[0].cells
    assert first["event"] == "run"
    assert first["fingerprint"] == RUN.digest
    assert '"device": "AMD, EPYC"' in first["detail"]


def test_a_digest_depends_on_the_fields_and_on_nothing_else():
    assert re.fullmatch("[0-9a-f]{12}", RUN.digest)
    assert RunFingerprint(dict(reversed(RUN.fields.items()))).digest == RUN.digest
    assert RunFingerprint({**RUN.fields, "iters": "7"}).digest != RUN.digest


def test_what_was_not_run_is_no_verdict(tuned):
    with begin(tuned) as checkpoint:
        with pytest.raises(ValueError, match="a was not run"):
            checkpoint.finished(SHAPE, "a", Measurement.failed(Status.not_run, ""), fingerprint="f")
        assert checkpoint.path.read_bytes().count(b"\n") == 2


@pytest.mark.parametrize("name", ["", " a", "a ", "two\nlines", "a\0", "\ud800"])
def test_a_name_that_would_not_read_back_is_refused(tuned, name):
    with begin(tuned) as checkpoint:
        with pytest.raises(ValueError, match="cannot name a candidate"):
            checkpoint.started(SHAPE, name, attempt=1, fingerprint="f")
        assert checkpoint.path.read_bytes().count(b"\n") == 2


# Resuming


def test_a_rerun_finds_what_was_finished_and_only_that(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
        checkpoint.started(SHAPE, "b", attempt=1, fingerprint=PRINTS["b"])
    with begin(tuned) as checkpoint:
        assert checkpoint.finished_results(SHAPE, PRINTS) == {"a": OK}
        assert checkpoint.finished_results(OTHER, PRINTS) == {}
        assert checkpoint.finished_results({"K": "7168", "M": 1.0, "N": 256}, PRINTS) == {"a": OK}
        assert checkpoint.set_aside is None
        assert checkpoint.dropped_tail is None
        assert checkpoint.warnings == []


def test_what_this_run_writes_is_not_on_record_for_it(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
        assert checkpoint.finished_results(SHAPE, PRINTS) == {}


def test_a_candidate_that_changed_is_measured_again_and_its_neighbours_are_not(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
        put(checkpoint, "b")
        checkpoint.started(SHAPE, "b", attempt=2, fingerprint=PRINTS["b"])
    with begin(tuned) as checkpoint:
        changed = {**PRINTS, "b": "new"}
        assert checkpoint.finished_results(SHAPE, changed) == {"a": OK}
        assert checkpoint.suspects(SHAPE, changed) == {}
        assert checkpoint.attempts(SHAPE) == {"a": 1, "b": 2}


def test_phases_are_apart(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
        put(checkpoint, "a", dataclasses.replace(OK, us=11.0), phase="finalist:1")
        checkpoint.started(SHAPE, "a", phase="finalist:2", attempt=1, fingerprint=PRINTS["a"])
    with begin(tuned) as checkpoint:
        assert checkpoint.finished_results(SHAPE, PRINTS)["a"].us == 12.5
        assert checkpoint.finished_results(SHAPE, PRINTS, phase="finalist:1")["a"].us == 11.0
        assert checkpoint.suspects(SHAPE, PRINTS) == {}
        assert checkpoint.suspects(SHAPE, PRINTS, phase="finalist:2") == {"a": 1}


def test_the_newest_verdict_counts(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a", Measurement.failed(Status.crash, "died"))
        put(checkpoint, "a", dataclasses.replace(OK, attempt=2))
    with begin(tuned) as checkpoint:
        assert checkpoint.finished_results(SHAPE, PRINTS)["a"].attempt == 2
        assert checkpoint.attempts(SHAPE) == {"a": 2}


def test_started_without_an_end_is_a_suspect_each_time(tuned):
    for count in range(1, 4):
        with begin(tuned) as checkpoint:
            assert checkpoint.suspects(SHAPE, PRINTS).get("a", 0) == count - 1
            checkpoint.started(SHAPE, "a", attempt=count, fingerprint=PRINTS["a"])
    with begin(tuned) as checkpoint:
        assert checkpoint.suspects(SHAPE, PRINTS) == {"a": 3}
        put(checkpoint, "a", dataclasses.replace(OK, attempt=4))
    with begin(tuned) as checkpoint:
        assert checkpoint.suspects(SHAPE, PRINTS) == {}


def test_a_run_that_a_person_stopped_casts_no_suspicion(tuned):
    with begin(tuned) as checkpoint:
        checkpoint.started(SHAPE, "a", attempt=1, fingerprint=PRINTS["a"])
        checkpoint.stopped(SHAPE, "a", attempt=1, fingerprint=PRINTS["a"])
    with begin(tuned) as checkpoint:
        assert checkpoint.suspects(SHAPE, PRINTS) == {}
        assert checkpoint.finished_results(SHAPE, PRINTS) == {}


# Torn and garbled files


def test_a_torn_last_row_is_dropped_and_told(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
        put(checkpoint, "b")
    path = tuned.with_name("out.checkpoint.csv")
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with begin(tuned) as checkpoint:
        assert checkpoint.dropped_tail == whole.splitlines(keepends=True)[-1][:-30].decode()
        assert checkpoint.finished_results(SHAPE, PRINTS) == {"a": OK}
        assert checkpoint.suspects(SHAPE, PRINTS) == {"b": 1}
        put(checkpoint, "b")
    assert read_rows(path).warnings == []
    with begin(tuned) as checkpoint:
        assert set(checkpoint.finished_results(SHAPE, PRINTS)) == {"a", "b"}


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_wherever_the_file_is_cut_every_whole_row_counts(tmp_path_factory, data):
    tuned = tmp_path_factory.mktemp("cut") / "out.csv"
    details = data.draw(st.lists(st.text(max_size=30), min_size=1, max_size=6))
    prints = {f"c{i}": "f" for i in range(len(details))}
    with begin(tuned) as checkpoint:
        start = checkpoint.path.stat().st_size
        for i, detail in enumerate(details):
            put(checkpoint, f"c{i}", Measurement.failed(Status.crash, detail), fingerprint="f")
        path = checkpoint.path
    whole = path.read_bytes()
    cut = data.draw(st.integers(start, len(whole)))
    path.write_bytes(whole[:cut])
    with begin(tuned) as checkpoint:
        left = whole[:cut].count(b"\n") - 2
        assert len(checkpoint.finished_results(SHAPE, prints)) == left // 2
        assert len(checkpoint.suspects(SHAPE, prints)) == left % 2
        assert (checkpoint.dropped_tail is not None) == (not whole[:cut].endswith(b"\n"))
        assert path.read_bytes() == whole[: whole.rfind(b"\n", 0, cut) + 1]


@pytest.mark.parametrize(
    "garbage",
    [
        b"finished,1,256,71finished,1,256,7168,fp32,False,b,screen,1,ok,1,False,0,1,wall,,,,f,t",
        b"\0" * 200,
        b"\xff\xfe",
        b'finished,"1',
        b"<<<<<<< HEAD",
        b"finished,x,256,7168,fp32,False,b,screen,1,ok,1.0,False,0.0,1,wall,,,,0123456789ab,t",
        b"finished,1,256,7168,fp32,False,b,screen,1,ok,fast,False,0.0,1,wall,,,,0123456789ab,t",
        b"finished,1,256,7168,fp32,False,b,screen,1,fine,1.0,False,0.0,1,wall,,,,0123456789ab,t",
        b"exploded,1,256,7168,fp32,False,b,screen,1,ok,1.0,False,0.0,1,wall,,,,0123456789ab,t",
    ],
)
def test_a_garbled_row_is_skipped_with_a_warning_and_the_rest_used(tuned, garbage):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
    path = tuned.with_name("out.checkpoint.csv")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], garbage + b"\n", *lines[2:]]))
    with begin(tuned) as checkpoint:
        assert checkpoint.finished_results(SHAPE, PRINTS) == {"a": OK}
        assert len(checkpoint.warnings) == 1
        assert str(path) in checkpoint.warnings[0]
        assert checkpoint.warnings[0].endswith("skipped")


def test_an_empty_file_is_begun_anew(tuned):
    tuned.with_name("out.checkpoint.csv").touch()
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
    assert names(tuned) == ["out.checkpoint.csv"]


def test_a_file_that_is_no_checkpoint_is_refused_and_left_alone(tuned):
    shapes = tuned.with_name("shapes.csv")
    shapes.write_text("M,N,K\n1,2,3")
    with pytest.raises(CsvError, match=r"shapes\.csv:1: the file is no checkpoint"):
        begin(tuned, path=shapes)
    assert shapes.read_text() == "M,N,K\n1,2,3"


# Another environment


def test_another_environment_sets_the_file_aside_and_names_the_fields(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
    before = tuned.with_name("out.checkpoint.csv").read_bytes()
    other = RunFingerprint({"device": "AMD, EPYC", "torch": "2.14", "triton": "3.6"})
    with begin(tuned, other) as checkpoint:
        aside = checkpoint.set_aside
        assert aside.path == tuned.with_name(f"out.checkpoint.{RUN.digest}.csv")
        assert aside.differing == {"torch": ("2.13", "2.14"), "iters": ("101", ""), "triton": ("", "3.6")}
        assert aside.path.read_bytes() == before
        assert checkpoint.finished_results(SHAPE, PRINTS) == {}
        put(checkpoint, "b")
    with begin(tuned, other) as checkpoint:
        assert set(checkpoint.finished_results(SHAPE, PRINTS)) == {"b"}


def test_nothing_that_was_set_aside_is_ever_overwritten(tuned):
    for _ in range(3):
        for run in (RUN, RunFingerprint({"device": "other"})):
            with begin(tuned, run) as checkpoint:
                put(checkpoint, "a")
    assert len(names(tuned)) == 6


def test_another_key_is_another_environment(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
    with begin(tuned, key=Key(M=int, N=int, K=int)) as checkpoint:
        assert list(checkpoint.set_aside.differing) == ["columns"]


def test_fresh_sets_aside_what_could_be_resumed(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
    with begin(tuned, fresh=True) as checkpoint:
        assert checkpoint.set_aside.differing == {}
        assert checkpoint.finished_results(SHAPE, PRINTS) == {}
    with begin(tuned) as checkpoint:
        assert checkpoint.finished_results(SHAPE, PRINTS) == {}
    assert names(tuned) == [f"out.checkpoint.{RUN.digest}.csv", "out.checkpoint.csv"]


def test_a_file_whose_run_row_is_gone_is_set_aside_as_unknown(tuned):
    with begin(tuned) as checkpoint:
        put(checkpoint, "a")
    path = tuned.with_name("out.checkpoint.csv")
    path.write_bytes(path.read_bytes().replace(b"run,", b"r\0n,", 1))
    with begin(tuned) as checkpoint:
        assert checkpoint.set_aside.path.name == "out.checkpoint.unknown.csv"
        assert checkpoint.set_aside.differing["torch"] == ("", "2.13")


# The end


def test_on_completion_the_file_becomes_a_profile(tuned):
    checkpoint = begin(tuned)
    put(checkpoint, "a")
    profile = checkpoint.complete()
    assert re.fullmatch(r"out\.profile\.\d{8}T\d{6}Z-\d+\.csv", profile.name)
    assert names(tuned) == [profile.name]
    assert len(read_csv(profile)) == 3
    again = begin(tuned)
    assert again.finished_results(SHAPE, PRINTS) == {}
    assert again.complete() != profile
    assert len(names(tuned)) == 2


def test_a_retry_reads_the_profiles_of_the_same_environment_the_newest_last(tuned):
    for us in (3.0, 2.0):
        checkpoint = begin(tuned)
        put(checkpoint, "a", dataclasses.replace(OK, us=us))
        last = checkpoint.complete()
        stamp = tuned.parent.stat().st_mtime_ns + int(1e9 * (4 - us))
        os.utime(last, ns=(stamp, stamp))
    foreign = begin(tuned, RunFingerprint({"device": "other"}))
    put(foreign, "a", dataclasses.replace(OK, us=1.0))
    os.utime(foreign.complete(), ns=(stamp * 2, stamp * 2))
    assert profiles_of(tuned, tuned.parent, RUN)[-1] == last
    with begin(tuned, with_profile=True) as checkpoint:
        assert checkpoint.finished_results(SHAPE, PRINTS)["a"].us == 2.0
        put(checkpoint, "a", dataclasses.replace(OK, us=4.0, attempt=2))
    with begin(tuned, with_profile=True) as checkpoint:
        assert checkpoint.finished_results(SHAPE, PRINTS)["a"].us == 4.0


def test_a_checkpoint_of_another_name_is_used_as_told(tuned):
    named = tuned.with_name("elsewhere.csv")
    with begin(tuned, path=named) as checkpoint:
        put(checkpoint, "a")
    checkpoint = begin(tuned, path=named)
    assert checkpoint.finished_results(SHAPE, PRINTS) == {"a": OK}
    assert checkpoint.complete().name.startswith("out.profile.")


def test_a_closed_checkpoint_takes_nothing_more(tuned):
    checkpoint = begin(tuned)
    checkpoint.close()
    checkpoint.close()
    with pytest.raises(OSError) as refused:
        put(checkpoint, "a")
    assert refused.value.errno == errno.EBADF


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        begin(tmp_path / "none" / "out.csv")


def test_checkpoints_import_nothing_heavy():
    code = (
        "import sys; from aiter_tuning.tables import Checkpoint, TunedCsv;"
        "print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Any measurement

status = st.sampled_from([s for s in Status if s.is_terminal])
measurement = st.builds(
    Measurement,
    status=status,
    us=st.sampled_from([-1.0, math.inf]) | st.floats(1e-3, 1e9).map(lambda us: round(us, 6)),
    err_ratio=st.floats(0, 1).map(lambda e: round(e, 6)),
    detail=st.text(max_size=40),
    attempt=st.integers(1, 9),
    censored=st.booleans(),
    samples=st.integers(0, 10**6),
    timer=st.sampled_from(["wall", "kernel", ""]),
    flags=st.lists(st.sampled_from(["standby", "throttled", "writes_inputs"]), max_size=3).map(tuple),
    device=st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20),
)
candidate = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12)


@settings(max_examples=examples(150), deadline=None)
@given(st.dictionaries(candidate, measurement, max_size=5))
def test_every_measurement_comes_back_as_it_was_written(tmp_path_factory, measured):
    tuned = tmp_path_factory.mktemp("any") / "out.csv"
    prints = dict.fromkeys(measured, "f,")
    with begin(tuned) as checkpoint:
        for name, one in measured.items():
            put(checkpoint, name, one, fingerprint="f,")
        assert checkpoint.path.read_bytes().count(b"\n") == 2 + 2 * len(measured)
    with begin(tuned) as checkpoint:
        found = checkpoint.finished_results(SHAPE, prints)
        assert checkpoint.warnings == []
        assert checkpoint.suspects(SHAPE, prints) == {}
    assert set(found) == set(measured)
    for name, one in measured.items():
        assert dataclasses.replace(found[name], detail="") == dataclasses.replace(one, detail="")
        if one.detail.isascii() and one.detail.isprintable():
            assert found[name].detail == " ".join(one.detail.split())
