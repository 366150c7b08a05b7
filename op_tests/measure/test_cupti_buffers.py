"""Records are read out of CUPTI's buffers, if they are what its package says of the same work."""

from __future__ import annotations

import ctypes
import types
from pathlib import Path
from typing import Any

import numpy
import pytest

from aiter_tuning.measure.gpu.activity import Record
from aiter_tuning.measure.gpu.cupti_activity import CuptiActivity
from aiter_tuning.measure.gpu.cupti_buffers import Buffers, Layout, RefusedError, layouts_of, loaded_library
from op_tests.measure.fake_gpu import FakeCupti, FakeKinds

KERNEL, COPY, OTHER = 10, 1, 77
NAMES = {"activity_kernel": (KERNEL, 3), "activity_memcpy": (COPY,)}
LAID = numpy.dtype([("kind", "i4"), ("pad", "u4"), ("start", "u8"), ("end", "u8"), ("graph_id", "u4"), ("tail", "u4")])
LAYOUT = Layout(8, 16, 24)


class Library:
    """As much of libcupti as is called; :meth:`fill` does what the driver does meanwhile."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.lent: list[int] = []
        self.pending: list[tuple[int, ...]] = []
        self.callbacks: Any = None
        self.is_used = False

    def cuptiActivityRegisterCallbacks(self, ask: Any, take: Any) -> int:  # CUPTI's own names
        self.callbacks, self.is_used = (ask, take), True
        return self.code

    def cuptiActivityFlushAll(self, flag: int) -> int:
        pending, self.pending = self.pending, []
        self.fill(pending)
        return self.code

    def cuptiActivityGetNextRecord(self, buffer: int, valid: int, record: Any) -> int:
        found = record._obj
        following = buffer if found.value is None else found.value + LAID.itemsize
        if following >= buffer + valid:
            return 12
        found.value = following
        return 0

    def fill(self, records: list[tuple[int, ...]]) -> None:
        ask, take = self.callbacks
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
        ask(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
        assert buffer.value is not None and buffer.value % 8 == 0
        assert size.value > 100 * LAID.itemsize and most.value == 0
        self.lent.append(buffer.value)
        laid = numpy.array([(kind, 0, start, end, graph, 0) for kind, start, end, graph in records], dtype=LAID)
        ctypes.memmove(buffer.value, laid.tobytes(), laid.nbytes)
        take(None, 0, buffer.value, size.value, laid.nbytes)


def package(**more: Any) -> Any:
    old = numpy.dtype([("kind", "i4"), ("start", "u4"), ("end", "u4")])
    return types.SimpleNamespace(**{"activity_kernel9_dtype": old, "activity_kernel10_dtype": LAID, **more})


def test_the_newest_layout_that_the_package_has_is_taken() -> None:
    assert layouts_of(package(), NAMES) == dict.fromkeys((KERNEL, 3), LAYOUT)


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


def test_records_of_known_kinds_are_handed_on_in_order_and_buffers_lent_again() -> None:
    library, records = Library(), list[Record]()
    buffers = Buffers(library, {KERNEL: LAYOUT, COPY: Layout(8, 16, None)}, records.append)
    buffers.register()
    library.fill([(KERNEL, 1 << 60, (1 << 60) + 5, 7), (OTHER, 1, 2, 3), (COPY, 30, 40, 9)])
    assert records == [Record(1 << 60, (1 << 60) + 5, 7), Record(30, 40, 0)]
    library.fill([])
    library.pending = [(KERNEL, 50, 60, 8)] * 100
    buffers.flush()
    assert len(records) == 102 and records[-1] == Record(50, 60, 8)
    assert len(set(library.lent)) == 1


def test_what_cupti_refuses_is_an_error_with_its_code() -> None:
    buffers = Buffers(Library(code=15), {}, print)
    for call in (buffers.register, buffers.flush):
        with pytest.raises(RefusedError, match="15"):
            call()


def test_a_process_without_cupti_has_no_library(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    assert loaded_library(maps) is None
    line = "7f00-7f01 r-xp 00000000 08:01 1  {}/libcupti.so.13\n"
    maps.write_text(line.format("/a") + line.format("/b"))
    assert loaded_library(maps) is None, "which of them?"
    maps.write_text(line.format("/nowhere"))
    assert loaded_library(maps) is None


class Both(FakeCupti):
    """The package and the library as one; work leaves a record with whichever was registered last."""

    activity_kernel10_dtype = activity_memcpy6_dtype = activity_memset4_dtype = LAID

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.library = library
        self.launches = 0

    def activity_register_callbacks(self, ask: Any, take: Any) -> None:
        super().activity_register_callbacks(ask, take)
        self.library.is_used = False

    def launch(self) -> None:
        self.launches += 1
        kind, start, end = int(FakeKinds.CONCURRENT_KERNEL), 1000 * self.launches, 1000 * self.launches + 5
        if self.library.is_used:
            self.library.pending.append((kind, start, end, 0))
        else:
            self.pending.append(types.SimpleNamespace(kind=kind, start=start, end=end, graph_id=0))


def test_buffers_are_read_once_they_have_told_what_the_package_tells() -> None:
    library = Library()
    cupti = Both(library)
    source = CuptiActivity(cupti)
    assert source.read_buffers(library, cupti.launch)
    source.start()
    library.pending = [(int(FakeKinds.MEMSET), 20, 30, 4)]
    assert source.collect() == [Record(20, 30, 4)]


@pytest.mark.parametrize("wrong", ["deaf", "garbage", "refuses", "none"])
def test_where_buffers_do_not_work_the_package_is_used_as_before(wrong: str) -> None:
    library = Library(code=3 if wrong == "refuses" else 0)
    cupti = Both(library)

    def launch() -> None:
        cupti.launch()
        if wrong == "deaf":
            library.pending.clear()
        if wrong == "garbage" and library.pending:
            library.pending[-1] = (int(FakeKinds.CONCURRENT_KERNEL), 900, 100, 0)

    source = CuptiActivity(cupti)
    assert not source.read_buffers(None if wrong == "none" else library, launch)
    source.start()
    cupti.launch()
    assert [record.end_ns - record.start_ns for record in source.collect()] == [5]


def test_what_ended_before_a_session_began_is_not_of_it() -> None:
    cupti = FakeCupti()
    source = CuptiActivity(cupti)
    cupti.now_ns = 500
    source.start()
    for start, end in ((100, 400), (450, 500), (510, 520)):
        cupti.pending.append(types.SimpleNamespace(kind=FakeKinds.CONCURRENT_KERNEL, start=start, end=end))
    assert source.collect() == [Record(510, 520, 0)]
