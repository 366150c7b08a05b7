"""Installing a policy: which kernels it reaches, what their launches do, and how it is taken back. Real kernels."""

import gc
import inspect
import json
import logging
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner

from aiter_tuning.triton_autotune import (
    AutotunePolicy,
    BenchmarkRefusedError,
    active_policy,
    choice_digest,
    choice_log,
    choice_sources,
    install,
    maybe_verify_choices,
    set_deterministic_mode,
    uninstall,
    use_policy,
    verify_choices,
    write_choice_log,
)
from aiter_tuning.triton_autotune import hooks as hooks_module
from aiter_tuning.triton_autotune.interception import _hooks


@pytest.fixture
def pinned(kernels):
    """A policy that pins the kernels of these tests."""
    return AutotunePolicy(mode="pinned", modules=(kernels.MODULE,), arch="sm90")


def with_table(policy, folder, **more):
    import dataclasses

    return dataclasses.replace(policy, table_path=(folder,), **more)


def place(kernels, name="add_kernel", arch="sm90", key=None):
    return f"{arch}|{kernels.MODULE}.{name}|{key if key is not None else kernels.key_text()}"


# -- installing


def test_installing_touches_no_device_and_reads_no_table(monkeypatch, pinned, tmp_path):
    def forbidden(*args):
        raise AssertionError("a device was asked")

    for name in ("current_device", "get_device_capability", "is_available", "device_count"):
        monkeypatch.setattr(torch.cuda, name, forbidden)
    install(with_table(pinned, str(tmp_path / "absent")))
    assert active_policy().mode == "pinned"


def test_a_policy_that_sees_nothing_leaves_triton_alone():
    before = Autotuner.run, Autotuner.prune_configs, Autotuner._bench, Autotuner.check_disk_cache
    install()
    assert (Autotuner.run, Autotuner.prune_configs, Autotuner._bench, Autotuner.check_disk_cache) == before
    install({"mode": "pinned"})
    assert Autotuner.run is not before[0]
    assert inspect.unwrap(Autotuner.run) is before[0]
    install()
    assert (Autotuner.run, Autotuner.prune_configs, Autotuner._bench, Autotuner.check_disk_cache) == before


def test_uninstalling_gives_every_autotuner_back_as_it_was(kernels, pinned):
    tuner = kernels.autotuned()
    timed = kernels.launch(tuner)
    attributes = dict(vars(tuner), cache=dict(tuner.cache))
    with use_policy(pinned):
        assert kernels.launch(tuner) == kernels.SMALL != timed == kernels.MIDDLE
    restored = dict(vars(tuner), cache=dict(tuner.cache))
    changing = {"best_config", "nargs"}  # by Triton, at each launch
    assert {k: v for k, v in restored.items() if k not in changing} == {
        k: v for k, v in attributes.items() if k not in changing
    }
    assert kernels.launch(tuner) == timed
    assert active_policy() is None
    assert choice_log() == {}


def test_mappings_are_accepted_and_anything_else_is_refused_before_anything_changes(pinned):
    install(pinned)
    with pytest.raises(TypeError, match="not list"):
        install(["pinned"])
    with pytest.raises(ValueError, match="on_miss"):
        install({"on_miss": "guess"})
    assert active_policy() is pinned
    install({"mode": "auto"})
    assert active_policy() == AutotunePolicy(mode="auto")


def test_the_last_install_wins_and_none_is_the_default(pinned):
    install(pinned)
    install({"mode": "auto", "verify_every": 3})
    assert active_policy().verify_every == 3
    install()
    assert active_policy() == AutotunePolicy(mode="auto")


def test_a_mode_left_open_is_derived_when_the_policy_is_installed(tmp_path):
    install(deterministic=True)
    assert active_policy().mode == "pinned"
    install({"record_path": str(tmp_path / "r")}, deterministic=True)
    assert active_policy().mode == "record"
    set_deterministic_mode(True)
    install()
    assert active_policy().mode == "pinned"


