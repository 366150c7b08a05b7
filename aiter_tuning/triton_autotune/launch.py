"""How the launches of one autotuner go while a policy is in force.

::

    first launch      adopt: role, log, timed choices put aside ─► from now on ``run`` is Triton's own again
    a new key         Triton misses its cache and asks for the candidates ─► we give it one: the choice
    a known key       Triton's own cache hit: none of our code runs

``run`` of the instance is then Triton's function, bound: a launch costs what it costs without us, in scope or out.
Where that won't do (keys that can't be hashed, subclasses with a ``run`` of their own, devices of several
architectures, a Triton we don't know), each launch goes through :meth:`Adopted.launch_swapped` instead, on a copy of
the autotuner that has one config; the shared object is never changed under another thread.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.choices import Place
from aiter_tuning.triton_autotune.identity import named_arguments
from aiter_tuning.triton_autotune.selection import Choice
from aiter_tuning.triton_autotune.session import Kernel, Role, Session, identify


class OneConfig(list[Any]):
    """A list of candidates with the one that was chosen; its type says that there is nothing to time."""


class Originals(NamedTuple):
    """What Triton's autotuner class does by itself."""

    run: Callable[..., Any]
    prune_configs: Callable[..., Any]
    bench: Callable[..., Any]
    check_disk_cache: Callable[..., Any] | None

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """The methods that are there, under their names in Triton."""
        methods = {"run": self.run, "prune_configs": self.prune_configs, "_bench": self.bench}
        return methods if self.check_disk_cache is None else {**methods, "check_disk_cache": self.check_disk_cache}


class _Pending(NamedTuple):
    """A choice whose first launch has not ended."""

    args: Sequence[Any]
    cache_key: Any
    place: Place
    choice: Choice


class _Watch:
    """Stands in front of the kernel for one launch, to learn how it ends, then takes itself away."""

    def __init__(self, adopted: Adopted, fn: Any) -> None:
        self.fn = fn  # Triton unwraps kernels by this name
        self._adopted = adopted
        self._pending: dict[int, _Pending] = {}

    def arm(self, pending: _Pending) -> None:
        unfinished = self._pending.get(threading.get_ident())  # a launch that failed before its kernel ran
        self._pending[threading.get_ident()] = pending
        self.forget(unfinished)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        pending = self._pending.pop(threading.get_ident(), None)
        ours = pending is not None and len(args) == len(pending.args)
        if pending is None or not ours or any(a is not b for a, b in zip(args, pending.args, strict=True)):
            self.forget(pending)
            return self.fn.run(*args, **kwargs)
        try:
            result = self.fn.run(*args, **kwargs)
        except BaseException:
            self.forget(pending)
            self._adopted.autotuner.nargs = None
            raise
        self._adopted.launched(pending.place, pending.choice)
        self._leave()
        return result

    def forget(self, pending: _Pending | None) -> None:
        """A launch that failed leaves no trace: the next one chooses again."""
        if pending is not None:
            self._adopted.autotuner.cache.pop(pending.cache_key, None)
            self._adopted.decisions.pop(pending.place, None)
        self._leave()

    def _leave(self) -> None:
        with self._adopted.lock:
            if not self._pending and self._adopted.autotuner.fn is self:
                self._adopted.autotuner.fn = self.fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fn, name)


