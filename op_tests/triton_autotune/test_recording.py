"""What Triton's timing found is on file as it is found, with every candidate's times, and survives what may happen."""

import json
import logging
import math
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
import torch
import triton
from triton import knobs

from aiter_tuning.triton_autotune import active_policy, choice_log, count_votes, install, uninstall, use_policy
from aiter_tuning.triton_autotune.choices import Place
from aiter_tuning.triton_autotune.config_json import compact, config_record
from aiter_tuning.triton_autotune.hooks import _listening_knobs
from aiter_tuning.triton_autotune.identity import Fingerprint, fingerprint
from aiter_tuning.triton_autotune.interception import _hooks
from aiter_tuning.triton_autotune.recording import Recorder, check_writable, read_recording, read_winners


@pytest.fixture
def recording(kernels, tmp_path):
    """A policy that records the kernels of these tests into ``tmp_path/r``."""
    return {"record_path": str(tmp_path / "r"), "modules": [kernels.MODULE], "arch": "sm90"}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def block_times(tuning):
    return {json.loads(text)["kwargs"]["BLOCK"]: times for text, times in tuning.times.items()}


def test_winners_and_the_times_of_all_candidates_are_on_file_before_the_policy_ends(kernels, recording, tmp_path):
    tuner = kernels.autotuned()
    install(recording)
    assert kernels.launch(tuner) == kernels.MIDDLE
    assert names(tmp_path) == ["r.rank0.json", "r.rank0.timings.jsonl"]
    held = read_recording(tmp_path / "r.rank0.json")
    name = f"{kernels.MODULE}.add_kernel"
    assert held.winners == {"sm90": {name: {kernels.key_text(): config_record(tuner.configs[1])}}}
    tuning = held.tunings["sm90", name, kernels.key_text()]
    assert block_times(tuning) == {size: (t, t * 0.99, t * 1.01) for size, t in ((128, 3.0), (64, 1.0), (32, 2.0))}
    assert tuning.fingerprint == fingerprint(tuner)
    assert not tuning.from_disk
    assert held.environment["triton"] == triton.__version__
    assert choice_log() == {f"sm90|{name}|{kernels.key_text()}": compact(config_record(tuner.configs[1])) + ";timed"}


def test_an_older_reader_sees_a_recording_of_its_own_form(kernels, recording, tmp_path):
    """Such a reader wants dictionaries three deep, and counts a vote for each innermost one."""
    with use_policy(recording):
        kernels.launch(kernels.autotuned())
    data = json.loads((tmp_path / "r.rank0.json").read_text())
    votes = Counter()
    for arch, held in data.items():
        for kernel, entries in held.items():
            for key, config in entries.items():
                assert isinstance(config, dict)
                votes[arch, kernel, key] += 1
    assert set(votes) == set(count_votes([tmp_path / "r.rank0.json"]))
    assert "format" in data


def test_a_recording_of_the_older_form_is_read(tmp_path, kernels):
    path = tmp_path / "old.rank0.json"
    path.write_text(json.dumps({"sm90": {"k": {"*": kernels.entry(64)}}}))
    assert read_winners(path) == {"sm90": {"k": {"*": kernels.entry(64)}}}
    assert read_recording(path).tunings == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"sm90": {"k"', "not valid JSON.*may be truncated"),
        ('{"arch": "sm90", "kernels": {}}', "this is a tuned table, not a per-rank recording"),
        ("[]", "expected {arch"),
        ('{"sm90": {"k": []}}', "expected {arch"),
        ('{"sm90": {"k": {"*": 1}}}', "expected {arch"),
        ('{"format": {"aiter_tuning.recording/9": {}}}', "recording/9, this program reads"),
    ],
)
def test_what_is_no_recording_is_named(tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"x.json.*{said}"):
        read_winners(path)
    with pytest.raises(FileNotFoundError):
        read_winners(tmp_path / "absent.json")


def test_a_later_run_never_writes_over_an_earlier_one(kernels, recording, tmp_path):
    for n in (100, 200, 300):
        with use_policy(recording):
            kernels.launch(kernels.autotuned(), n)
    assert [name for name in names(tmp_path) if name.endswith(".json")] == [
        "r.rank0.json",
        "r.rank0.run2.json",
        "r.rank0.run3.json",
    ]
    assert len(count_votes(tmp_path.glob("*.json"))) == 3


def test_a_recording_of_the_older_form_is_not_written_over(kernels, recording, tmp_path):
    (tmp_path / "r.rank0.json").write_text("{}")
    with use_policy(recording):
        kernels.launch(kernels.autotuned())
    assert (tmp_path / "r.rank0.json").read_text() == "{}"
    assert len(read_winners(tmp_path / "r.rank0.run2.json")) == 1


