"""What the caller wants of Triton's autotuner: a value, checked where it is made.

::

    caller's mapping ─► AutotunePolicy ─ resolve ─► auto | pinned | record
                        (frozen)          explicit mode > record_path > determinism > auto

Nothing here touches Triton, and no environment variable changes a choice: two processes given equal policies choose
equally.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

Mode = Literal["auto", "pinned", "record"]
MODES = ("auto", "pinned", "record")
ON_MISS = ("min_cost", "error", "launchable")
ON_STALE = ("use", "warn", "miss", "error")

DEFAULT_MODULES = ("mamba_ssm", "transformer_engine", "megatron.core")
"""Module prefixes whose kernels are in scope unless ``modules`` says otherwise."""

DEFAULT_CONFIG_INVARIANT = tuple(
    f"transformer_engine.{where}.triton.permutation.{kernel}"
    for where in ("common", "pytorch")
    for kernel in ("_permute_kernel", "_unpermute_kernel", "_sort_chunks_by_map_kernel")
)
"""Kernels that only move data, so that every config gives the same bits and timing them is harmless.

Arithmetic disqualifies a kernel, elementwise arithmetic too: layouts may differ in packed maths and in fused
multiply-add, and with them the rounding.
"""

_deterministic: bool | None = None
_active: AutotunePolicy | None = None


def use_deterministic_mode() -> bool:
    """What :func:`set_deterministic_mode` said, else whether torch runs deterministic algorithms."""
    if _deterministic is not None:
        return _deterministic
    torch = sys.modules.get("torch")  # who has not imported torch cannot have asked it for anything
    return bool(torch.are_deterministic_algorithms_enabled()) if torch is not None else False


def set_deterministic_mode(value: bool | None) -> None:
    """Overrides torch's flag for this process; None follows the flag again."""
    global _deterministic
    _deterministic = value


