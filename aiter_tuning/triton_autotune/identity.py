"""What a kernel is called, which launch it is, and whether it is still the kernel that a table was made for.

::

    qualified name   module + "." + function name        the table's first level
    tuning key       a=1|b=2|torch.float16|…              its second level: key arguments, then dtypes in call order
    fingerprint      hash of the source, its callees and constants, and of the list of candidates
    tag              8 digits of it, for telling kernels of one name apart (made by a factory)
"""

from __future__ import annotations

import hashlib
import inspect
import re
import textwrap
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.config_json import compact, config_record

ANY_KEY = "*"
"""The key of a table's entry for all launches that have none of their own."""

_WRAPPERS = 8  # heuristics around heuristics; more is a cycle
_source_hashes: weakref.WeakKeyDictionary[types.FunctionType, str] = weakref.WeakKeyDictionary()
_DEF = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)


class Fingerprint(NamedTuple):
    """Hashes of what a kernel is (16 hex digits each); empty: could not be told."""

    source: str
    candidates: str


def kernel_name(autotuner: Any) -> str:
    """The kernel function's ``__name__``; empty if it has none."""
    return str(_attribute(autotuner, "__name__"))


def kernel_module(autotuner: Any) -> str:
    """The module that the kernel function was defined in; empty if unknown."""
    return str(_attribute(autotuner, "__module__"))


def qualified_name(autotuner: Any) -> str:
    """``module.name``, the name under which tables and recordings keep a kernel."""
    return f"{kernel_module(autotuner)}.{kernel_name(autotuner)}"


def named_arguments(autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positional arguments by name, then keyword arguments in call order."""
    return {**dict(zip(autotuner.arg_names, args, strict=False)), **kwargs}


def tuning_key(autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """``name=value`` of each key argument that is present, then the dtype of each argument that has one; | between."""
    named = named_arguments(autotuner, args, kwargs)
    parts = [f"{name}={named[name]}" for name in autotuner.keys if name in named]
    parts += [str(value.dtype) for value in named.values() if hasattr(value, "dtype")]
    return "|".join(parts)


def cache_key(autotuner: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Triton's own key of this launch in ``autotuner.cache`` (the recipe of 3.2 to 3.9)."""
    named = {k: v for k, v in named_arguments(autotuner, args, kwargs).items() if k in autotuner.arg_names}
    values = [named[name] for name in autotuner.keys if name in named]
    return (*values, *(str(value.dtype) for value in named.values() if hasattr(value, "dtype")))


def fingerprint(autotuner: Any) -> Fingerprint:
    """What the kernel and its candidates are now. Independent of Triton's version, of line numbers and of the mode."""
    function = _function(autotuner)
    source = source_hash(function) if function is not None else ""
    return Fingerprint(source, candidates_hash(getattr(autotuner, "configs", ())))


def tag_of(print_: Fingerprint) -> str:
    """Eight digits that tell kernels of the same name apart."""
    return _digest(compact(list(print_)))[:8]


def candidates_hash(configs: Iterable[Any]) -> str:
    """Hash of a list of candidates; their order does not count."""
    return _digest(compact(sorted(compact(config_record(config)) for config in configs)))


def source_hash(function: types.FunctionType) -> str:
    """Hash of a kernel function, of the kernel functions that it calls, and of the constants it uses; else empty.

    Read once for each function: what a constant becomes later is not what the kernel was compiled with.
    """
    if function not in _source_hashes:
        parts: list[str] = []
        _source_hashes[function] = _digest("\n".join(parts)) if _collect(function, parts, set()) else ""
    return _source_hashes[function]


def _collect(function: types.FunctionType, parts: list[str], seen: set[types.FunctionType]) -> bool:
    seen.add(function)
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return False
    begin = _DEF.search(text)  # decorators are not the kernel: candidates have a hash of their own
    parts.append(text[begin.start() :] if begin else text)
    for name, value in sorted(_used(function).items()):
        inner = _function(value)
        if inner is not None and inner is not function and _is_kernel(value):
            if inner not in seen:
                _collect(inner, parts, seen)
        elif isinstance(value, bool | int | float | str) or type(value).__name__ in ("constexpr", "dtype"):
            parts.append(f"{name}={value!r}")
    return True


def _used(function: types.FunctionType) -> dict[str, Any]:
    """Globals and closure variables that the code names, one attribute deep (``helpers.activation``)."""
    code = function.__code__
    scope = dict(zip(code.co_freevars, _cells(function), strict=False))
    scope.update({n: function.__globals__[n] for n in code.co_names if n in function.__globals__})
    for value in [value for value in scope.values() if isinstance(value, types.ModuleType)]:
        if value.__name__.partition(".")[0] == "triton":  # covered by the version
            continue
        for name in code.co_names:
            if name in vars(value):
                scope[f"{value.__name__}.{name}"] = vars(value)[name]
    return scope


def _cells(function: types.FunctionType) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            cells.append(None)
    return cells


def _is_kernel(value: Any) -> bool:
    return not inspect.isfunction(value) and type(value).__module__.partition(".")[0] == "triton"


def _function(value: Any) -> types.FunctionType | None:
    """The plain function inside kernels and their wrappers."""
    inner = getattr(value, "base_fn", value)
    for _ in range(_WRAPPERS):
        if isinstance(inner, types.FunctionType):
            return inner
        inner = getattr(inner, "fn", None)
    return None


def _attribute(autotuner: Any, name: str) -> Any:
    inner = getattr(autotuner, "base_fn", None)
    inner = getattr(autotuner, "fn", None) if inner is None else inner
    for _ in range(_WRAPPERS):
        if inner is None or hasattr(inner, "__name__"):
            break
        inner = getattr(inner, "fn", None)
    return getattr(inner, name, "") or ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
