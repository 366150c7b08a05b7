"""Records of device work: told apart by counting, and from where they come."""

from __future__ import annotations

import types
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.measure.gpu.activity import ActivityLostError, ActivityUnavailableError, Record, spans
from aiter_tuning.measure.gpu.cupti_activity import CuptiActivity
from aiter_tuning.measure.gpu.kineto_activity import KinetoActivity
from aiter_tuning.measure.timer import NothingTimedError
from op_tests.measure.fake_gpu import FakeCupti, FakeKinds


def row(*durations_us: float, gap_us: float = 1.0) -> list[Record]:
    at, records = 0.0, []
    for us in durations_us:
        records.append(Record(at * 1000, (at + us) * 1000))
        at += us + gap_us
    return records


@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(0, 3),
    st.floats(0.5, 100),
    st.randoms(use_true_random=False),
)
def test_every_calls_span_is_found_whatever_comes_before_each_launch(
    launches: int, calls: int, kernels: int, prelude: int, us: float, rng: Any
) -> None:
    records = row(*([300.0] * prelude + [us] * (calls * kernels)) * launches)
    rng.shuffle(records)
    assert spans(records, launches, calls, prelude) == pytest.approx(
        [kernels * us + kernels - 1] * (launches * calls), rel=1e-6
    )


@pytest.mark.parametrize("lost", range(12))
def test_one_lost_record_is_noticed_wherever_it_is_missing(lost: int) -> None:
    records = row(*[5.0] * 12)
    del records[lost]
    with pytest.raises(ActivityLostError, match="11 records of 4 launches"):
        spans(records, 4, 3)


def test_no_record_of_a_call_is_no_time_of_zero() -> None:
    with pytest.raises(NothingTimedError):
        spans([], 4, 3)
    with pytest.raises(NothingTimedError):
        spans(row(*[5.0] * 4), 4, 3, prelude=1)


def test_calls_that_differ_are_not_divided() -> None:
    assert spans(row(*[5.0, 5.0, 5.0] * 2), 2, 2) == [pytest.approx(17 / 2)] * 2


def test_kernels_that_overlap_the_next_call_count_as_a_whole() -> None:
    # Programmatic dependent launch starts a kernel before the one before has ended.
    overlapping = [Record(i * 4000.0, i * 4000.0 + 5000.0) for i in range(6)]
    assert spans(overlapping, 2, 3) == [pytest.approx(13 / 3)] * 2


def test_work_that_runs_on_into_the_next_launchs_preparation_is_not_on_the_timed_stream() -> None:
    restore_then_call = [Record(0, 10), Record(10, 5000), Record(4000, 4010), Record(4010, 9000)]
    with pytest.raises(NothingTimedError):
        spans(restore_then_call, 2, 1, prelude=1)


# --- CUPTI ------------------------------------------------------------------------------------------------------------


def opened(cupti: FakeCupti, *, cuda: str | None = "13.0", version: str = "13.0.1", **environ: str) -> CuptiActivity:
    return CuptiActivity.open(cuda, environ=environ, load=lambda name: cupti, version_of=lambda name: version)


def activity(kind: int, start: int, end: int) -> Any:
    return types.SimpleNamespace(kind=kind, start=start, end=end, name="k", graph_id=4)


def test_cupti_collects_kernels_copies_and_fills_and_nothing_else() -> None:
    cupti = FakeCupti()
    source = opened(cupti)
    assert cupti.enabled == [] and not cupti.subscribed, "nothing is collected before it is asked for"
    source.start()
    assert set(cupti.enabled) == {FakeKinds.CONCURRENT_KERNEL, FakeKinds.MEMCPY, FakeKinds.MEMSET}
    cupti.pending = [
        activity(FakeKinds.CONCURRENT_KERNEL, 10, 30),
        activity(FakeKinds.RUNTIME, 0, 99),
        activity(FakeKinds.MEMSET, 40, 45),
    ]
    assert source.collect() == [Record(10, 30, 4), Record(40, 45, 4)]
    source.start()
    assert source.collect() == [] and len(cupti.enabled) == 3
    source.stop()
    source.stop()
    assert cupti.enabled == []


