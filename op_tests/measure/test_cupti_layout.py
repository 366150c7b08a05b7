"""Records are read where they lie only if that gives what their attributes say."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import numpy
import pytest

from aiter_tuning.measure.gpu.activity import Record
from aiter_tuning.measure.gpu.cupti_layout import Layout, Reader, layouts_of

KERNEL, COPY = 10, 1
NAMES = {"activity_kernel": (KERNEL, 3), "activity_memcpy": (COPY,)}


class Laid(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32),
        ("pad", ctypes.c_uint32),
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("graph_id", ctypes.c_uint32),
    )


class Activity:
    """As the package hands it over; counts how often it is asked for an attribute."""

    asked = 0

    def __init__(self, kind: int, start: int, end: int, graph: int = 0, attributes_lie: bool = False) -> None:
        self._laid = Laid(kind, 0, start, end, graph)
        self._lie = attributes_lie

    def __int__(self) -> int:
        return ctypes.addressof(self._laid)

    def __getattr__(self, name: str) -> Any:
        Activity.asked += 1
        return getattr(self._laid, name) + (name == "end" and self._lie)


def package(**more: Any) -> Any:
    laid = numpy.dtype([("kind", "i4"), ("pad", "u4"), ("start", "u8"), ("end", "u8"), ("graph_id", "u4")])
    old = numpy.dtype([("kind", "i4"), ("start", "u4"), ("end", "u4")])
    return types.SimpleNamespace(**{"activity_kernel9_dtype": old, "activity_kernel10_dtype": laid, **more})


def test_the_newest_layout_that_the_package_has_is_taken() -> None:
    assert layouts_of(package(), NAMES) == dict.fromkeys((KERNEL, 3), Layout(8, 16, 24))


@pytest.mark.parametrize(
    "fields",
    [
        [("kind", "i4"), ("start", "u8")],
        [("pad", "u4"), ("kind", "i4"), ("start", "u8"), ("end", "u8")],
        [("kind", "i4"), ("start", "f8"), ("end", "f8")],
        [],
    ],
)
def test_a_layout_that_is_not_understood_is_left_alone(fields: list[tuple[str, str]]) -> None:
    assert COPY not in layouts_of(package(activity_memcpy6_dtype=numpy.dtype(fields)), NAMES)


def test_after_the_first_record_of_a_kind_no_attribute_is_read() -> None:
    reader = Reader((KERNEL, COPY), layouts_of(package(), NAMES))
    assert reader.read(Activity(KERNEL, 100, 200, 7)) == Record(100, 200, 7)
    Activity.asked = 0
    assert reader.read(Activity(KERNEL, 1 << 60, (1 << 60) + 5, 8)) == Record(1 << 60, (1 << 60) + 5, 8)
    assert Activity.asked == 0
    assert reader.read(Activity(COPY, 3, 4)) == Record(3, 4, 0)
    assert Activity.asked > 0


def test_where_both_ways_differ_attributes_are_believed_from_then_on() -> None:
    reader = Reader((KERNEL,), layouts_of(package(), NAMES))
    assert reader.read(Activity(KERNEL, 100, 200, attributes_lie=True)) == Record(100, 201, 0)
    assert reader.read(Activity(KERNEL, 100, 300, attributes_lie=True)) == Record(100, 301, 0)


def test_what_has_no_address_is_read_by_its_attributes() -> None:
    reader = Reader((KERNEL,), layouts_of(package(), NAMES))
    for end in (5, 6):
        assert reader.read(types.SimpleNamespace(kind=KERNEL, start=1, end=end)) == Record(1, end, 0)


def test_an_activity_of_another_kind_is_no_record() -> None:
    assert Reader((KERNEL,), {}).read(types.SimpleNamespace(kind=99, start=1, end=2)) is None
