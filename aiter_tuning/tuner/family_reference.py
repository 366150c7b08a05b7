"""Naming a family so that another process finds the same class.

Tasks travel to workers as small callables; a family's class, its kernels and its file do not. What travels is a
*reference*, one of

    package.module:ClassName        an importable module
    /abs/path/to/op.py:ClassName    a file of the user's own, imported under a name derived from its path

and each process resolves it once. Standard library only.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from aiter_tuning.keys import Key
from aiter_tuning.status import describe
from aiter_tuning.tuner.family import Family, Tolerance

KINDS_OF_DEVICE = ("cpu", "cuda", "hip")


class FamilyError(ValueError):
    """A family cannot be had under the name that was given; the message says what was looked for and where."""


def reference_of(family: Family | type[Family]) -> str:
    """The reference that :func:`load_family` resolves to ``family``'s class in any process.

    Raises:
        FamilyError: the class is local to a function, or was defined at an interpreter's prompt.
    """
    cls = family if isinstance(family, type) else type(family)
    if "<locals>" in cls.__qualname__:
        raise FamilyError(f"{cls.__qualname__} is defined inside a function; a worker can only load it from a module")
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__" or (module is not None and getattr(module, "__aiter_tuning_file__", False)):
        path = getattr(module, "__file__", None)
        if path is None:
            raise FamilyError(
                f"{cls.__qualname__} was defined at a prompt; put it into a file, so that workers can load it"
            )
        return f"{Path(path).resolve()}:{cls.__qualname__}"
    return f"{cls.__module__}:{cls.__qualname__}"


def is_file_reference(reference: str) -> bool:
    """Whether a reference names a Python file rather than a module."""
    return reference.rpartition(":")[0].endswith(".py")


@functools.cache
def load_family(reference: str) -> Family:
    """The family that a reference names; made once per process.

    Raises:
        FamilyError: no such file, module or class, or the class is no complete family.
    """
    place, _, cls_name = reference.rpartition(":")
    if not place or not cls_name:
        raise FamilyError(
            f"{reference!r} names no family; expected path/to/op.py:ClassName or package.module:ClassName"
        )
    module = _load_file(Path(place)) if is_file_reference(reference) else importlib.import_module(place)
    cls: Any = module
    for part in cls_name.split("."):
        cls = getattr(cls, part, None)
    if cls is None:
        names = sorted(c.__name__ for c in families_in(module))
        near = difflib.get_close_matches(cls_name, names, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise FamilyError(f"{place} has no class {cls_name}; {hint}families in it: {', '.join(names) or 'none'}")
    return instantiate(cls, place)


def instantiate(cls: object, place: str) -> Family:
    """An instance of a family's class.

    Raises:
        FamilyError: it is not a family, lacks methods or its name or key, declares what cannot be used, or cannot be
            made without arguments.
    """
    if not (isinstance(cls, type) and issubclass(cls, Family)):
        raise FamilyError(
            f"{place}: {getattr(cls, '__name__', cls)} is not a class derived from aiter_tuning.tuner.Family"
        )
    missing = sorted(cls.__abstractmethods__) + [name for name in ("name", "key") if not hasattr(cls, name)]
    if missing:
        raise FamilyError(f"{place}: {cls.__name__} is no complete family; it lacks {', '.join(missing)}")
    check_declarations(cls, place)
    try:
        return cls()
    except (Exception, SystemExit) as error:
        raise FamilyError(f"{place}: {cls.__name__} cannot be made without arguments: {describe(error)}") from error


def check_declarations(cls: type[Family], place: str) -> None:
    """Makes sure that what a family declares can be used.

    Raises:
        FamilyError: its name, key, devices, tolerance or outputs cannot.
    """
    mistake = _mistake(cls)
    if mistake is not None:
        raise FamilyError(f"{place}: {cls.__name__}.{mistake}")


def _mistake(cls: type[Family]) -> str | None:
    """Which declaration of a family cannot be used, and why; None where all can."""
    name: object = cls.name
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or "/" in name:
        return f"name is {name!r}; expected one word, it becomes part of file names"
    key: object = cls.key
    if not isinstance(key, Key):
        return f"key is {key!r}; expected a Key, for instance Key(M=int, N=int)"
    devices: object = cls.devices
    if not isinstance(devices, tuple | list) or not devices or not set(map(str, devices)) <= set(KINDS_OF_DEVICE):
        return f"devices is {devices!r}; expected a tuple of {', '.join(KINDS_OF_DEVICE)}"
    tolerance: object = cls.tolerance
    if not isinstance(tolerance, Tolerance):
        return f"tolerance is {tolerance!r}; expected a Tolerance"
    outputs: object = cls.outputs
    if not isinstance(outputs, tuple | list):
        return f"outputs is {outputs!r}; expected a tuple of names of inputs"
    return None


def families_in(module: ModuleType) -> list[type[Family]]:
    """The complete families that a module defines itself."""
    return [
        member
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, Family)
        and member.__module__ == module.__name__
        and not inspect.isabstract(member)
    ]


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise FamilyError(f"{path}: no such file; expected a Python file with a family in it")
    # The name has to be the same in every process (pickles of what the file defines carry it) and distinct per file.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FamilyError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    vars(module)["__aiter_tuning_file__"] = True  # tells reference_of to name its classes by path
    sys.modules[name] = module
    # Its neighbours import as they would if the file were run.
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise FamilyError(f"{_place_of(error, path)}: {describe(error)}") from error
    return module


def _place_of(error: BaseException, path: Path) -> str:
    """``file:line`` where loading ``path`` failed: the last line of that file that was running."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)
