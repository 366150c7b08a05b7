"""The key of a shape: which fields identify it, and the one spelling that each value has everywhere.

Shapes come from CSV cells (``" 7168"``, ``torch.bfloat16``, ``1.0`` for a flag), from Python callers and from older
tables. Tuner and lookup find each other's rows only if all of them end as the same values, so parsing, formatting and
the full key live here and nowhere else::

    row, as found                        Key.parse                 full_key
    {"M": " 64", "dtype": "half"}  ──►  {M: 64, …, dtype: "fp16"}  ──►  (gfx, cu_num, gpu_model, …)
                                             │  Key.format, Key.label
                                             ▼
                                        CSV cells, text for people

Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

KeyValue: TypeAlias = int | float | str | bool
Shape: TypeAlias = dict[str, KeyValue]

DEVICE_COLUMNS = ("gfx", "cu_num", "gpu_model")
"""What the tuner adds to a family's own fields."""

_TUNED_COLUMNS = ("kernelId", "splitK", "us", "kernelName", "tflops", "bw", "errRatio", "config", "solidx", "err_ratio")
_CHECKPOINT_COLUMNS = ("event", "candidate", "phase", "attempt", "status", "censored", "samples", "timer", "flags")
_CHECKPOINT_TAIL = ("device_uuid", "detail", "fingerprint", "time")

CALLS_COLUMN = "calls"
"""How often serving asked for a shape, in files of shapes: what is saved is microseconds times calls."""

RESERVED_COLUMNS = frozenset((*DEVICE_COLUMNS, *_TUNED_COLUMNS, *_CHECKPOINT_COLUMNS, *_CHECKPOINT_TAIL, CALLS_COLUMN))
"""Columns of tuned tables, checkpoints and files of shapes, which a key field would collide with."""

_DTYPE_SPELLINGS = {
    "bf16": ("bfloat16",),
    "fp16": ("float16", "half", "f16"),
    "fp32": ("float32", "float", "f32"),
    "fp64": ("float64", "double", "f64"),
    # The fp8 types differ in their values, so that a kernel tuned for one says nothing about another.
    "fp8": ("float8_e4m3fn", "fp8_e4m3fn", "fp8_e4m3", "fp8e4nv"),
    "fp8_e4m3fnuz": ("float8_e4m3fnuz", "fp8e4b8"),
    "fp8_e5m2": ("float8_e5m2", "fp8e5"),
    "fp8_e5m2fnuz": ("float8_e5m2fnuz", "fp8e5b16"),
    "fp8_e8m0": ("float8_e8m0fnu", "fp8_e8m0fnu", "e8m0"),
    "fp4": ("float4_e2m1fn_x2", "fp4_e2m1fn_x2", "fp4x2", "e2m1"),
    "int4": ("i4",),
    "int8": ("i8",),
    "int16": ("i16", "short"),
    "int32": ("i32", "int"),
    "int64": ("i64", "long"),
    "uint8": ("u8",),
    "bool": ("i1",),
}
_DTYPES = {spelling: name for name, others in _DTYPE_SPELLINGS.items() for spelling in (name, *others)}

_TRUE = frozenset({"true", "1", "1.0", "yes"})
_FALSE = frozenset({"false", "0", "0.0", "no"})
_MISSING = frozenset({"", "null", "nan", "na", "<na>"})
# A zero fraction is what pandas makes of a whole number once a blank cell turns its column into floats.
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}(?:\.0*)?")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LARGEST = 2**63 - 1
_LONG = re.compile(r"\+?0*[1-9][0-9]{18,}(?:\.0*)?")
"""Whole numbers of as many digits as the largest that fits, or more."""


class KeyFieldError(ValueError):
    """A value that a key field cannot take; says which column, what was found and what was expected."""

    def __init__(self, column: str, found: str, expected: str) -> None:
        super().__init__(column, found, expected)
        self.column = column
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.column} is {self.found}, expected {self.expected}"


class _Required:
    """The default of a field that has none; one instance, also after pickling."""

    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


def normalise_dtype(spelling: object) -> str | None:
    """The short name of a dtype (``bf16``, ``fp8_e5m2``) from torch's, Triton's or a person's spelling; else None."""
    return _DTYPES.get(str(spelling).strip().lower().removeprefix("torch."))


def parse_flag(value: object) -> bool | None:
    """True or False from ``True``, ``1``, ``1.0``, ``yes`` and their opposites; None if it is no flag."""
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    return False if text in _FALSE else None


def is_missing(value: object) -> bool:
    """Whether a cell holds nothing: None, blank, NaN, pandas' NA, or ``Null`` as older tables write it."""
    if isinstance(value, str):
        return value.strip().lower() in _MISSING
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return type(value).__name__ in ("NAType", "NaTType")


