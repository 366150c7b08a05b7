"""A family's run from shapes to rows, with a scripted pool in the place of processes."""

import argparse
import errno
import os
import shutil
from dataclasses import replace

import pytest

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.measurement import Measurement
from aiter_tuning.status import Status
from aiter_tuning.tables.csv_reader import read_rows
from aiter_tuning.tables.evidence import evidence_path
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner import Candidate, TunerCommon
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.family_reference import FamilyError
from aiter_tuning.tuner.outcome import ExitCode, Verdict

FAST = {"steady": 100.0, "quick": 50.0}


@pytest.fixture
def tune(tiny, out, scripted, shapes):
    """Runs a family over some sizes; returns the summary and the pool, whose ``calls`` tell what was measured."""

    def run(script, sizes=(8, 16), family="Tiny", reporter=None, **flags):
        pool = scripted(script)
        args = argparse.Namespace(untune_file=str(shapes(*sizes)), tune_file=str(out), **flags)
        return TunerCommon(tiny(family)).run(args, reporter, pool=pool), pool

    return run


@pytest.fixture
def kernels(out, tiny):
    """The kernel of each size in the tuned CSV."""
    return lambda: {row.shape["N"]: row.kernelName for row in TunedCsv(out, tiny().key).rows()}


def files(out):
    return sorted(path.name for path in out.parent.iterdir() if not path.name.startswith("."))