def test_a_context_manager_and_decorator_put_the_policy_before_back(kernels, pinned):
    tuner = kernels.autotuned()
    install({"mode": "auto", "verify_every": 1})

    @use_policy(pinned)
    def inside():
        return active_policy(), kernels.launch(tuner)

    for _ in range(2):
        assert inside() == (pinned, kernels.SMALL)
        assert active_policy().verify_every == 1
    with pytest.raises(ZeroDivisionError), use_policy(pinned):
        raise ZeroDivisionError
    assert active_policy().verify_every == 1


def test_a_triton_without_an_autotuner_is_an_import_error_and_the_old_policy_stays(monkeypatch, pinned):
    install({"mode": "auto"})
    monkeypatch.delattr("triton.runtime.autotuner.Autotuner")
    with pytest.raises(ImportError, match=triton.__version__):
        install(pinned)
    assert active_policy().mode == "auto"


def test_without_triton_there_is_nothing_to_patch(monkeypatch, pinned):
    monkeypatch.setitem(sys.modules, "triton", None)
    install(pinned)
    assert active_policy() is pinned


# -- pinning


def test_a_pinned_kernel_is_never_timed_and_computes_the_right_thing(kernels, pinned):
    tuner = kernels.autotuned()
    install(pinned)
    assert [kernels.launch(tuner, n) for n in (100, 200, 100)] == [kernels.SMALL] * 3
    assert tuner.bench.calls == 0
    assert len(tuner.cache) == 2


def test_autotuners_made_before_and_after_are_reached(kernels, pinned):
    before = kernels.autotuned()
    install(pinned)
    after = kernels.autotuned()
    assert kernels.launch(before) == kernels.launch(after) == kernels.SMALL


def test_a_kernel_that_was_timed_before_is_pinned_from_its_next_launch_on(kernels, pinned):
    tuner = kernels.autotuned()
    assert kernels.launch(tuner) == kernels.MIDDLE
    install(pinned)
    assert kernels.launch(tuner) == kernels.SMALL
    assert tuner.bench.calls == 3


def test_hooks_of_the_config_run_at_each_launch_and_the_list_of_configs_is_not_touched(kernels, pinned):
    calls = []
    configs = [kernels.config(128), kernels.config(32, pre_hook=lambda args: calls.append(args["n"]))]
    tuner = kernels.autotuned(configs=configs)
    install(pinned)
    for _ in range(3):
        kernels.launch(tuner)
    assert calls == [100] * 3
    assert tuner.configs is configs
    assert tuner.nargs is None


def test_buffers_to_reset_are_left_alone_as_at_any_warm_launch(kernels, pinned):
    tuner = kernels.autotuned(kernels.count_kernel, reset_to_zero=["out"])
    out = torch.full((8,), 5.0)
    with use_policy(pinned):
        tuner[kernels.grid(8)](out, 8)
    assert out.tolist() == [6.0] * 8
    tuner[kernels.grid(8)](out, 8)  # timed: Triton zeroes the buffer before the launch that counts
    assert out.tolist() == [1.0] * 8