def test_records_that_cupti_dropped_are_noticed() -> None:
    cupti = FakeCupti()
    source = opened(cupti)
    source.start()
    cupti.dropped = 3
    with pytest.raises(ActivityLostError, match="dropped 3"):
        source.collect()


def test_callbacks_that_somebody_took_over_are_taken_back_for_the_next_candidate() -> None:
    cupti = FakeCupti()
    source = opened(cupti)
    cupti.callbacks = (lambda: (1, 0), lambda activities: None)
    source.start()
    cupti.pending = [activity(FakeKinds.CONCURRENT_KERNEL, 10, 30)]
    assert source.collect() == [Record(10, 30, 4)]


def test_why_cupti_cannot_be_used_is_said_with_what_to_do() -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'cupti'")

    with pytest.raises(ActivityUnavailableError, match=r"pip install 'cupti-python==13\.0\.\*'") as caught:
        CuptiActivity.open("13.0", environ={}, load=missing, version_of=lambda name: "")
    assert isinstance(caught.value.__cause__, ImportError)
    with pytest.raises(ActivityUnavailableError, match=r"12\.8\.0 does not match torch's CUDA 13\.0"):
        opened(FakeCupti(), version="12.8.0")
    with pytest.raises(ActivityUnavailableError, match="CUDA only"):
        opened(FakeCupti(), cuda=None)

    def unknown(name: str) -> str:
        raise PackageNotFoundError(name)

    with pytest.raises(ActivityUnavailableError, match="cannot be loaded"):
        CuptiActivity.open("13.0", environ={}, load=lambda name: FakeCupti(), version_of=unknown)


@pytest.mark.parametrize("how", ["environment", "subscriber"])
def test_another_tool_that_uses_cupti_is_left_alone(how: str) -> None:
    cupti = FakeCupti()
    cupti.taken = how == "subscriber"
    environ = {"CUDA_INJECTION64_PATH": "/opt/nsys/inject.so"} if how == "environment" else {}
    with pytest.raises(ActivityUnavailableError, match="another tool uses CUPTI"):
        opened(cupti, **environ)
    assert cupti.callbacks is None and cupti.enabled == []


def test_a_release_that_subscribes_in_another_way_is_still_tried() -> None:
    cupti = FakeCupti()
    cupti.subscribe = None  # type: ignore[assignment, method-assign]
    assert opened(cupti)


def test_a_cupti_that_refuses_to_collect_is_unavailable() -> None:
    cupti = FakeCupti()

    def refuse(kind: int) -> None:
        raise RuntimeError("ERROR_INSUFFICIENT_PRIVILEGES")

    cupti.activity_enable = refuse  # type: ignore[method-assign]
    with pytest.raises(ActivityUnavailableError, match="INSUFFICIENT_PRIVILEGES"):
        opened(cupti)


# --- Kineto -----------------------------------------------------------------------------------------------------------


def test_a_torch_that_sees_no_device_has_no_records_to_give() -> None:
    import torch

    if torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities():
        pytest.skip("this torch was built with a device")
    with pytest.raises(ActivityUnavailableError, match="cannot see this device"):
        KinetoActivity.open()


def test_of_a_profile_only_device_work_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def event(device: str, name: str, start: float, end: float) -> Any:
        return types.SimpleNamespace(
            device_type=types.SimpleNamespace(name=device),
            name=name,
            is_user_annotation=name == "mine",
            time_range=types.SimpleNamespace(start=start, end=end),
        )

    class Profile:
        def __init__(self, activities: Any) -> None:
            self.open = 0

        def __enter__(self) -> None:
            self.open += 1

        def __exit__(self, *_: Any) -> None:
            self.open -= 1
            assert self.open == 0

        def events(self) -> list[Any]:
            return [
                event("CPU", "aten::mm", 0, 9),
                event("CUDA", "gemm", 1.5, 4.25),
                event("CUDA", "mine", 1, 5),
                event("CUDA", "Context Sync", 1, 8),
            ]

    monkeypatch.setattr(torch.profiler, "profile", Profile)
    source = KinetoActivity()
    source.start()
    assert source.collect() == [Record(1500, 4250)]
    source.start()
    source.stop()
    source.stop()