class Notes:
    """A reporter that keeps what it is told."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def __getattr__(self, name):
        return lambda *args: None


def test_every_shape_gets_the_row_of_its_fastest_correct_candidate(tune, kernels):
    summary, pool = tune(FAST)

    assert kernels() == {8: "quick", 16: "quick"}
    assert summary.exit_code is ExitCode.done
    assert [shape.verdict for shape in summary.shapes] == [Verdict.promoted] * 2
    assert pool.seen["on_fault"] == "continue"


def test_the_defaults_own_row_is_written_when_nothing_beats_it(tune, kernels):
    summary, _ = tune({"steady": 100.0, "quick": 99.0})

    assert kernels() == {8: "steady", 16: "steady"}
    assert [shape.verdict for shape in summary.shapes] == [Verdict.first_row] * 2
    assert summary.exit_code is ExitCode.done


def test_a_wrong_candidate_is_never_published_however_fast(tune, kernels):
    wrong = Measurement(Status.mismatch, 1.0, 0.5, "0.5 of the elements are wrong")
    summary, _ = tune({"steady": 100.0, "quick": wrong})

    assert kernels() == {8: "steady", 16: "steady"}
    assert summary.causes[0].count == 2


def test_a_shape_without_a_correct_candidate_has_no_row_and_the_run_ends_1(tune, kernels):
    summary, _ = tune(lambda shape, name: Status.crash if shape["N"] == 8 else FAST[name])

    assert kernels() == {16: "quick"}
    assert summary.exit_code is ExitCode.no_correct_candidate
    assert {shape.label: shape.verdict for shape in summary.shapes}["N=8 dtype=fp32"] is Verdict.failed


def test_a_shape_that_failed_is_not_measured_again_unasked(tune, kernels, out):
    def fails(shape, name):
        return Status.timeout if shape["N"] == 8 else FAST[name]

    tune(fails)
    before = files(out)
    summary, pool = tune(fails)

    assert pool.calls == []
    assert summary.exit_code is ExitCode.no_correct_candidate
    assert files(out) == before
    _, pool = tune(FAST, all=True)
    assert len(pool.calls) == 4
    assert kernels() == {8: "quick", 16: "quick"}


def test_a_tuned_file_is_tuned_again_in_place(tune, kernels, out, tiny, scripted):
    tune({"steady": 100.0, "quick": 50.0})
    pool = scripted({"steady": 10.0, "quick": 50.0})
    args = argparse.Namespace(untune_file=str(out), tune_file=str(out), all=True)

    TunerCommon(tiny()).run(args, None, pool=pool)

    assert len(pool.calls) == 4
    assert kernels() == {8: "steady", 16: "steady"}


def test_a_finished_run_leaves_a_profile_and_is_not_repeated(tune, out):
    tune(FAST)
    before = files(out)
    assert [name for name in before if "checkpoint" in name] == []
    assert [name for name in before if ".profile." in name] != []

    summary, pool = tune(FAST)

    assert pool.calls == []
    assert (summary.exit_code, summary.already_tuned) == (ExitCode.done, 2)
    assert files(out) == before


def test_only_new_shapes_are_tuned(tune, kernels):
    tune(FAST, sizes=(8,))
    _, pool = tune(FAST, sizes=(8, 16))

    assert {size for size, _ in pool.calls} == {16}
    assert kernels() == {8: "quick", 16: "quick"}


def test_shapes_come_from_the_file_and_from_nowhere_else(tune, kernels):
    tune(FAST, sizes=(8, 16, 32))
    _, pool = tune(FAST, sizes=(16,), all=True)

    assert {size for size, _ in pool.calls} == {16}


def test_all_tunes_again_and_a_retained_row_is_left_as_it_was(tune, out, tiny):
    tune(FAST)
    before = out.read_text()

    summary, pool = tune({"steady": 100.0, "quick": 60.0}, all=True)

    assert len(pool.calls) == 4
    assert out.read_text() == before
    assert [shape.verdict for shape in summary.shapes] == [Verdict.retained] * 2


def test_all_replaces_a_row_by_what_was_faster_beside_it(tune, kernels):
    tune({"steady": 100.0, "quick": 99.0})
    assert set(kernels().values()) == {"steady"}

    tune(FAST, all=True)
    assert set(kernels().values()) == {"quick"}


def test_all_replaces_a_row_whose_kernel_is_wrong_today(tune, kernels):
    tune(FAST)
    tune({"steady": 100.0, "quick": Measurement(Status.mismatch, 1.0, 1.0)}, all=True)

    assert set(kernels().values()) == {"steady"}


def test_an_interrupted_run_keeps_what_it_has_and_goes_on_with_the_rest(tune, kernels, out):
    stops = lambda shape, name: "stop" if (shape["N"], name) == (8, "quick") else FAST[name]  # noqa: E731
    summary, _ = tune(stops, confirm=False)
    assert summary.exit_code is ExitCode.interrupted
    assert kernels() == {16: "quick"}, "the costliest shape came first and was whole; the other is not published"
    assert "tuned.checkpoint.csv" in files(out)

    summary, pool = tune(FAST)

    assert pool.calls == [(8, "quick")], "no finished candidate is measured twice"
    assert kernels() == {8: "quick", 16: "quick"}
    assert summary.exit_code is ExitCode.done


def test_a_person_who_stops_the_run_casts_no_suspicion(tune):
    stop_twice = lambda shape, name: "stop" if name == "quick" else FAST[name]  # noqa: E731
    for _ in range(3):
        tune(stop_twice, sizes=(8,))
    summary, pool = tune(FAST, sizes=(8,))

    assert pool.calls == [(8, "quick")]
    assert summary.counts == {Status.ok: 2}


def test_a_candidate_that_was_running_when_the_run_died_comes_last(tune):
    with pytest.raises(SystemExit):
        tune(lambda shape, name: "die", sizes=(8,))

    _, pool = tune(FAST, sizes=(8,))

    assert pool.calls == [(8, "quick"), (8, "steady")]


def test_the_second_death_with_it_running_makes_it_a_crash(tune, kernels):
    for _ in range(2):
        with pytest.raises(SystemExit):
            tune(lambda shape, name: "die" if name == "steady" else FAST[name], sizes=(8,))

    summary, pool = tune(FAST, sizes=(8,))

    assert pool.calls == []
    assert summary.counts == {Status.ok: 1, Status.crash: 1}
    assert kernels() == {8: "quick"}
    assert "the run died 2 times while it ran" in summary.causes[0].detail


def test_retry_measures_those_that_failed_again_and_nothing_else(tune, kernels):
    tune(lambda shape, name: Status.crash if (shape["N"], name) == (8, "quick") else FAST[name])
    assert kernels() == {8: "steady", 16: "quick"}

    summary, pool = tune(FAST, retry=("crash", "timeout"))

    assert pool.calls == [(8, "quick")]
    assert kernels() == {8: "quick", 16: "quick"}
    assert summary.exit_code is ExitCode.done


def test_retry_with_nothing_to_retry_does_nothing_and_leaves_nothing(tune, out):
    tune(FAST)
    before = files(out)

    summary, pool = tune(FAST, retry=("crash",))

    assert pool.calls == []
    assert files(out) == before
    assert summary.exit_code is ExitCode.done


def test_a_retried_candidate_gets_a_new_attempt_on_record(tune, out):
    tune(lambda shape, name: Status.crash if name == "quick" else FAST[name], sizes=(8,))
    tune(FAST, sizes=(8,), retry=("crash",))

    newest = max(out.parent.glob("tuned.profile.*.csv"), key=os.path.getmtime)
    rows = [row.cells for row in read_rows(newest).rows]
    screened = [row for row in rows if (row["event"], row["phase"]) == ("finished", "screen")]
    assert [row["attempt"] for row in screened if row["candidate"] == "quick"] == ["2"]


def test_other_conditions_set_the_checkpoint_aside_and_say_which(tune, out):
    tune(lambda shape, name: "stop" if name == "quick" else FAST[name])
    reporter = Notes()

    _, pool = tune(FAST, reporter=reporter, iters=7)

    assert len(pool.calls) == 4
    assert any("iters: 101 -> 7" in note for note in reporter.notes)
    assert [name for name in files(out) if name.startswith("tuned.checkpoint.")] != []


def test_fresh_starts_anew_and_deletes_nothing(tune, out):
    tune(lambda shape, name: "stop" if name == "quick" else FAST[name], sizes=(8,))

    _, pool = tune(FAST, sizes=(8,), fresh=True)

    assert len(pool.calls) == 2
    assert len([name for name in files(out) if name.startswith("tuned.checkpoint.")]) == 1


def test_a_shape_with_candidates_left_is_not_published(tune, kernels):
    summary, _ = tune(lambda shape, name: "clock" if name == "quick" else FAST[name], sizes=(8,))

    assert kernels() == {}
    assert summary.exit_code is ExitCode.interrupted
    assert summary.shapes[0].counts == {Status.ok: 1, Status.not_run: 1}


def test_the_groups_clock_casts_no_suspicion(tune):
    for _ in range(2):
        tune(lambda shape, name: "clock" if name == "quick" else FAST[name], sizes=(8,))
    summary, _ = tune(FAST, sizes=(8,))

    assert summary.counts == {Status.ok: 2}


def test_a_budget_publishes_the_best_so_far_and_a_later_run_goes_on(tune, kernels):
    summary, pool = tune(lambda shape, name: "budget" if name == "quick" else FAST[name], sizes=(8,), budget=100.0)
    assert summary.exit_code is ExitCode.interrupted
    assert kernels() == {8: "steady"}
    assert 0 < pool.seen["budget_s"] <= 100

    summary, pool = tune(FAST, sizes=(8,))

    assert pool.calls == [(8, "quick")]
    assert kernels() == {8: "quick"}
    assert summary.exit_code is ExitCode.done


def test_a_budget_that_ends_before_anything_is_measured_is_told_to_be_too_small(tune):
    summary, _ = tune(lambda shape, name: "budget", sizes=(8,), budget=0.1)
    assert summary.message.startswith("the budget was used up before a candidate was measured")
    assert "run the same command again" not in summary.message


def test_a_changed_candidate_is_measured_again_and_the_others_are_not(tune, tiny, monkeypatch):
    tune(lambda shape, name: "stop" if shape["N"] == 8 and name == "quick" else FAST[name], confirm=False)
    changed = [Candidate("steady", {"do": "steady"}), Candidate("quick", {"do": "quick", "tile": 2})]
    monkeypatch.setattr(type(tiny()), "candidates", lambda self, shape, device: changed)

    _, pool = tune(lambda shape, name: FAST[name.split()[0]])

    # A row's own config is what serving launches, whatever the candidate of its name is today.
    assert pool.calls == [(8, "quick"), (16, "quick as published"), (16, "quick")]


def test_a_shape_that_another_one_serves_is_tuned_where_the_lookup_lands(tune, out, tiny):
    reporter = Notes()
    tune(FAST, sizes=(96, 128), family="Bucketed", reporter=reporter)

    assert [row.shape["N"] for row in TunedCsv(out, tiny().key).rows()] == [128]
    assert any("N=96" in note for note in reporter.notes)


def test_a_row_in_any_of_several_tuned_files_counts_and_the_first_is_written(
    tune, out, kernels, tiny, shapes, scripted
):
    tune(FAST, sizes=(8,))
    other = out.with_name("other.csv")
    shutil.move(out, other)
    pool = scripted(FAST)
    args = argparse.Namespace(untune_file=str(shapes(8, 16)), tune_file=f"{out}{os.pathsep}{other}")

    TunerCommon(tiny()).run(args, pool=pool)

    assert {size for size, _ in pool.calls} == {16}
    assert kernels() == {16: "quick"}


def test_of_several_tuned_files_the_row_that_counts_is_the_incumbent_whichever_file_has_it(tiny, out, shapes):
    here = cpu_lanes(1)[0]
    for path, kernel, us in (
        (out, "steady", 5.0),
        (out.with_name("a.csv"), "quick", 3.0),
        (out.with_name("b.csv"), "steady", 4.0),
    ):
        row = TunedRow(here.gfx, here.cu_num, here.gpu_model, {"N": 8}, 0, 0, us, kernel)
        TunedCsv(path, tiny().key).update([row])
    listed = f"{out}{os.pathsep}{out.parent}/?.csv"
    args = argparse.Namespace(untune_file=str(shapes(8)), tune_file=listed, device="cpu", mp=1, all=True)

    overview = TunerCommon(tiny()).overview(args)

    assert [planned.incumbent for planned in overview.shapes] == ["quick"]
    shadowed = [note for note in overview.notes if "the key of" in note]
    assert [note.partition(":2: ")[0] for note in shadowed] == [str(out), str(out.with_name("b.csv"))]


def test_a_file_without_rows_is_no_error_and_leaves_nothing(tune, out):
    summary, _ = tune(FAST, sizes=())

    assert (summary.exit_code, summary.shapes) == (ExitCode.done, ())
    assert files(out) == []


def test_a_stop_before_the_pool_runs_is_not_lost(tiny, out, scripted, shapes):
    tuner, pool = TunerCommon(tiny()), scripted(FAST)
    tuner.request_stop()

    summary = tuner.run(argparse.Namespace(untune_file=str(shapes(8)), tune_file=str(out)), pool=pool)

    assert pool.calls == []
    assert summary.exit_code is ExitCode.interrupted


def test_results_that_cannot_be_written_end_the_run_with_5_and_lose_nothing(tune, out, kernels):
    def script(shape, name):
        if (shape["N"], name) == (8, "quick") and not out.is_dir():
            out.unlink(missing_ok=True)
            out.mkdir()
        return FAST[name]

    summary, _ = tune(script)
    assert summary.exit_code is ExitCode.write_failed
    assert "could not be written" in summary.message

    out.rmdir()
    summary, pool = tune(FAST)
    assert pool.calls == []
    assert kernels() == {8: "quick", 16: "quick"}


def test_only_a_full_disk_asks_for_room(tune, out, monkeypatch):
    def fail(error):
        def update(self, rows, **options):
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(TunedCsv, "update", update)
        return tune(FAST)[0]

    assert "make room" in fail(errno.ENOSPC).message
    assert "make room" not in fail(errno.EACCES).message


def test_a_run_that_could_write_nothing_says_how_many_shapes_there_were(tune, monkeypatch):
    def update(self, rows, **options):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(TunedCsv, "update", update)
    summary, _ = tune(FAST, batch=1)

    assert summary.exit_code is ExitCode.write_failed
    assert (summary.shapes_to_tune, summary.has_rows) == (2, False)


def test_a_shape_that_was_begun_is_finished_before_a_costlier_one_begins(tune):
    with pytest.raises(SystemExit):
        tune(lambda shape, name: "die" if name == "quick" else FAST[name], sizes=(8,))

    _, pool = tune(FAST, sizes=(8, 16))

    assert [size for size, _ in pool.calls] == [8, 16, 16]


def test_a_family_that_fails_leaves_no_checkpoint(tune, tiny, out, monkeypatch):
    monkeypatch.setattr(type(tiny()), "default", lambda self, shape, device: None)

    with pytest.raises(FamilyError):
        tune(FAST)
    assert files(out) == []


def test_a_run_that_ends_before_its_first_candidate_leaves_no_checkpoint(tune, out):
    class Refuses(Notes):
        def run_started(self, overview):
            raise RuntimeError("no lane could be started")

    with pytest.raises(RuntimeError):
        tune(FAST, reporter=Refuses())
    assert files(out) == []


def test_the_profile_gets_every_candidate_once_also_over_an_interruption(tune, out):
    profile = out.with_name("profile.csv")
    tune(lambda shape, name: "stop" if (shape["N"], name) == (8, "quick") else FAST[name], profile_file=str(profile))
    tune(FAST, profile_file=str(profile))

    rows = [(row.cells["N"], row.cells["kernelName"]) for row in read_rows(profile).rows]
    assert sorted(rows) == [("16", "quick"), ("16", "steady"), ("8", "quick"), ("8", "steady")]


def test_warmup_and_iters_reach_the_timer(tune, scripted):
    _, pool = tune(FAST, warmup=3, iters=9)

    assert (pool.seen["plan"].warmup, pool.seen["plan"].iters) == (3, 9)
    kwargs = TunerCommon.measurement_kwargs(argparse.Namespace(warmup=3, iters=9))
    assert (kwargs["num_warmup"], kwargs["num_iters"]) == (3, 9)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"iters": 0}, "iters must be 1 or more"),
        ({"batch": 0}, "batch must be 1 or more"),
        ({"errRatio": 1.5}, "err_ratio is a fraction"),
        ({"timeout": -1}, "timeout must be above 0"),
        ({"budget": float("nan")}, "--budget is nan"),
        ({"mp": -1}, "--mp is -1"),
        ({"tune_file": ":"}, "--tune_file names no file"),
    ],
)
def test_arguments_that_mean_nothing_are_told_before_anything_is_written(tiny, out, shapes, scripted, flags, told):
    args = {"untune_file": str(shapes(8)), "tune_file": str(out)} | flags
    with pytest.raises(UsageError, match=told):
        TunerCommon(tiny()).run(args, pool=scripted(FAST))

    assert files(out) == []


def test_evidence_that_cannot_be_written_is_told_before_anything_is_measured(tune, out):
    evidence_path(out).mkdir()
    with pytest.raises(UsageError, match=r"the evidence \S+tuned\.evidence\.jsonl: is a directory; expected a file"):
        tune(FAST)
    assert files(out) == [evidence_path(out).name]


def test_a_table_of_a_family_with_another_key_is_refused(tune, tiny, out, shapes, scripted):
    tune(FAST, sizes=(8,))
    text = evidence_path(out).read_text()
    evidence_path(out).write_text(text.replace('"family":"tiny"', '"family":"older"'))
    tune(FAST, sizes=(8, 16))  # it may have been renamed
    evidence_path(out).write_text(text.replace('"family":"tiny"', '"family":"gemm"').replace('"N":8', '"M":8,"N":8'))
    before = out.read_text()
    with pytest.raises(UsageError, match="its rows are of the family gemm, as its evidence says; name another file"):
        tune(FAST, sizes=(8, 32))
    assert out.read_text() == before


def test_an_overview_counts_shapes_and_candidates_and_writes_nothing(tune, tiny, out, shapes):
    overview = TunerCommon(tiny()).overview({"untune_file": str(shapes(8, 16, 8)), "tune_file": str(out)})

    assert (len(overview.shapes), overview.candidates) == (2, 4)
    assert files(out) == []


def test_a_file_without_shapes_is_told(tune):
    reporter = Notes()
    summary, pool = tune(FAST, sizes=(), reporter=reporter)

    assert (pool.calls, summary.exit_code) == ([], ExitCode.done)
    assert any("holds no shape" in note for note in reporter.notes)


def test_rows_for_parts_of_the_cpu_are_told_to_be_none_for_all_of_it(tiny, out, shapes, scripted):
    pool, reporter = scripted(FAST), Notes()
    half = replace(pool.devices[0], torch_device="cpu", gfx="x86-64-v4", cu_num=4)
    args = argparse.Namespace(untune_file=str(shapes(8)), tune_file=str(out))
    for devices in ((half,), (half, half)):
        pool.devices = devices
        TunerCommon(tiny("Tiny")).run(args, reporter, pool=pool)

    told = [note for note in reporter.notes if "the rows are for" in note]
    assert [note.split(",")[0] for note in told] == ["2 lanes of 4 cores: the rows are for processes on 4 cores"]


def test_what_a_run_would_do_tells_of_what_it_would_not_do_again(tune, tiny, out, shapes):
    tune(lambda shape, name: "stop" if name == "quick" else FAST[name], sizes=(8,))
    args = {"untune_file": str(shapes(8)), "tune_file": str(out)}

    (note,) = TunerCommon(tiny()).overview(args).notes
    assert note == f"{out.with_name('tuned.checkpoint.csv')}: what it has on record is not measured again"
    assert TunerCommon(tiny()).overview(args | {"fresh": True}).notes == ()


def test_a_row_whose_kernel_is_gone_is_tuned_again_as_serving_passes_it_over(tune, tiny, out, kernels):
    tune(FAST)
    file = TunedCsv(out, tiny().key)
    file.update(replace(row, kernelName="gone") for row in file.rows() if row.shape["N"] == 8)
    reporter = Notes()
    _, pool = tune(FAST, fresh=True, reporter=reporter)

    assert {size for size, _ in pool.calls} == {8}
    assert kernels() == {8: "quick", 16: "quick"}
    assert any("gone for N=8" in note for note in reporter.notes)
    summary, pool = tune(FAST, fresh=True)
    assert (pool.calls, summary.already_tuned) == ([], 2)


def test_an_overview_counts_a_row_whose_kernel_is_gone_as_none(tiny, out, shapes):
    here = cpu_lanes(1)[0]
    TunedCsv(out, tiny().key).update(
        TunedRow(here.gfx, here.cu_num, here.gpu_model, {"N": size}, 0, 0, 1.0, kernel)
        for size, kernel in ((8, "gone"), (16, "quick"))
    )

    overview = TunerCommon(tiny()).overview({"untune_file": str(shapes(8, 16)), "tune_file": str(out), "device": "cpu"})

    assert [planned.label for planned in overview.shapes] == ["N=8 dtype=fp32"]
    assert overview.already_tuned == 1


def test_a_shape_that_the_family_refuses_is_told_by_its_line_before_anything_is_measured(tune, tiny, out, shapes):
    asked = []

    def script(shape, name):
        asked.append(shape)
        return 5.0

    with pytest.raises(FamilyError) as raised:
        tune(script, sizes=(8, 16, 200), family="Picky")

    assert str(raised.value).startswith(
        f"{shapes(8, 16, 200)}:4: family picky: no candidates for N=200 dtype=fp32: ValueError: no"
    )
    assert not asked and not files(out)
    with pytest.raises(FamilyError, match=r"shapes\.csv:3: family picky"):
        TunerCommon(tiny("Picky")).overview(
            {"untune_file": str(shapes(8, 300)), "tune_file": str(out), "device": "cpu"}
        )


def test_shapes_without_candidates_are_told_in_one_note(tune, tiny, out, shapes):
    reporter = Notes()

    summary, _ = tune(FAST, sizes=(8, 9, 16), family="Picky", reporter=reporter)

    assert [shape.winner for shape in summary.shapes] == ["steady", "steady", "quick"]
    (told,) = [note for note in reporter.notes if "candidates()" in note]
    assert "candidates() of picky gives none for 2 shapes" in told and told.endswith("N=8 dtype=fp32 and others")
    arguments = {"untune_file": str(shapes(7, 16)), "tune_file": str(out), "device": "cpu"}
    (told,) = [note for note in TunerCommon(tiny("Picky")).overview(arguments).notes if "candidates()" in note]
    assert "gives none for 1 shape" in told