def test_pruning_is_honoured_for_each_key_and_asked_once_for_each(kernels, pinned):
    asked = []

    def prune(configs, named, **kwargs):
        asked.append(named["n"])
        return [c for c in configs if c.kwargs["BLOCK"] >= named["n"] // 2]

    tuner = kernels.autotuned(prune_configs_by={"early_config_prune": prune})
    install(pinned)
    assert [kernels.launch(tuner, n) for n in (100, 200, 60, 100, 200)] == [64, 128, 32, 64, 128]
    assert asked == [100, 200, 60]


def test_a_launch_without_a_valid_config_says_so(kernels, pinned):
    tuner = kernels.autotuned(prune_configs_by={"early_config_prune": lambda configs, named, **kwargs: []})
    install(pinned)
    with pytest.raises(Exception, match=r"[Nn]o valid (autotuner )?configs"):
        kernels.launch(tuner)


@pytest.mark.parametrize("chaos", [False, True])
def test_a_choice_is_made_once_for_each_key(kernels, pinned, chaos, monkeypatch):
    import dataclasses

    from aiter_tuning.triton_autotune import session

    made = []
    for name in ("choose", "chaos_choice"):
        original = getattr(session, name)
        monkeypatch.setattr(session, name, lambda *a, _f=original, **k: made.append(1) or _f(*a, **k))
    tuner = kernels.autotuned()
    install(dataclasses.replace(pinned, chaos=chaos))
    for n in (100, 200, 100, 100, 200):
        kernels.launch(tuner, n)
    assert len(made) == 2


def test_dtypes_have_choices_of_their_own(kernels, pinned, table_dir):
    half = kernels.key_text(100, "torch.float16")
    folder = table_dir({f"{kernels.MODULE}.add_kernel": {half: kernels.entry(128), "*": kernels.entry(64)}})
    tuner = kernels.autotuned()
    install(with_table(pinned, folder))
    assert kernels.launch(tuner, dtype=torch.float16) == 128
    assert kernels.launch(tuner) == 64


def test_devices_of_several_architectures_have_choices_of_their_own(kernels, pinned, table_dir, monkeypatch):
    import dataclasses

    name = f"{kernels.MODULE}.add_kernel"
    table_dir({name: {"*": kernels.entry(64)}}, arch="sm100")
    folder = table_dir({name: {"*": kernels.entry(128)}}, arch="sm90")
    current = ["sm90"]
    monkeypatch.setattr("aiter_tuning.triton_autotune.session.arch_tag", lambda: current[0])
    monkeypatch.setattr(hooks_module, "_mixed_archs", lambda: True)
    tuner = kernels.autotuned()
    install(with_table(dataclasses.replace(pinned, arch=None), folder))
    assert kernels.launch(tuner) == 128
    current[0] = "sm100"
    assert kernels.launch(tuner) == 64
    current[0] = "sm90"
    assert kernels.launch(tuner) == 128
    assert {text.partition("|")[0] for text in choice_log()} == {"sm90", "sm100"}


def test_two_autotuners_of_one_name_choose_for_themselves(kernels, pinned):
    first, second = kernels.autotuned(), kernels.autotuned(configs=[kernels.config(128), kernels.config(64)])
    install(pinned)
    assert (kernels.launch(first), kernels.launch(second)) == (32, 64)
    assert kernels.launch(first) == 32
    texts = choice_log()
    assert len(texts) == 2
    assert all("add_kernel#" in text for text in texts)


def test_what_is_chosen_is_forgotten_only_when_a_different_policy_comes(kernels, pinned):
    import dataclasses

    tuner = kernels.autotuned()
    install(pinned)
    kernels.launch(tuner)
    adopted = _hooks.adopted(tuner)
    install(dataclasses.replace(pinned))
    assert _hooks.adopted(tuner) is adopted
    assert choice_log()
    install(dataclasses.replace(pinned, block_sizes={"BLOCK": 128}))
    assert choice_log() == {}
    assert kernels.launch(tuner) == 128


def test_an_observer_becomes_a_pinner_in_place(kernels, pinned):
    tuner = kernels.autotuned()
    install({"mode": "auto", "verify_every": 1, "modules": [kernels.MODULE], "arch": "sm90"})
    assert kernels.launch(tuner) == kernels.MIDDLE
    assert choice_log()[place(kernels)].endswith(";timed")
    install(pinned)
    assert kernels.launch(tuner) == kernels.SMALL
    assert choice_log()[place(kernels)].endswith(";pinned")


def test_a_neighbouring_package_of_a_similar_name_is_not_in_scope(kernels):
    install({"mode": "pinned", "modules": [kernels.MODULE[:-1]]})
    tuner = kernels.autotuned()
    assert kernels.launch(tuner) == kernels.MIDDLE
    assert choice_log() == {}


def test_a_launch_that_fails_leaves_no_trace_and_the_next_one_chooses_again(kernels, pinned):
    tuner = kernels.autotuned()
    install(pinned)
    real, failures = tuner.fn.run, []

    def failing(*args, **kwargs):
        if len(failures) < 2:
            failures.append(kwargs["BLOCK"])
            raise RuntimeError("out of something")
        return real(*args, **kwargs)

    with kernels.instead(tuner.fn, "run", failing):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of something"):
                kernels.launch(tuner)
            assert tuner.cache == {}
            assert choice_log() == {}
            assert _hooks.adopted(tuner).decisions == {}
            assert tuner.nargs is None
        assert kernels.launch(tuner) == kernels.SMALL
    assert failures == [kernels.SMALL] * 2
    assert tuner.fn is kernels.add_kernel
    assert list(choice_log()) == [place(kernels)]


def test_a_launch_that_fails_later_keeps_its_choice(kernels, pinned):
    tuner = kernels.autotuned()
    install(pinned)
    kernels.launch(tuner)
    log = choice_log()
    with kernels.instead(tuner.fn, "run", lambda *args, **kwargs: 1 / 0), pytest.raises(ZeroDivisionError):
        kernels.launch(tuner)
    assert choice_log() == log
    assert kernels.launch(tuner) == kernels.SMALL


def test_a_hook_that_fails_at_the_first_launch_notes_nothing_for_it_and_nothing_false_later(kernels, pinned):
    failing = [True]

    def hook(args):
        if failing and args["n"] == 100:
            raise RuntimeError("hook")

    tuner = kernels.autotuned(configs=[kernels.config(128), kernels.config(32, pre_hook=hook)])
    with use_policy(pinned), pytest.raises(RuntimeError, match="hook"):
        kernels.launch(tuner, 100)
    assert tuner.fn is kernels.add_kernel
    install(pinned)
    kernels.launch(tuner, 300)
    for n in (200, 300):  # a new key, then one that is known
        with pytest.raises(RuntimeError, match="hook"):
            kernels.launch(tuner, 100)
        kernels.launch(tuner, n)
    assert set(choice_log()) == {place(kernels, key=kernels.key_text(n)) for n in (200, 300)}
    failing.clear()
    kernels.launch(tuner, 100)
    assert len(choice_log()) == 3


def test_a_key_that_cannot_be_hashed_is_pinned_through_a_copy(kernels, pinned):
    configs = [triton.Config({"BLOCK": size, "KIND": (size, "x")}) for size in (64, 32)]
    tuner = kernels.autotuned(kernels.fill_kernel, configs=configs, key=("shape",))
    install(pinned)
    for shape in ([1, 2], [1, 2], [3]):
        out = torch.zeros(40)
        tuner[kernels.grid(40)](out, 40, shape)
        assert out.tolist() == list(range(40))
    assert tuner.cache == {}
    assert tuner.configs is configs
    assert tuner.best_config is configs[1]
    assert [text.split("|")[2] for text in choice_log()] == ["shape=[1, 2]", "shape=[3]"]


def test_config_arguments_that_json_cannot_hold_are_no_error(kernels, pinned):
    import triton.language as tl

    configs = [triton.Config({"BLOCK": size, "KIND": kind}) for size, kind in ((64, tl.float16), (32, len))]
    tuner = kernels.autotuned(kernels.fill_kernel, configs=configs, key=("n",))
    install(pinned)
    tuner[kernels.grid(8)](torch.zeros(8), 8, None)
    assert '{"$object":"builtins.len"}' in next(iter(choice_log().values()))


class Loader(Autotuner):
    """Like libraries that keep winners of their own: fills the cache before Triton looks."""

    def run(self, *args, **kwargs):
        self.cache[("loaded",)] = self.configs[0]
        key = tuple([kwargs.get("n", args[3])] + [str(a.dtype) for a in args[:3]])
        self.cache.setdefault(key, self.configs[0])
        return super().run(*args, **kwargs)


class OwnRun(Autotuner):
    """Does not go through Triton's run at all."""

    def run(self, *args, **kwargs):
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        timings = {config: self._bench(*args, config=config, **kwargs) for config in self.configs}
        return self.fn.run(*args, **kwargs, **min(timings, key=timings.get).all_kwargs())


class OwnPruning(Autotuner):
    def prune_configs(self, kwargs):
        return super().prune_configs(kwargs)[:2]


def subclassed(kernels, cls):
    tuner = cls(
        kernels.add_kernel, kernels.add_kernel.arg_names, kernels.three_configs(), ["n"], None, None, None, None,
        do_bench=kernels.Bench(),
    )  # fmt: skip
    tuner.bench = tuner._do_bench
    return tuner


def test_a_subclass_that_fills_the_cache_itself_is_pinned_all_the_same(kernels, pinned):
    tuner = subclassed(kernels, Loader)
    assert kernels.launch(tuner) == kernels.LARGE
    install(pinned)
    assert [kernels.launch(tuner, n) for n in (100, 200, 100)] == [kernels.SMALL] * 3
    uninstall()
    assert kernels.launch(tuner) == kernels.LARGE


def test_a_subclass_with_pruning_of_its_own_keeps_it(kernels, pinned, tmp_path):
    tuner = subclassed(kernels, OwnPruning)
    with use_policy(pinned):
        assert [kernels.launch(tuner) for _ in range(2)] == [kernels.MIDDLE] * 2
        assert tuner.bench.calls == 0
    with use_policy({"record_path": str(tmp_path / "r"), "modules": [kernels.MODULE], "arch": "sm90"}):
        assert kernels.launch(tuner) == kernels.MIDDLE
        assert tuner.bench.calls == 2
        assert choice_log()[place(kernels)].endswith(";timed")


def test_a_pinned_kernel_that_would_be_timed_after_all_is_an_error_that_says_what_to_do(kernels, pinned):
    tuner = subclassed(kernels, OwnRun)
    install(pinned)
    with pytest.raises(BenchmarkRefusedError, match=r"add_kernel is pinned.*OwnRun.*config_invariant"):
        kernels.launch(tuner)
    assert tuner.bench.calls == 0


def test_heuristics_inside_and_outside_are_computed(kernels, pinned):
    seen = []
    values = {"KIND": lambda args: seen.append(args.get("BLOCK")) or 1}
    inside = kernels.autotuned(triton.heuristics(values)(kernels.fill_kernel))
    outside = triton.heuristics(values)(kernels.autotuned(kernels.fill_kernel))
    install(pinned)
    for kernel in (inside, outside):
        out = torch.zeros(50)
        kernel[kernels.grid(50)](out, 50, None)
        assert out.tolist() == list(range(50))
    assert seen == [kernels.SMALL, None]
    assert len(choice_log()) == 1


def test_warmup_still_sees_every_candidate(kernels, pinned):
    tuner = kernels.autotuned()
    install(pinned)
    kernels.launch(tuner)
    warmed = []
    x = torch.ones(4)
    with kernels.instead(tuner.fn, "warmup", lambda *args, **kwargs: warmed.append(kwargs["BLOCK"])):
        tuner.warmup(x, x, x, 4, grid=(1,))
    assert warmed == [128, 64, 32]


def test_a_table_is_read_at_the_first_pinned_launch_and_its_misses_are_counted(kernels, pinned, table_dir):
    folder = table_dir({f"{kernels.MODULE}.add_kernel": {kernels.key_text(100): kernels.entry(128)}})
    tuner = kernels.autotuned()
    install(with_table(pinned, folder))
    assert [kernels.launch(tuner, n) for n in (100, 200, 300)] == [128, 32, 32]
    assert choice_sources() == {f"{kernels.MODULE}.add_kernel": {"table": 1, "min_cost": 2}}


def test_a_stale_table_follows_the_policy(kernels, pinned, table_dir, caplog):
    name = f"{kernels.MODULE}.add_kernel"
    stale = {"environment": {}, "kernels": {name: {"source": "another", "candidates": ""}}}
    folder = table_dir({name: {"*": kernels.entry(128)}}, provenance=stale)
    tuner = kernels.autotuned()
    picks = {}
    for on_stale in ("use", "warn", "miss"):
        caplog.clear()
        with use_policy(with_table(pinned, folder, on_stale=on_stale)):
            picks[on_stale] = kernels.launch(tuner), "is stale (kernel source" in caplog.text
    assert picks == {"use": (128, False), "warn": (128, True), "miss": (32, True)}
    with use_policy(with_table(pinned, folder, on_stale="error")), pytest.raises(RuntimeError, match="is stale"):
        kernels.launch(tuner)


def test_many_threads_launching_one_pinned_kernel_all_get_the_choice(pinned, kernels):
    """Triton keeps a launch's arguments on the shared autotuner; ours come from the launch itself."""
    tuner = kernels.autotuned()
    gate, launched, lock = threading.Barrier(8), [], threading.Lock()

    class Quiet:
        """The interpreter cannot run in two threads, so the kernel only notes what it was launched with."""

        fn = kernels.add_kernel

        def run(self, x, y, out, n, grid, warmup, **config):
            with lock:
                launched.append((n, config["BLOCK"]))

    tuner.fn = Quiet()
    sizes = {}

    def prune(configs, named, **kwargs):
        sizes[named["n"]] = True
        return [c for c in configs if c.kwargs["BLOCK"] >= named["n"]]

    tuner.early_config_prune = prune
    install(pinned)
    x = torch.ones(1)

    def work(thread):
        gate.wait()
        for step in range(300):
            n = 20 + (thread * 7 + step) % 100
            tuner[(1,)](x, x, x, n)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, thread) for thread in range(8)]:
            future.result()
    assert len(launched) == 8 * 300
    assert all(block == (32 if n <= 32 else 64 if n <= 64 else 128) for n, block in launched)
    assert len(tuner.cache) == 100 == len(choice_log())
    assert type(tuner.fn) is Quiet