def test_installing_another_record_policy_keeps_what_the_first_one_wrote(kernels, recording, tmp_path):
    install(recording)
    kernels.launch(kernels.autotuned())
    _hooks.session.recorder._last_cost_s = 1e9  # so slow a disk that winners wait for the end
    kernels.launch(kernels.autotuned(), 300)
    install(recording | {"verify_every": 1})
    assert "n=300" in (tmp_path / "r.rank0.json").read_text()
    kernels.launch(kernels.autotuned(), 200)
    uninstall()
    assert len(count_votes(tmp_path.glob("*.json"))) == 3


def test_the_file_has_the_rank_at_the_first_record(kernels, recording, tmp_path, monkeypatch):
    with use_policy(recording):
        monkeypatch.setenv("RANK", "3")
        kernels.launch(kernels.autotuned())
        monkeypatch.setenv("RANK", "4")
        kernels.launch(kernels.autotuned(), 200)
    assert names(tmp_path) == ["r.rank3.json", "r.rank3.timings.jsonl"]


def test_a_kernel_that_was_timed_before_is_timed_again_for_the_record(kernels, recording, tmp_path):
    tuner = kernels.autotuned()
    kernels.launch(tuner, 100)
    with use_policy(recording):
        kernels.launch(tuner, 100)
        kernels.launch(tuner, 100)
        kernels.launch(tuner, 200)
    assert tuner.bench.calls == 9
    assert len(count_votes(tmp_path.glob("*.json"))) == 2
    kernels.launch(tuner, 100)
    kernels.launch(tuner, 200)
    assert tuner.bench.calls == 9


def test_a_kernel_whose_launch_fails_after_its_tuning_is_recorded(kernels, recording, tmp_path):
    calls = []

    def hook(args):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("at the launch")

    tuner = kernels.autotuned(configs=[kernels.config(128), kernels.config(64, pre_hook=hook)])
    with use_policy(recording), pytest.raises(RuntimeError, match="at the launch"):
        kernels.launch(tuner)
    assert len(count_votes(tmp_path.glob("*.json"))) == 1


def test_arguments_that_json_cannot_hold_are_recorded_and_pinned_again(kernels, recording, tmp_path):
    import triton.language as tl

    from aiter_tuning.triton_autotune import merge_records, write

    def configs():
        return [triton.Config({"BLOCK": 32, "KIND": kind}) for kind in (tl.float16, (1, 2), len)]

    def run(tuner):
        tuner[kernels.grid(8)](torch.zeros(8), 8, None)
        return tuner.best_config.kwargs["KIND"]

    tuner = kernels.autotuned(kernels.fill_kernel, configs=configs(), bench=kernels.Bench(3.0, 1.0, 2.0))
    with use_policy(recording):
        assert run(tuner) == (1, 2)
    write("sm90", merge_records(tmp_path.glob("*.json"))["sm90"], tmp_path / "tables" / "sm90.json")
    fresh = kernels.autotuned(kernels.fill_kernel, configs=configs())
    with use_policy(recording | {"mode": "pinned", "table_path": [str(tmp_path / "tables")], "on_miss": "error"}):
        assert run(fresh) == (1, 2)


def test_configs_that_did_not_run_have_infinite_times(kernels, recording, tmp_path):
    with use_policy(recording):
        kernels.launch(kernels.autotuned(bench=kernels.Bench(math.inf, 2.0, math.inf)))
    (tuning,) = read_recording(tmp_path / "r.rank0.json").tunings.values()
    assert block_times(tuning)[128] == (math.inf,) * 3
    assert "Infinity" not in (tmp_path / "r.rank0.timings.jsonl").read_text()


def test_two_kernels_of_one_name_are_recorded_apart(kernels, recording, tmp_path):
    with use_policy(recording):
        kernels.launch(kernels.autotuned())
        kernels.launch(kernels.autotuned(configs=[kernels.config(128), kernels.config(64)]))
    held = read_recording(tmp_path / "r.rank0.json")
    assert len(held.winners["sm90"]) == 2
    assert {kernel for _, kernel, _ in held.tunings} == set(held.winners["sm90"])


def test_a_config_that_pruning_left_alone_is_recorded(kernels, recording, tmp_path):
    tuner = kernels.autotuned(prune_configs_by={"early_config_prune": lambda configs, named, **kwargs: configs[:1]})
    with use_policy(recording):
        assert kernels.launch(tuner) == kernels.LARGE
    assert len(count_votes(tmp_path.glob("*.json"))) == 1


# -- files


def test_a_record_path_that_cannot_be_written_is_refused_and_the_old_policy_stays(tmp_path, monkeypatch):
    check_writable(str(tmp_path / "new" / "deep" / "r"))
    assert (tmp_path / "new" / "deep").is_dir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    install({"mode": "auto", "chaos": True})
    with pytest.raises(PermissionError, match="not writable"):
        install({"record_path": str(tmp_path / "r")})
    assert active_policy().chaos
    monkeypatch.undo()


