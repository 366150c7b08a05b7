"""When may a measurement on record be used again?

Two levels. The *run's* fingerprint names what every time depends on: device, versions, timer, how inputs and reference
are made. If it differs, nothing on record counts. The *candidate's* names what one candidate is: its config and the
source of what runs it. If that differs, only this candidate is measured again.

Source is hashed as its syntax tree, without docstrings, so that comments and formatting change nothing. From the
methods named, the walk follows every name that their code uses to functions, kernels, classes and constants of the
modules in which the family is defined, and counts whole the modules beside them, or in ``aiter_tuning.ops.kernels``,
that a method imports when it runs: kernels, which the parent must not import. Other modules are covered by versions at
best, as their sources are not ours.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from aiter_tuning.devices.device import Device
from aiter_tuning.serving.versions import installed
from aiter_tuning.tuner.family import Candidate, Family

DIGEST_LENGTH = 12
_WRAPPED = ("fn", "__wrapped__", "func", "__func__", "fget")
"""Where decorators keep the function: Triton's JITFunction and Autotuner, functools, static methods, properties."""
_PACKAGE = Path(__file__).resolve().parents[1]
_KERNELS = _PACKAGE / "ops" / "kernels"
_ABSENT = "not installed"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def run_fields(
    family: Family, device: Device, *, warmup: int, iters: int, err_ratio: float, seed: int, timer: str
) -> dict[str, str]:
    """What every measurement of a run depends on, by name, for the run's fingerprint.

    Versions come from the installed packages' metadata: the parent process imports neither torch nor triton.
    """
    tolerance = family.tolerance
    return {
        "family": family.name,
        "gfx": device.gfx,
        "cu_num": str(device.cu_num),
        "gpu_model": device.gpu_model,
        **versions_here(device),
        "timer": timer,
        "warmup": str(warmup),
        "iters": str(iters),
        "tolerance": f"{tolerance.rtol:g} {tolerance.atol:g} {err_ratio:g} {tolerance.max_abs_delta}",
        "seed": str(seed),
        "key": repr(family.key),
        "inputs and reference": source_digest(family, ("inputs", "reference")),
    }


def versions_here(device: Device) -> dict[str, str]:
    """What a latency depends on beside the device, as far as it is known: ``driver``, ``torch``, ``triton``."""
    return {
        "driver": device.settings.get("driver", ""),
        "torch": installed("torch") or _ABSENT,
        "triton": installed("triton") or _ABSENT,
    }


def candidate_fingerprints(family: Family, candidates: Sequence[Candidate]) -> dict[str, str]:
    """Each candidate's fingerprint by its name: config, and source of ``run`` and ``prepare``."""
    source = source_digest(family, ("run", "prepare"))
    return {candidate.name: _digest(source + json.dumps(candidate.config, sort_keys=True)) for candidate in candidates}


def source_digest(family: Family, methods: Sequence[str]) -> str:
    """Hash of the source of a family's methods and of whatever they reach in the modules that define it."""
    return _class_digest(type(family), tuple(methods))


@functools.cache
def _class_digest(cls: type[Family], methods: tuple[str, ...]) -> str:
    walk = _Walk(cls)
    for method in methods:
        walk.visit(method, inspect.getattr_static(cls, method))
    return _digest("\n".join(f"{name}: {text}" for name, text in sorted(walk.found.items())))


class _Walk:
    """Collects source, from a method outwards."""

    def __init__(self, cls: type[Family]) -> None:
        self.cls = cls
        modules = dict.fromkeys(c.__module__ for c in cls.__mro__ if issubclass(c, Family) and c is not Family)
        # Numbered, since the name of a user's file contains its path, and a file that moved is still the same.
        self.modules = {module: number for number, module in enumerate(modules)}
        self.found: dict[str, str] = {}

    def visit(self, name: str, value: Any) -> None:
        value = _unwrap(value)
        if isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, type):
            if value.__module__ in self.modules and not issubclass(value, Family):
                self._visit_class(value)
        elif (constant := _constant(value)) is not None:
            self.found.setdefault(f"constant {name}", constant)

    def _visit_function(self, function: FunctionType) -> None:
        name = f"{self.modules.get(function.__module__)} {function.__qualname__}"
        if function.__module__ not in self.modules or name in self.found:
            return
        self.found[name] = _source(function)
        self._visit_imports(_tree(function), function.__module__)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for cell_name, cell in cells.items():
            try:
                self.visit(cell_name, cell.cell_contents)
            except ValueError:  # a cell that is still empty
                continue
        for used in sorted(set(_names(function.__code__))):
            if used in function.__globals__:
                self.visit(used, function.__globals__[used])
            else:  # may be an attribute: self.block_size, cls.helper
                self.visit(used, inspect.getattr_static(self.cls, used, _NOTHING))

    def _visit_imports(self, tree: ast.AST | None, importer: str) -> None:
        """Reads the kernels, and modules below the family's own directory, that some code imports; imports none."""
        if tree is None:
            return
        directory, root = _places(importer)
        for name in sorted(_imported(tree)):
            ours = name.split(".")[0] == _PACKAGE.name  # wherever the family's own file is
            file = _file_of(name, _PACKAGE.parent if ours else root)
            if file is None or f"module {name}" in self.found or not {directory, _KERNELS} & set(file.parents):
                continue
            try:
                neighbour = ast.parse(file.read_text())
            except (OSError, SyntaxError):  # the worker will say what is wrong with it
                continue
            self.found[f"module {name}"] = _dump(neighbour)
            self._visit_imports(neighbour, importer)

    def _visit_class(self, cls: type) -> None:
        name = f"{self.modules[cls.__module__]} {cls.__qualname__}"
        if name in self.found:
            return
        self.found[name] = _source(cls)
        for member_name, member in vars(cls).items():
            written = _unwrap(member)
            if isinstance(written, FunctionType) and written.__code__.co_filename != "<string>":  # a dataclass's own
                self.visit(member_name, member)


