"""The only module that touches Triton: four methods of its ``Autotuner`` class, and its listener.

::

    run               an autotuner's first launch under a policy: adopt it                     launch.py
    prune_configs     called where Triton misses its cache: our answer is the choice
    check_disk_cache  called next if ``cache_results`` is set: seeds the cache with the choice, or sees the times
    _bench            called for each candidate that is timed: a pinned kernel must not get here
    knobs.autotuning.listener (3.8 and later)   tells the times of compiled kernels

What Triton does by itself stays as it is: these call it. Facts about its versions: docs/triton_autotune.md.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aiter_tuning.triton_autotune.arch import has_mixed_archs
from aiter_tuning.triton_autotune.identity import cache_key, qualified_name
from aiter_tuning.triton_autotune.launch import Adopted, OneConfig, Originals
from aiter_tuning.triton_autotune.session import Role, Session

logger = logging.getLogger(__name__)

_FRAMES = 4  # from prune_configs up to run, through subclasses that call super()


_ATTRIBUTE = "_aiter_tuning_adopted"
"""On each autotuner launched under a policy; there, not in a table, so that one made for a single call is freed."""


class BenchmarkRefusedError(RuntimeError):
    """A kernel that is pinned was about to be timed."""


class Hooks:
    """Triton's autotuner, patched for one session at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._session: Session | None = None
        self._class: Any = None
        self._originals: Originals | None = None
        self._ours: dict[str, Any] = {}
        self._autotuners: weakref.WeakSet[Any] = weakref.WeakSet()  # those that hold an Adopted
        self._current: dict[int, Adopted] = {}  # by thread: whose miss is being answered
        self._listener: Any = None
        self._listener_before: Any = None

    @property
    def session(self) -> Session | None:
        return self._session

    def prepare(self) -> None:
        """Finds the class to patch, so that a Triton we can't patch is known before anything changes.

        Raises:
            ImportError: Triton is there, and has no such class. Without Triton there is nothing to patch.
        """
        self._class = _autotuner_class()

    def start(self, session: Session) -> None:
        """Puts a session in force; autotuners made before or after are adopted at their next launch."""
        with self._lock:
            self._release_all()
            self._session = session
            if self._class is not None and self._originals is None:
                self._patch()

    def stop(self) -> None:
        """Makes Triton what it was. Where somebody else has patched it on top of us, ours stay and step aside."""
        with self._lock:
            self._session = None
            self._release_all()
            if self._originals is None or any(
                vars(self._class).get(name) is not ours for name, ours in self._ours.items()
            ):
                return
            for name, original in self._originals.by_name().items():
                setattr(self._class, name, original)
            self._originals = None

    def adopted(self, autotuner: Any) -> Adopted | None:
        """What is known of an autotuner under the session in force."""
        found: Adopted | None = vars(autotuner).get(_ATTRIBUTE)
        return found

    def _patch(self) -> None:
        cls, hooks = self._class, self
        originals = Originals(cls.run, cls.prune_configs, cls._bench, getattr(cls, "check_disk_cache", None))

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            return hooks._run(originals, self, args, kwargs)

        def prune_configs(self: Any, kwargs: dict[str, Any]) -> Any:
            return hooks._prune_configs(originals, self, kwargs)

        def _bench(self: Any, *args: Any, **kwargs: Any) -> Any:
            hooks._refuse_if_pinned(self)
            return originals.bench(self, *args, **kwargs)

        def check_disk_cache(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
            return hooks._check_disk_cache(originals, self, tuning_key, configs, bench_fn)

        ours: tuple[Callable[..., Any], ...] = (run, prune_configs, _bench, check_disk_cache)
        self._ours = {
            name: functools.update_wrapper(function, original)
            for function, (name, original) in zip(ours, originals.by_name().items(), strict=False)
        }
        for name, function in self._ours.items():
            setattr(cls, name, function)
        self._originals = originals

    def _release_all(self) -> None:
        for autotuner in list(self._autotuners):
            adopted = vars(autotuner).pop(_ATTRIBUTE, None)
            if adopted is not None:
                adopted.release()
        self._autotuners.clear()
        self._current.clear()
        if self._listener is not None:
            knobs = _listening_knobs()
            if knobs is not None and knobs.listener is self._listener:
                knobs.listener = self._listener_before
            self._listener = self._listener_before = None

    def _run(self, originals: Originals, autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        session = self._session
        if session is None:
            return originals.run(autotuner, *args, **kwargs)
        adopted = self.adopted(autotuner) or self._adopt(autotuner, session, originals)
        if len(autotuner.configs) <= 1:
            result = originals.run(autotuner, *args, **kwargs)
            adopted.note_single()
            self._let_go(originals, autotuner)
            return result
        if adopted.role is Role.pinned and not self._can_seed(originals, autotuner, args, kwargs):
            return adopted.launch_swapped(args, kwargs)
        if adopted.role is Role.observed and not self._sees_misses(originals, autotuner):
            return adopted.launch_observed(args, kwargs)
        self._let_go(originals, autotuner)
        return originals.run(autotuner, *args, **kwargs)

    def _let_go(self, originals: Originals, autotuner: Any) -> None:
        """From now on this autotuner's ``run`` is Triton's, bound; a subclass's own ``run`` is left alone."""
        if type(autotuner).run is self._ours["run"]:
            autotuner.__dict__["run"] = types.MethodType(originals.run, autotuner)

    def _adopt(self, autotuner: Any, session: Session, originals: Originals) -> Adopted:
        with self._lock:
            adopted = self.adopted(autotuner)
            if adopted is None:
                adopted = Adopted(autotuner, session, originals)
                session.enumerate(autotuner, adopted.role)
                if len(autotuner.configs) > 1:
                    adopted.take_over(ask_disk_cache=originals.check_disk_cache is not None)
                autotuner.__dict__[_ATTRIBUTE] = adopted
                self._autotuners.add(autotuner)
            return adopted

    def _sees_misses(self, originals: Originals, autotuner: Any) -> bool:
        """Whether Triton's ``run``, as this class has it, asks us where it misses its cache."""
        names, cls = originals.run.__code__.co_names, type(autotuner)
        return all(
            name in names and getattr(cls, name, None) is self._ours.get(name)
            for name in ("prune_configs", "check_disk_cache")
        )

    def _can_seed(self, originals: Originals, autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether Triton's cache can hold our choices: its misses are ours, and its hits are right without us."""
        if type(autotuner).run is not self._ours["run"] or not self._sees_misses(originals, autotuner):
            return False
        if _mixed_archs():
            return False
        try:
            hash(cache_key(autotuner, args, kwargs))
        except TypeError:
            return False
        return True

    def _prune_configs(self, originals: Originals, autotuner: Any, kwargs: dict[str, Any]) -> Any:
        adopted = self.adopted(autotuner)
        miss = _miss(originals.run, sys._getframe(2)) if adopted is not None and adopted.is_ours else None
        if adopted is None or miss is None:  # not ours, or warmup(), which compiles them all and chooses none
            return originals.prune_configs(autotuner, kwargs)
        args, key = miss
        answer = adopted.answer_miss(args, kwargs, key)
        if adopted.role is Role.observed and len(answer) > 1 and _compiled(autotuner) is not None:
            self._current[threading.get_ident()] = adopted
            self._listen()
        return answer

    def _check_disk_cache(
        self, originals: Originals, autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Any
    ) -> bool:
        assert originals.check_disk_cache is not None
        if isinstance(configs, OneConfig):
            autotuner.cache[tuning_key] = configs[0]
            return True
        adopted = self.adopted(autotuner)
        if adopted is None or not adopted.is_ours:
            return bool(originals.check_disk_cache(autotuner, tuning_key, configs, bench_fn))
        from_disk = False
        if adopted.uses_disk_cache:
            from_disk = bool(originals.check_disk_cache(autotuner, tuning_key, configs, bench_fn))
        else:
            bench_fn()
        if _listening_knobs() is None or _compiled(autotuner) is None:
            adopted.timed(autotuner.cache[tuning_key], autotuner.configs_timings, from_disk)
        return from_disk

    def _refuse_if_pinned(self, autotuner: Any) -> None:
        session = self._session
        if session is not None and len(autotuner.configs) > 1 and session.role(autotuner) is Role.pinned:
            raise BenchmarkRefusedError(
                f"{qualified_name(autotuner)} is pinned and was about to be timed: its class "
                f"({type(autotuner).__module__}.{type(autotuner).__qualname__}) does not go through Triton's own run "
                "and prune_configs. Take the kernel out of the policy's modules, or name it in config_invariant"
            )

    def _listen(self) -> None:
        """Makes sure that Triton's listener is ours, in front of the caller's own."""
        knobs = _listening_knobs()
        if knobs is None or (self._listener is not None and knobs.listener is self._listener):
            return
        before = knobs.listener

        def listener(**event: Any) -> None:
            adopted = self._current.pop(threading.get_ident(), None)
            if adopted is not None and event["fn"] is _compiled(adopted.autotuner):
                adopted.timed(event["best_config"], event["configs_timings"], bool(event["cache_hit"]))
            if before is not None:
                before(**event)

        self._listener, self._listener_before = listener, before
        knobs.listener = listener


def _autotuner_class() -> Any:
    try:
        import triton
    except ImportError:
        return None
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError as error:
        raise ImportError(
            f"triton {getattr(triton, '__version__', '?')} has no triton.runtime.autotuner.Autotuner to pin"
        ) from error
    return Autotuner


def _miss(run: Any, frame: Any) -> tuple[Sequence[Any], Any] | None:
    """Arguments and cache key of the launch that asks for candidates; None if it is none.

    Read from the frame of Triton's ``run``, since the autotuner's own ``nargs`` may already be another thread's.
    """
    for caller in _frames(frame):
        if caller.f_code is run.__code__:
            names = caller.f_locals
            if "args" in names and "key" in names:
                return names["args"], names["key"]
            return None
    return None


def _frames(frame: Any) -> Iterator[Any]:
    for _ in range(_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _listening_knobs() -> Any:
    """Triton's autotuning knobs if they have a listener (3.8 and later), else None."""
    knobs = getattr(sys.modules.get("triton.knobs"), "autotuning", None)
    return knobs if hasattr(knobs, "listener") else None


def _compiled(autotuner: Any) -> Any:
    """The compiled kernel inside; None if it is interpreted, which Triton's listener cannot cope with (3.8, 3.9)."""
    jit = sys.modules["triton.runtime.jit"].JITFunction
    inner = autotuner.fn
    while inner is not None and not isinstance(inner, jit):
        inner = getattr(inner, "fn", None)
    return inner


@functools.cache
def _mixed_archs() -> bool:
    return has_mixed_archs()