def test_an_autotuner_made_for_one_call_is_freed(kernels, pinned):
    install(pinned)
    tuner = kernels.autotuned()
    kernels.launch(tuner)
    gone = weakref.ref(tuner)
    del tuner
    gc.collect()
    assert gone() is None


def test_a_patch_that_somebody_put_on_top_of_ours_is_left_alone_and_works(kernels, pinned, monkeypatch):
    before = Autotuner.run, Autotuner.prune_configs, Autotuner._bench
    tuner, seen = kernels.autotuned(), []
    install(pinned)
    ours = Autotuner.run

    def theirs(self, *args, **kwargs):
        seen.append(1)
        return ours(self, *args, **kwargs)

    monkeypatch.setattr(Autotuner, "run", theirs)
    assert [kernels.launch(tuner) for _ in range(2)] == [kernels.SMALL] * 2
    uninstall()
    assert Autotuner.run is theirs
    assert kernels.launch(tuner) == kernels.MIDDLE
    install(pinned)
    assert kernels.launch(tuner) == kernels.SMALL
    assert len(seen) == 4
    monkeypatch.undo()
    uninstall()
    assert (Autotuner.run, Autotuner.prune_configs, Autotuner._bench) == before


# -- the steady state


def test_a_known_key_runs_none_of_our_code(kernels, pinned):
    """Every function that a warm launch calls, Python's and C's: the same ones with a policy and without."""

    class Quiet:
        fn = kernels.add_kernel

        def run(self, *args, **kwargs):
            pass

    def calls_of(tuner):
        seen = []

        def trace(frame, event, arg):
            if event in ("call", "c_call"):
                seen.append((frame.f_code.co_filename, frame.f_code.co_name, getattr(arg, "__name__", None)))

        x, out = torch.ones(8), torch.zeros(8)
        sys.setprofile(trace)
        try:
            tuner[1,](x, x, out, 8)
        finally:
            sys.setprofile(None)
        return seen

    tuner = kernels.autotuned()
    tuner.fn = Quiet()
    calls_of(tuner)
    plain = calls_of(tuner)
    assert len(plain) > 5
    for policy in (pinned, {"mode": "pinned", "modules": []}, {"mode": "auto", "verify_every": 1}):
        with use_policy(policy):
            assert calls_of(tuner) != plain
            assert calls_of(tuner) == plain