class Adopted:
    """One autotuner under one session."""

    def __init__(self, autotuner: Any, session: Session, originals: Originals) -> None:
        self.autotuner = autotuner
        self.session = session
        self.role = session.role(autotuner)
        self.lock = threading.RLock()
        self.decisions: dict[Place, Choice] = {}
        self.single_noted = False
        self._originals = originals
        self._kernel: Kernel | None = None
        self._cache_before: dict[Any, Any] | None = None
        self._cache_results_before: bool | None = None
        self._misses: dict[int, Place] = {}
        self._copies: dict[Place, Any] = {}

    @property
    def kernel(self) -> Kernel:
        if self._kernel is None:
            self._kernel = identify(self.autotuner)
        return self._kernel

    @property
    def is_ours(self) -> bool:
        return self.role in (Role.pinned, Role.observed)

    def take_over(self, *, ask_disk_cache: bool) -> None:
        """Puts aside what Triton timed before: pinned mode must not use it, record mode has no times for it.

        Args:
            ask_disk_cache: have Triton call ``check_disk_cache`` at each miss, which is ours while patched. Where it
                benchmarks lists of one candidate too (before 3.8), that is what keeps it from doing so.
        """
        if self.role is Role.pinned or (self.role is Role.observed and self.session.recorder is not None):
            self._cache_before = dict(self.autotuner.cache)
            self.autotuner.cache.clear()
        if ask_disk_cache and self.is_ours:
            self._cache_results_before = self.autotuner.cache_results
            self.autotuner.cache_results = True

    def release(self) -> None:
        """Makes the autotuner what it was; what Triton timed meanwhile stays, what we pinned does not."""
        autotuner = self.autotuner
        with self.lock:
            autotuner.__dict__.pop("run", None)
            if isinstance(autotuner.fn, _Watch):
                autotuner.fn = autotuner.fn.fn
            if self._cache_results_before is not None:
                autotuner.cache_results = self._cache_results_before
            if self._cache_before is not None:
                timed = {} if self.role is Role.pinned else dict(autotuner.cache)
                autotuner.cache.clear()
                autotuner.cache.update({**self._cache_before, **timed})

    @property
    def uses_disk_cache(self) -> bool:
        """Whether the kernel itself asked for Triton's disk cache."""
        before = self._cache_results_before
        return bool(self.autotuner.cache_results if before is None else before)

    def note_single(self) -> None:
        """Notes the config of a kernel that has but one, once."""
        if not self.single_noted and self.is_ours:
            self.single_noted = True
            self.session.note_single(self.session.single_place(self.kernel), self.autotuner.configs[0], self.role)

    def decide(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Place, Choice]:
        """The choice for a launch: made once for each architecture and tuning key."""
        with self.lock:
            place = self.session.place(self.autotuner, self.kernel, args, kwargs)
            choice = self.decisions.get(place)
            if choice is None:
                candidates = self._prune_as_a_whole(args, kwargs)
                choice = self.session.pin(self.autotuner, self.kernel, candidates, args, kwargs)
                self.decisions[place] = choice
            return place, choice

    def prune(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Triton's own pruning for this launch's arguments, whatever other threads launch meanwhile."""
        with self.lock, self._own_nargs(args):
            return list(self._originals.prune_configs(self.autotuner, kwargs))

    def _prune_as_a_whole(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """:meth:`prune`, by the method of a subclass where there is one."""
        method = type(self.autotuner).prune_configs
        if getattr(method, "__wrapped__", None) is self._originals.prune_configs:
            return self.prune(args, kwargs)
        with self.lock, self._own_nargs(args):
            return list(method(self.autotuner, kwargs))

    def answer_miss(self, args: Sequence[Any], kwargs: Mapping[str, Any], cache_key: Any) -> list[Any]:
        """The candidates that Triton gets when it misses its cache: the chosen one, or all that are allowed."""
        if self.role is Role.pinned:
            place, choice = self.decide(args, kwargs)
            with self.lock:
                watch = self.autotuner.fn
                if not isinstance(watch, _Watch):
                    watch = self.autotuner.fn = _Watch(self, watch)
                watch.arm(_Pending(args, cache_key, place, choice))
            return OneConfig([choice.config])
        place = self.session.place(self.autotuner, self.kernel, args, kwargs)
        candidates = self.session.without_denied(self.kernel, self.prune(args, kwargs), self.session.arch())
        self._misses[threading.get_ident()] = place
        if len(candidates) == 1:  # Triton from 3.8 on takes it without a word; before, the times follow
            self.session.note_timed(place, candidates[0], None, self.kernel.fingerprint)
        return candidates

    def timed(self, winner: Any, times: Mapping[Any, Any] | None, from_disk: bool) -> None:
        """Triton has answered the miss that this thread was in."""
        place = self._misses.pop(threading.get_ident(), None)
        if place is not None:
            self.session.note_timed(place, winner, times, self.kernel.fingerprint, from_disk)

    def launched(self, place: Place, choice: Choice) -> None:
        """A pinned launch has succeeded."""
        self.session.note_pinned(place, choice)

    def launch_swapped(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A pinned launch without Triton's cache: through a copy with one config."""
        place, choice = self.decide(args, kwargs)
        with self.lock:
            single = self._copies.get(place)
        if single is None:
            single = copy.copy(self.autotuner)
            single.configs = [choice.config]
        try:
            result = self._originals.run(single, *args, **kwargs)
        except BaseException:
            with self.lock:
                if place not in self._copies:
                    self.decisions.pop(place, None)
            raise
        self.autotuner.best_config = choice.config
        with self.lock:
            if place not in self._copies:
                self._copies[place] = single
                self.launched(place, choice)
        return result

    def launch_observed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A timed launch of an autotuner whose misses we cannot see: noticed by its cache having grown."""
        known = len(self.autotuner.cache)
        try:
            return self._originals.run(self.autotuner, *args, **kwargs)
        finally:
            if len(self.autotuner.cache) > known:
                place = self.session.place(self.autotuner, self.kernel, args, kwargs)
                winner = next(reversed(self.autotuner.cache.values()))
                times = getattr(self.autotuner, "configs_timings", None)
                self.session.note_timed(place, winner, times, self.kernel.fingerprint)

    @contextlib.contextmanager
    def _own_nargs(self, args: Sequence[Any]) -> Iterator[None]:
        before = getattr(self.autotuner, "nargs", None)
        self.autotuner.nargs = named_arguments(self.autotuner, args, {})
        try:
            yield
        finally:
            self.autotuner.nargs = before