class _Nothing:
    pass


_NOTHING = _Nothing()


def _unwrap(value: Any) -> Any:
    for _ in range(10):
        if isinstance(value, FunctionType) and not hasattr(value, "__wrapped__"):
            return value
        if isinstance(value, type):
            return value
        inner = next((vars_of[name] for name in _WRAPPED if name in (vars_of := _attributes(value))), None)
        if inner is None:
            return value
        value = inner
    return value


def _attributes(value: Any) -> Mapping[str, Any]:
    """Attributes that may hold a wrapped function, without running a property of a stranger's class."""
    attributes = dict(getattr(value, "__dict__", {}))
    if isinstance(value, staticmethod | classmethod):
        attributes["__func__"] = value.__func__
    elif isinstance(value, property):
        attributes["fget"] = value.fget
    elif isinstance(value, functools.partial):
        attributes["func"] = value.func
    return attributes


def _constant(value: Any) -> str | None:
    """A text for constants whose text is the same in every process, else None."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if type(value).__name__ == "constexpr":  # Triton's compile-time constants
        return repr(getattr(value, "value", None))
    if isinstance(value, tuple | list):
        items = [_constant(item) for item in value]
        return None if None in items else f"[{', '.join(map(str, items))}]"
    if isinstance(value, set | frozenset):
        items = [_constant(item) for item in value]
        return None if None in items else f"{{{', '.join(sorted(map(str, items)))}}}"
    if isinstance(value, dict):
        pairs = [(_constant(k), _constant(v)) for k, v in value.items()]
        return None if any(None in pair for pair in pairs) else repr(sorted(map(str, pairs)))
    return None


def _names(code: CodeType) -> Iterator[str]:
    """Names that code uses from outside, those of nested functions and comprehensions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _source(value: FunctionType | type) -> str:
    """The syntax tree as text, or what stands in where there is no source (defined at a prompt, a zipped package)."""
    tree = _tree(value)
    if tree is None:
        code = getattr(value, "__code__", None)
        return "no source" if code is None else f"{code.co_code.hex()} {code.co_consts!r} {code.co_names!r}"
    return _dump(tree)


def _tree(value: FunctionType | type) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError):
        return None


def _dump(tree: ast.Module) -> str:
    """A syntax tree as text, without docstrings."""
    if ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:]
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return _text_of(tree)


def _text_of(node: object) -> str:
    """What ``ast.dump`` of Python 3.12 says; those of other versions know other fields, though the code is the same."""
    if isinstance(node, list):
        return f"[{', '.join(map(_text_of, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = {name: getattr(node, name, None) for name in node._fields}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        fields.setdefault("type_params", [])
    if isinstance(node, ast.JoinedStr):  # some releases end a format with an empty text
        fields["values"] = [part for part in node.values if getattr(part, "value", None) != ""]
    said = (
        f"{name}={_text_of(value)}"
        for name, value in fields.items()
        if value is not None or getattr(type(node), name, ...) is not None
    )
    return f"{type(node).__name__}({', '.join(said)})"


def _imported(tree: ast.AST) -> set[str]:
    """Dotted names of what may be modules in a tree's import statements."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _places(module: str) -> tuple[Path | None, Path]:
    """A module's directory, and the one that its own name starts from."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None, Path()
    path = Path(file).resolve()
    return path.parent, path.parents[module.count(".")]


def _file_of(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)