# -- observing


def test_what_becomes_of_each_kernel_is_said_once(kernels, caplog):
    caplog.set_level(logging.WARNING)
    add, fill = kernels.autotuned(), kernels.autotuned(kernels.count_kernel)
    single = kernels.autotuned(configs=[kernels.config(64)])
    name = f"{kernels.MODULE}.count_kernel"
    policy = {"mode": "pinned", "modules": [kernels.MODULE], "enumerate_autotuners": True, "config_invariant": [name]}

    def all_of_them():
        for n in (8, 8, 9):
            kernels.launch(add, n)
            kernels.launch(single, n)
            fill[kernels.grid(n)](torch.zeros(n), n)
        return [record.getMessage() for record in caplog.records if "[autotune]" in record.getMessage()]

    with use_policy(policy):
        assert all_of_them() == [
            f"[autotune] PINNED {kernels.MODULE}.add_kernel (3 configs)",
            f"[autotune] TIMED {name} (3 configs)",
        ]
        assert not any("count_kernel" in text for text in choice_log())
    caplog.clear()
    with use_policy(policy | {"mode": "auto"}):
        assert {text.split()[1] for text in all_of_them()} == {"UNPINNED"}
    caplog.clear()
    with use_policy(policy | {"modules": []}):
        assert {text.split()[1] for text in all_of_them()} == {"UNPINNED"}
        assert choice_log() == {}


