"""Capturing with torch's own graph class replaced: whose memory is shared, and what a failure leaves behind."""

from __future__ import annotations

import contextlib
import gc
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from aiter_tuning.measure.gpu.accelerator import CaptureError, Gpu


class FakeTorchCuda:
    """What ``torch.cuda`` is asked for while capturing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pools: list[object] = []
        self.alive = 0
        self.current: list[object] = []
        self.end_fails = self.begin_fails = self.is_empty = False
        self.device_error: Exception | None = None
        self.modes: list[str] = []
        properties = types.SimpleNamespace(L2_cache_size=50 << 20)
        replaced: dict[str, Any] = {
            "CUDAGraph": lambda: FakeTorchGraph(self),
            "Stream": object,
            "stream": self._stream,
            "synchronize": self._synchronize,
            "current_device": lambda: 0,
            "get_device_properties": lambda device: properties,
            "mem_get_info": lambda: (10 << 30, 80 << 30),
            "memory_stats_as_nested_dict": lambda: {
                "reserved_bytes": {"all": {"current": 3 << 30}},
                "allocated_bytes": {"all": {"current": 1 << 30}},
            },
        }
        for name, value in replaced.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @contextlib.contextmanager
    def _stream(self, stream: object) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()

    def _synchronize(self) -> None:
        if self.device_error is not None:
            raise self.device_error


class FakeTorchGraph:
    def __init__(self, cuda: FakeTorchCuda) -> None:
        self._cuda, self._pool = cuda, object()
        cuda.alive += 1

    def __del__(self) -> None:
        self._cuda.alive -= 1

    def pool(self) -> object:
        return self._pool

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        if self._cuda.begin_fails:
            raise RuntimeError("begin")
        self._cuda.modes.append(capture_error_mode)
        self._cuda.pools.append(pool)
        self._pool = pool or self._pool

    def capture_end(self) -> None:
        if self._cuda.begin_fails or self._cuda.end_fails:
            raise RuntimeError("operation failed due to a previous error during capture")
        if self._cuda.is_empty:
            warnings.warn("The CUDA Graph is empty. This usually means that …", UserWarning, stacklevel=1)

    def replay(self) -> None:
        pass


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeTorchCuda:
    return FakeTorchCuda(monkeypatch)


def raising(error: BaseException) -> Callable[[], None]:
    def body() -> None:
        raise error

    return body


def test_a_body_runs_on_the_timed_stream_and_its_graph_is_not_empty(cuda: FakeTorchCuda) -> None:
    gpu = Gpu()
    ran: list[object] = []
    graph = gpu.capture(lambda: ran.extend(cuda.current))
    assert ran == [gpu.stream] and cuda.modes == ["relaxed"] and not graph.is_empty


def test_graphs_share_the_pool_of_the_latest_one_until_it_is_let_go(cuda: FakeTorchCuda) -> None:
    gpu = Gpu()
    first = gpu.capture(lambda: None)
    del first
    assert cuda.alive == 1, "a pool may be shared only while a graph that uses it is alive"
    gpu.capture(lambda: None)
    gpu.capture(lambda: None)
    assert cuda.pools[0] is None and cuda.pools[1] is cuda.pools[2] is not None and cuda.alive == 1
    gpu.release()
    assert cuda.alive == 0
    gpu.capture(lambda: None)
    assert cuda.pools[3] is None


def test_an_empty_graph_is_known_by_torchs_warning_which_nobody_else_hears(cuda: FakeTorchCuda) -> None:
    cuda.is_empty = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Gpu().capture(lambda: None).is_empty


def test_an_exception_in_the_body_is_a_clean_failure_if_the_capture_ends_in_order(cuda: FakeTorchCuda) -> None:
    gpu = Gpu()
    gpu.capture(lambda: None)
    with pytest.raises(CaptureError, match="ValueError: no capturing, please") as caught:
        gpu.capture(raising(ValueError("no capturing, please")))
    assert caught.value.clean and not cuda.current
    gpu.capture(lambda: None)
    assert cuda.pools[2] is not None


@pytest.mark.parametrize("where", ["begin_fails", "end_fails"])
def test_a_capture_that_breaks_off_is_not_clean_and_its_pool_is_not_used_again(cuda: FakeTorchCuda, where: str) -> None:
    gpu = Gpu()
    gpu.capture(lambda: None)
    setattr(cuda, where, True)
    error = RuntimeError("operation not permitted when stream is capturing")
    with pytest.raises(CaptureError) as caught:
        gpu.capture(raising(error))
    assert not caught.value.clean and caught.value.__cause__ is None
    setattr(cuda, where, False)
    gpu.capture(lambda: None)
    assert cuda.pools[-1] is None


@pytest.mark.parametrize("where", ["body", "begin_fails", "end_fails"])
def test_the_graph_of_a_capture_that_failed_ends_there_and_not_with_some_later_collection(
    cuda: FakeTorchCuda, where: str
) -> None:
    """On HIP it waits for the device when it ends: in the middle of another capture, that ends the process."""
    gpu = Gpu()
    if where != "body":
        setattr(cuda, where, True)
    gc.disable()
    try:
        with pytest.raises(CaptureError):
            gpu.capture(raising(ValueError("no capturing, please")))
        assert cuda.alive == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [None, ValueError("no capturing, please")])
def test_nothing_is_collected_during_a_capture(cuda: FakeTorchCuda, error: Exception | None) -> None:
    collecting: list[bool] = []

    def body() -> None:
        collecting.append(gc.isenabled())
        if error is not None:
            raise error

    with contextlib.suppress(CaptureError):
        Gpu().capture(body)
    assert collecting == [False] and gc.isenabled()


def test_a_device_that_failed_is_no_failed_capture(cuda: FakeTorchCuda) -> None:
    gpu = Gpu()

    def body() -> None:
        cuda.device_error = RuntimeError("CUDA error: an illegal memory access was encountered")
        raise cuda.device_error

    with pytest.raises(RuntimeError, match="illegal memory access") as caught:
        gpu.capture(body)
    assert not isinstance(caught.value, CaptureError)


def test_a_candidate_that_exits_is_not_kept_from_it(cuda: FakeTorchCuda) -> None:
    with pytest.raises(SystemExit):
        Gpu().capture(raising(SystemExit(3)))


def test_what_torch_keeps_and_does_not_use_is_free(cuda: FakeTorchCuda) -> None:
    assert Gpu().free_bytes() == (10 + 3 - 1) << 30


def test_behind_an_amd_l2_there_is_a_larger_cache(cuda: FakeTorchCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Gpu().cache_bytes == 50 << 20
    monkeypatch.setattr(torch.version, "hip", "7.0")
    gpu = Gpu()
    assert gpu.is_hip and gpu.cache_bytes == 256 << 20
