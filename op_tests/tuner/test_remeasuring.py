"""Measuring groups of which nothing is recorded."""

from contextlib import AbstractContextManager

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.pool.watcher import RunEnd
from aiter_tuning.status import Status
from aiter_tuning.tuner.arguments import TuneArguments
from aiter_tuning.tuner.remeasuring import Remeasuring
from op_tests.lane_candidates import doubled
from op_tests.lane_scenarios import Operator


def test_a_stop_while_workers_are_being_started_is_not_forgotten(tiny, monkeypatch):
    family = tiny()
    remeasuring = Remeasuring(family, TuneArguments.of({}, family))

    class InterruptedPool(AbstractContextManager):
        devices = cpu_lanes(1)

        def __init__(self, **_):
            remeasuring.request_stop()

        def __exit__(self, *_):
            return None

        def run(self, *_, **__):
            raise AssertionError("nobody told it to stop")

    monkeypatch.setattr("aiter_tuning.tuner.remeasuring.Pool", InterruptedPool)
    found, outcome = remeasuring.measure([Operator().group([doubled])], devices=cpu_lanes(1))
    assert outcome.end is RunEnd.interrupted
    assert [result.status for result in found[0].results] == [Status.not_run]