def test_a_kernel_with_one_config_is_logged_once_and_never_recorded(kernels, pinned, tmp_path):
    tuner = kernels.autotuned(configs=[kernels.config(64)])
    install(pinned)
    for n in (8, 9):
        kernels.launch(tuner, n)
    assert list(choice_log()) == [place(kernels, key="*")]
    assert choice_log()[place(kernels, key="*")].endswith(";pinned")
    with use_policy({"record_path": str(tmp_path / "r"), "modules": [kernels.MODULE]}):
        kernels.launch(tuner)
        assert next(iter(choice_log().values())).endswith(";timed")
    assert list(tmp_path.iterdir()) == []


def test_the_log_is_a_copy_and_its_digest_follows_it(kernels, pinned, tmp_path):
    tuner = kernels.autotuned()
    install(pinned)
    empty = choice_digest()
    kernels.launch(tuner)
    first = choice_digest()
    choice_log().clear()
    assert len(first) == 32
    assert choice_digest() == first != empty
    write_choice_log(tmp_path / "log.json")
    held = json.loads((tmp_path / "log.json").read_text())
    assert held["choices"] == choice_log()
    assert held["sources"] == {place(kernels): "min_cost"}


def test_a_check_is_due_on_multiples_only_and_without_ranks_there_is_nothing_to_disagree_about():
    assert maybe_verify_choices(0) is None
    install({"mode": "auto", "verify_every": 3})
    assert [maybe_verify_choices(step) for step in range(5)] == [True, None, None, True, None]
    install({"mode": "auto"})
    assert maybe_verify_choices(0) is None
    assert verify_choices() is True