def test_a_record_that_cannot_be_written_is_logged_and_the_launch_goes_on(kernels, recording, tmp_path, caplog):
    caplog.set_level(logging.ERROR)
    tuner = kernels.autotuned()
    install(recording | {"record_path": str(tmp_path / "gone" / "r")})
    (tmp_path / "gone").rmdir()
    assert kernels.launch(tuner) == kernels.MIDDLE
    assert "cannot record" in caplog.text
    (tmp_path / "gone").mkdir()
    kernels.launch(tuner, 200)
    assert len(count_votes((tmp_path / "gone").glob("*.json"))) == 2


def place(key):
    return Place("sm90", "k", "tag", key)


def test_the_file_of_winners_may_not_take_more_than_a_tenth_of_the_time(kernels, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("aiter_tuning.triton_autotune.recording.time.monotonic", lambda: now[0])
    writes = []

    def slow(path, value):
        writes.append(now[0])
        now[0] += 1.0

    monkeypatch.setattr("aiter_tuning.triton_autotune.recording.write_json", slow)
    recorder = Recorder(str(tmp_path / "r"))
    for step in range(100):
        recorder.add(place(str(step)), kernels.config(64), {}, Fingerprint("", ""))
        now[0] += 0.5
    assert len(writes) <= 6
    recorder.flush()
    lines = (tmp_path / "r.rank0.timings.jsonl").read_text().splitlines()
    assert len(lines) == 101


def test_a_line_that_was_cut_by_a_kill_is_left_out(kernels, tmp_path):
    recorder = Recorder(str(tmp_path / "r"))
    for key in "ab":
        recorder.add(place(key), kernels.config(64), {kernels.config(64): [1.0, 1.0, 1.0]}, Fingerprint("", ""))
    recorder.flush()
    path = tmp_path / "r.rank0.timings.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [key for _, _, key in read_recording(tmp_path / "r.rank0.json").tunings] == ["a"]


def test_a_child_that_inherits_a_recorder_writes_files_of_its_own(kernels, tmp_path):
    recorder = Recorder(str(tmp_path / "r"))
    recorder.add(place("parent"), kernels.config(64), {}, Fingerprint("", ""))
    recorder._owner = -1  # as after a fork
    recorder.add(place("child"), kernels.config(64), {}, Fingerprint("", ""))
    assert [list(read_winners(tmp_path / f"r.rank0{run}.json")["sm90"]["k"]) for run in ("", ".run2")] == [
        ["parent"],
        ["child"],
    ]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Recording processes, all at once, that ended in different ways: exit codes and directories."""
    folder = tmp_path_factory.mktemp("ended")
    processes = {
        end: subprocess.Popen(
            [sys.executable, "-m", "op_tests.triton_autotune.recording_process", str(folder / end / "r"), end],
            env={**os.environ, "RANK": "0"},
        )
        for end in ("exit", "SIGTERM", "SIGTERM-handled", "SIGKILL")
    }
    return {end: (process.wait(100), folder / end) for end, process in processes.items()}


def keys_in(folder):
    return [key.partition("|")[0] for _, _, key in count_votes(folder.glob("*.json"))]


def flat(winners):
    return [entry for kernels in winners.values() for entries in kernels.values() for entry in entries.values()]


def test_at_exit_and_on_sigterm_everything_is_on_file_and_the_process_ends_as_it_would_have(ended):
    assert {end: ended[end][0] for end in ("exit", "SIGTERM", "SIGTERM-handled")} == {
        "exit": 0,
        "SIGTERM": -signal.SIGTERM,
        "SIGTERM-handled": 7,
    }
    for end in ("exit", "SIGTERM", "SIGTERM-handled"):
        assert keys_in(ended[end][1]) == ["n=100", "n=200"]
        assert "n=200" in (ended[end][1] / "r.rank0.json").read_text()


def test_a_killed_process_has_lost_nothing_and_left_no_half_file(ended):
    code, folder = ended["SIGKILL"]
    assert code == -signal.SIGKILL
    assert "n=200" not in (folder / "r.rank0.json").read_text()
    assert keys_in(folder) == ["n=100", "n=200"]
    assert {json.dumps(entry["kwargs"]) for entry in flat(read_winners(folder / "r.rank0.json"))} == {'{"BLOCK": 64}'}
    assert len(read_recording(folder / "r.rank0.json").tunings) == 2
    assert names(folder) == ["r.rank0.json", "r.rank0.timings.jsonl"]


# -- the two ways to learn the times


class Compiled:
    """Launches of a compiled kernel, without a device: only its ``run`` is replaced."""

    def __init__(self, kernels):
        self.tuner = kernels.autotuned(kernels.compiled_add_kernel)
        self.launched = []

    def launch(self, n=100):
        x = torch.ones(1)
        self.tuner[1,](x, x, x, n)

    def run(self, *args, grid, warmup, BLOCK, **options):
        self.launched.append(BLOCK)


@pytest.fixture
def compiled(kernels):
    made = Compiled(kernels)
    with kernels.instead(kernels.compiled_add_kernel, "run", made.run):
        yield made


def test_a_compiled_kernel_is_recorded_whether_triton_has_a_listener_or_not(compiled, recording, tmp_path, monkeypatch):
    asked = []
    from aiter_tuning.triton_autotune.launch import Adopted

    original = Adopted.timed

    def timed(self, *details):
        asked.append(sys._getframe(1).f_code.co_name)
        original(self, *details)

    monkeypatch.setattr(Adopted, "timed", timed)
    with use_policy(recording):
        compiled.launch()
    assert asked == (["listener"] if hasattr(knobs.autotuning, "listener") else ["_check_disk_cache"])
    (tuning,) = read_recording(tmp_path / "r.rank0.json").tunings.values()
    assert block_times(tuning)[64][0] == 1.0
    assert compiled.launched[-1] == 64


def test_a_pinned_compiled_kernel_runs_its_choice(compiled, kernels):
    with use_policy({"mode": "pinned", "modules": [kernels.MODULE]}):
        compiled.launch()
        compiled.launch()
    assert compiled.launched == [32, 32]
    assert compiled.tuner.bench.calls == 0


@pytest.mark.skipif(not hasattr(knobs.autotuning, "listener"), reason="Triton before 3.8 has no listener")
def test_the_callers_own_listener_hears_everything_and_is_put_back(compiled, kernels, recording, monkeypatch):
    heard = []
    monkeypatch.setattr(knobs.autotuning, "listener", lambda **event: heard.append(event["fn"]))
    mine = knobs.autotuning.listener
    with use_policy(recording):
        compiled.launch()
        monkeypatch.setattr(knobs.autotuning, "listener", lambda **event: heard.append("late"))
        compiled.launch(200)
        assert len(choice_log()) == 2
    uninstall()
    assert heard == [kernels.compiled_add_kernel, "late"]
    assert knobs.autotuning.listener is not None
    knobs.autotuning.listener = mine
    with use_policy(recording):
        compiled.launch(300)
    assert knobs.autotuning.listener is mine


@pytest.mark.skipif(not hasattr(knobs.autotuning, "listener"), reason="Triton before 3.8 has no listener")
def test_a_kernel_out_of_scope_is_not_taken_for_one_in_scope(compiled, kernels, recording):
    with use_policy(recording | {"modules": []}):
        compiled.launch()
        assert choice_log() == {}


def test_the_patch_is_used_where_there_is_no_listener(compiled, recording, tmp_path, monkeypatch):
    monkeypatch.setattr("aiter_tuning.triton_autotune.hooks._listening_knobs", lambda: None)
    with use_policy(recording):
        compiled.launch()
    assert len(read_recording(tmp_path / "r.rank0.json").tunings) == 1


def test_a_triton_of_unknown_make_is_watched_by_its_cache(kernels, recording, tmp_path, monkeypatch):
    monkeypatch.setattr("aiter_tuning.triton_autotune.hooks.Hooks._sees_misses", lambda self, *launch: False)
    tuner = kernels.autotuned()
    with use_policy(recording):
        assert [kernels.launch(tuner, n) for n in (100, 200, 100)] == [64] * 3
    assert len(read_recording(tmp_path / "r.rank0.json").tunings) == 2
    with use_policy(recording | {"mode": "pinned"}):
        assert kernels.launch(tuner) == 32


def test_winners_from_tritons_disk_cache_are_marked(compiled, recording, tmp_path, monkeypatch):
    """Triton's own part needs a driver; what matters is that its answer is passed on."""
    from triton.runtime.autotuner import Autotuner

    def from_disk(self, tuning_key, configs, bench_fn):
        self.cache[tuning_key] = configs[0]
        self.configs_timings = {config: [1.0, 1.0, 1.0] for config in configs}
        return True

    monkeypatch.setattr(Autotuner, "check_disk_cache", from_disk)
    compiled.tuner.cache_results = True
    with use_policy(recording):
        compiled.launch()
    assert compiled.tuner.bench.calls == 0
    assert compiled.tuner.cache_results is True
    (tuning,) = read_recording(tmp_path / "r.rank0.json").tunings.values()
    assert tuning.from_disk


def test_the_version_says_whether_there_is_a_listener():
    has = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8)
    assert (_listening_knobs() is not None) is has