@dataclass(frozen=True)
class AutotunePolicy:
    """How the configs of ``@triton.autotune`` kernels are chosen. Values are normalised; compared and hashed by value.

    Raises:
        TypeError: a field has the wrong type (``"false"`` and ``1`` are no booleans).
        ValueError: a field has the right type and means nothing.
    """

    mode: Mode | None = None
    """``auto``: Triton times; ``pinned``: never timed; ``record``: Triton times and we write it down; None: derived."""
    modules: tuple[str, ...] = DEFAULT_MODULES
    """Module prefixes or globs in scope. Replaces the default; empty: nothing is in scope."""
    config_invariant: tuple[str, ...] = DEFAULT_CONFIG_INVARIANT
    """Qualified kernel names (or globs) in scope that may go on being timed. Empty: pin everything in scope."""
    table_path: tuple[str, ...] = ()
    """Directories with ``<arch>.json`` tables, the first to be asked first. ``~`` is expanded."""
    record_path: str | None = None
    """File prefix of the recordings: ``<record_path>.rank<N>.json``."""
    on_miss: Literal["min_cost", "error", "launchable"] = "min_cost"
    """What pinned mode does without a table entry: the smallest config, an error, or the smallest that fits here."""
    block_sizes: tuple[tuple[str, int], ...] = ()
    """Kernel arguments (``BLOCK…``) and the values that a config must have, tried where the table has no entry."""
    verify_every: int = 0
    """Compare choices between ranks every so many steps; 0: never."""
    verify_strict: bool = False
    """Raise when ranks disagree, instead of warning."""
    enumerate_autotuners: bool = False
    """Log each kernel that has several configs once, with what became of it."""
    chaos: bool = False
    """Pinned mode gives each rank another config, to test that disagreement is noticed."""
    extra_modules: tuple[str, ...] = ()
    """More module prefixes or globs, in addition to ``modules``."""
    on_stale: Literal["use", "warn", "miss", "error"] = "warn"
    """What an entry is worth whose kernel, candidates, device or software is not what the table was made with."""
    arch: str | None = None
    """Choose as for this architecture instead of the device's, e.g. ``sm90`` on a machine without a GPU."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        _one_of("mode", self.mode, (None, *MODES))
        _one_of("on_miss", self.on_miss, ON_MISS)
        _one_of("on_stale", self.on_stale, ON_STALE)
        put(self, "modules", _string_tuple("modules", self.modules))
        put(self, "extra_modules", _string_tuple("extra_modules", self.extra_modules))
        put(self, "config_invariant", _string_tuple("config_invariant", self.config_invariant))
        paths = _string_tuple("table_path", self.table_path)
        put(self, "table_path", tuple(os.path.expanduser(path) for path in paths))
        put(self, "record_path", _file_prefix(self.record_path))
        put(self, "block_sizes", _block_sizes(self.block_sizes))
        if self.arch is not None and (not self.arch or not _is_text(self.arch)):
            raise TypeError(f"arch={self.arch!r}: expected a name such as 'sm90', or None")
        if type(self.verify_every) is not int:
            raise TypeError(f"verify_every={self.verify_every!r}: expected an int (steps)")
        if self.verify_every < 0:
            raise ValueError(f"verify_every={self.verify_every}: expected 0 (never) or a number of steps")
        for name in ("verify_strict", "enumerate_autotuners", "chaos"):
            if type(getattr(self, name)) is not bool:
                raise TypeError(f"{name}={getattr(self, name)!r}: expected True or False")
        if self.mode == "record" and self.record_path is None:
            raise ValueError("mode='record' needs a record_path, the prefix of the files to write")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> AutotunePolicy:
        """A policy from a parsed config file; a value of None stands for the default.

        Raises:
            TypeError: a key is no field.
        """
        unknown = sorted(str(key) for key in mapping if key not in _FIELDS)
        if unknown:
            raise TypeError(f"unknown autotune option(s): {', '.join(unknown)}; known: {', '.join(sorted(_FIELDS))}")
        return cls(**{key: value for key, value in mapping.items() if value is not None})

    def resolve(self, *, deterministic: bool = False) -> AutotunePolicy:
        """The policy with its mode derived where it was left open; this object is not changed."""
        if self.mode is not None:
            return self
        mode: Mode = "auto"
        if self.record_path is not None:
            mode = "record"
        elif deterministic or use_deterministic_mode():
            mode = "pinned"
        return dataclasses.replace(self, mode=mode)

    @property
    def intercepts(self) -> bool:
        """Whether Triton has to be patched for it."""
        return self.mode not in (None, "auto") or self.enumerate_autotuners or self.verify_every > 0

    def in_scope(self, module: str) -> bool:
        """Whether kernels of this module are ours: prefixes end at a dot (``mamba_ssm`` is not ``mamba_ssm_extra``)."""
        return any(_covers(pattern, module) for pattern in (*self.modules, *self.extra_modules))

    def is_invariant(self, qualified: str) -> bool:
        """Whether this kernel may go on being timed because its configs all give the same bits."""
        return any(fnmatch.fnmatchcase(qualified, pattern) for pattern in self.config_invariant)


_FIELDS = frozenset(field.name for field in dataclasses.fields(AutotunePolicy))


def coerce_policy(value: AutotunePolicy | Mapping[str, Any] | None) -> AutotunePolicy | None:
    """A policy from a policy, a mapping or None (which stays None).

    Raises:
        TypeError: it is something else.
    """
    if value is None or isinstance(value, AutotunePolicy):
        return value
    if isinstance(value, Mapping):
        return AutotunePolicy.from_mapping(value)
    raise TypeError(f"an autotune policy is an AutotunePolicy, a mapping or None, not {type(value).__name__}")


def active_policy() -> AutotunePolicy | None:
    """The policy installed now, with its mode resolved; None before the first ``install`` and after ``uninstall``."""
    return _active


def set_active_policy(policy: AutotunePolicy | None) -> None:
    """For :mod:`aiter_tuning.triton_autotune.interception` only: says which policy is in force."""
    global _active
    _active = policy


def _covers(pattern: str, module: str) -> bool:
    if any(mark in pattern for mark in "*?["):
        return fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, pattern + ".*")
    return module == pattern or module.startswith(pattern + ".")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if not (value is None or isinstance(value, str)) or value not in allowed:
        raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")


def _string_tuple(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name}={value!r}: expected a list of strings")
    items = tuple(os.fspath(item) if isinstance(item, os.PathLike) else item for item in value)
    for item in items:
        if not isinstance(item, str) or not item:
            raise TypeError(f"{name} holds {item!r}: expected non-empty strings")
    return cast("tuple[str, ...]", items)


def _file_prefix(value: object) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str) or not path:
        raise TypeError(f"record_path={value!r}: expected a path")
    if path.endswith(("/", os.sep)):
        raise ValueError(f"record_path={path!r}: expected a file prefix such as {path + 'autotune'!r}, not a directory")
    return os.path.expanduser(path)


def _block_sizes(value: object) -> tuple[tuple[str, int], ...]:
    if value is None or isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"block_sizes={value!r}: expected a mapping of names to sizes, or pairs")
    pairs = [tuple(pair) for pair in (value.items() if isinstance(value, Mapping) else value)]
    sizes: dict[str, int] = {}
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"block_sizes holds {pair!r}: expected (name, size)")
        name, size = pair
        if not isinstance(name, str) or not name.startswith("BLOCK") or not name.isidentifier():
            raise ValueError(f"block_sizes: {name!r} is no kernel argument that starts with BLOCK")
        if type(size) is not int or size <= 0:
            raise ValueError(f"block_sizes: {name}={size!r}: expected a positive int")
        if name in sizes:
            raise ValueError(f"block_sizes: {name} is given twice")
        sizes[name] = size
    return tuple(sorted(sizes.items()))