def _quoted(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


@dataclass(frozen=True)
class KeyField:
    """One field of a key."""

    name: str
    type: type[int] | type[float] | type[str] | type[bool]
    default: KeyValue | _Required = REQUIRED
    """What a row without this column means; ``REQUIRED``: it has to be there."""
    is_dtype: bool = False
    """Whether values are names of dtypes, normalised to their short spelling."""

    @property
    def required(self) -> bool:
        return isinstance(self.default, _Required)

    @property
    def expected(self) -> str:
        """What a value has to be, for a person."""
        if self.is_dtype:
            return "a dtype such as " + ", ".join(("bf16", "fp16", "fp32", "fp8", "int8"))
        if self.type is bool:
            return "True or False"
        if self.type is int:
            return f"a whole number of {1 if self.required else 0} or more"
        return "a finite number" if self.type is float else "one line of text"

    def parse(self, value: object) -> KeyValue:
        """The typed, normalised value.

        Raises:
            KeyFieldError: it is no such value, or nothing although the field has no default.
        """
        if is_missing(value):
            if isinstance(self.default, _Required):
                raise KeyFieldError(self.name, "missing", self.expected)
            return self.default
        parsed = self._parse(value)
        if parsed is None:
            if self.type is int and _LONG.fullmatch(str(value).strip()):
                raise KeyFieldError(self.name, f"too large ({_quoted(value)})", f"a whole number up to {_LARGEST}")
            raise KeyFieldError(self.name, _quoted(value), self.expected)
        return parsed

    def _parse(self, value: object) -> KeyValue | None:
        text = str(value).strip()
        if self.type is bool:
            return parse_flag(text)
        if self.is_dtype:
            return normalise_dtype(text)
        if self.type is str:
            return text if text.isprintable() else None
        if isinstance(value, bool):  # True is no size, although Python counts it as 1
            return None
        if self.type is float:
            number = float(text) if _NUMBER.fullmatch(text) else math.inf
            return number + 0.0 if math.isfinite(number) else None  # + 0.0 turns -0.0 into 0.0
        if not _WHOLE.fullmatch(text):
            return None
        size = int(text.partition(".")[0])
        return size if (1 if self.required else 0) <= size <= _LARGEST else None


def _field(name: str, declared: object) -> KeyField:
    """The field that ``name=declared`` stands for: a type, or a default that gives it."""
    if name in RESERVED_COLUMNS:
        raise ValueError(f"{name!r} cannot be a key field: tuned tables and checkpoints use that column themselves")
    names_dtype = "dtype" in name.lower()
    if isinstance(declared, type):
        if declared not in (int, float, str, bool):
            raise ValueError(f"key field {name!r} is a {declared.__name__}; expected int, float, str or bool")
        return KeyField(name, declared, REQUIRED, is_dtype=declared is str and names_dtype)
    if not isinstance(declared, int | float | str):
        raise ValueError(f"key field {name!r} is {declared!r}; expected a type (int, float, str, bool) or a default")
    kind = bool if isinstance(declared, bool) else type(declared)
    is_dtype = kind is str and (names_dtype or normalise_dtype(declared) is not None)
    field = KeyField(name, kind, declared, is_dtype)
    default = field._parse(declared)
    if default is None:
        raise ValueError(f"the default of key field {name!r} is {_quoted(declared)}; expected {field.expected}")
    return KeyField(name, kind, default, is_dtype)


@dataclass(frozen=True, init=False, repr=False)
class Key:
    """The fields that identify a shape of one family: ``Key(M=int, N=int, K=int, dtype="bf16", bias=False)``.

    A type makes a field required (an int is then a size, 1 or more); a default gives its type as well (an int is then
    0 or more). A text whose default or name says dtype holds a dtype.
    """

    fields: tuple[KeyField, ...]

    def __init__(self, **fields: Any) -> None:
        if not fields:
            raise ValueError("a key needs at least one field, for instance Key(M=int, N=int)")
        object.__setattr__(self, "fields", tuple(_field(name, declared) for name, declared in fields.items()))

    def __repr__(self) -> str:
        shown = (f"{f.name}={f.type.__name__ if f.required else repr(f.default)}" for f in self.fields)
        return f"Key({', '.join(shown)})"

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that a file of shapes must have."""
        return tuple(field.name for field in self.fields if field.required)

    def parse(self, row: Mapping[str, object]) -> Shape:
        """The shape in a row of cells or values, in the order of the fields; other columns are left alone.

        Raises:
            KeyFieldError: a value does not fit its field, or a required one is missing.
        """
        return {field.name: field.parse(row.get(field.name)) for field in self.fields}

    def values(self, shape: Mapping[str, object]) -> tuple[KeyValue, ...]:
        """The normalised values in the order of the fields: hashable, equal for equal shapes."""
        return tuple(self.parse(shape).values())

    def format(self, shape: Mapping[str, object]) -> dict[str, str]:
        """The cell of each column, as ``parse`` reads it back."""
        return {name: str(value) for name, value in self.parse(shape).items()}

    def label(self, shape: Mapping[str, object]) -> str:
        """The shape for a person: ``M=64 N=4096 K=4096 dtype=bf16``; fields at their default are left out.

        A dtype is always told.
        """
        parsed = self.parse(shape)
        return " ".join(f"{f.name}={parsed[f.name]}" for f in self.fields if f.is_dtype or parsed[f.name] != f.default)


def full_key(gfx: str, cu_num: int, gpu_model: str, shape: Mapping[str, KeyValue]) -> tuple[Any, ...]:
    """What a tuned row is found by: the device's arch, compute units and model, then the parsed shape, in any order."""
    device = (gfx.strip(), int(cu_num), " ".join(gpu_model.split()))
    return device + tuple(sorted(shape.items()))
