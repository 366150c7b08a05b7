"""``mp_tuner``: tasks in, one result for each out, whatever the candidates do.

Same calls and results as upstream's function of that name; what it adds is keyword-only.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import numbers
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aiter_tuning.devices.discovery import DeviceRequest, device_notes
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement, TuneResult
from aiter_tuning.pool.ledger import OnFault
from aiter_tuning.pool.pool import DEFAULT_STARTUP_TIMEOUT_S, Pool
from aiter_tuning.pool.watcher import Clocks, RunEnd, Watcher
from aiter_tuning.status import Status, one_line
from aiter_tuning.task import Group, MpTunerTask, as_task, group_by_shape, shape_key

logger = logging.getLogger("aiter_tuning")

ResultCallback = Callable[[Any], None]

_LOST = (float("inf"), 1.0)


def mp_tuner(
    tasks: Sequence[Sequence[Any]],
    in_datas: Sequence[tuple[int, Any]],
    mp_num: int = 0,
    fast_mode: bool = False,
    shape_grouped: bool = False,
    err_ratio: float = 0.05,
    timeout: float | None = None,
    verbose: bool = False,
    *,
    return_status: bool = False,
    result_callback: ResultCallback | None = None,
    candidate_timeout: float | None = None,
    compile_timeout: float | None = None,
    startup_timeout: float = DEFAULT_STARTUP_TIMEOUT_S,
    on_fault: OnFault = "abandon",
    retries: int = 0,
    devices: DeviceRequest = None,
    pool: Pool | None = None,
) -> list[Any]:
    """Measures every candidate in worker processes and returns one result for each, always.

    Each candidate is called once and checked, then ``num_warmup`` + ``num_iters`` times (from its task's kwargs, else
    2 and 101), then once more and checked again, each time on inputs as they were made. ``us`` is the median.

    Args:
        tasks: :class:`~aiter_tuning.task.MpTunerTask` or plain tuples in that order.
        in_datas: ``(n, data)``, one for each shape: its number of candidates, and its inputs where they are made
            already (falsy: ``gen_data`` makes them in the worker).
        mp_num: lanes; under 1 or above the number of GPUs: all of them.
        fast_mode: a task without a reference is allowed, timed and not checked.
        shape_grouped: the candidates of a shape run one after another on one lane, sharing inputs and reference;
            otherwise each makes its own. One lane without ``fast_mode`` always groups.
        err_ratio: largest accepted fraction of wrong elements.
        timeout: seconds for a whole group, from when a worker takes it. None: no clock.
        verbose: log what failed and what was printed, candidate by candidate. Changes no value.
        return_status: five-tuples (:class:`~aiter_tuning.TuneResult`) instead of ``(info, us, err_ratio)``.
        result_callback: called in this process with each result as it was measured, in order of completion, in the
            tuple form that the call returns; not for ``not_run``. The lane waits until it returns; what it raises
            ends the call.
        candidate_timeout: seconds for one candidate, from when it starts.
        compile_timeout: seconds for a candidate's first call, which may compile, and for making inputs or reference;
            None: ``candidate_timeout`` covers both.
        startup_timeout: seconds for a worker to import torch, and again to take its device.
        on_fault: after a device fault, a dead worker, a timeout, or inputs that cannot be made: ``"abandon"`` the rest
            of the group (``not_run``), or ``"continue"`` with it in a fresh worker.
        retries: how often a candidate that killed its worker is tried again.
        devices: None: all visible GPUs, else one CPU lane; ``"cpu"``, ``"cuda"``, ``"hip"``, indices, UUIDs.
        pool: an open :class:`~aiter_tuning.Pool` to use; ``mp_num``, ``startup_timeout`` and ``devices`` are its own.

    Returns:
        Grouped: group by group, in order of first appearance; otherwise in the order of the tasks. In the
        three-tuple form a group counts only as a whole: if one of its candidates faulted in ``abandon``, or is
        ``not_run``, all of them come back as ``(info, inf, 1.0)``, since the fastest survivor of an unfinished search
        must not be published by a caller who cannot see that it is unfinished.

    Raises:
        ValueError: an argument, a task, or a count in ``in_datas`` is wrong.
        NoDeviceError: there is no such device.
    """
    plan = MeasurePlan(err_ratio=err_ratio, fast_mode=fast_mode)
    clocks = Clocks(timeout, candidate_timeout, compile_timeout)
    _check_arguments(mp_num, clocks, on_fault, retries)
    if not isinstance(tasks, Sequence):
        raise ValueError(f"tasks is a list of tuples, not a {type(tasks).__name__}")
    if result_callback is not None and not callable(result_callback):
        raise ValueError(f"result_callback is called with each result; a {type(result_callback).__name__} cannot be")
    if pool is not None and not isinstance(pool, Pool):
        raise ValueError(f"pool is an open Pool, not a {type(pool).__name__}")
    if pool is not None and devices is not None:
        raise ValueError("pool has devices of its own: leave devices out, or pool")
    if not tasks:
        return []
    _check_in_datas(in_datas)
    checked = [as_task(task, position) for position, task in enumerate(tasks)]
    if not fast_mode:
        _require_references(checked)
    if sum(count for count, _ in in_datas) != len(checked):
        raise ValueError(
            f"in_datas declares {sum(count for count, _ in in_datas)} kernels but there are {len(checked)} tasks"
        )
    groups: ShapeTasks | SingleTasks
    with contextlib.nullcontext(pool) if pool is not None else Pool(devices, mp_num, startup_timeout) as used:
        if pool is None and devices is None and used.devices[0].torch_device == "cpu":
            logger.warning("no visible GPU: measuring on the CPU")
        for note in device_notes(used.devices):
            logger.warning("%s", note)
        if shape_grouped or (len(used.lanes) == 1 and not fast_mode):
            groups = ShapeTasks(checked, in_datas)
        else:
            groups = SingleTasks(checked, in_datas, len(used.lanes))
            clocks, on_fault = _clocks_of_one(clocks), "continue"
        collector = _Collector(groups, len(checked), on_fault, return_status, result_callback, verbose)
        outcome = used.run(groups, plan, clocks, on_fault=on_fault, retries=retries, watcher=collector)
    if outcome.end is not RunEnd.done:
        logger.error("%s; what was not measured is not_run", outcome.reason)
    return collector.results(outcome.reason)


def _check_arguments(mp_num: int, clocks: Clocks, on_fault: str, retries: int) -> None:
    if isinstance(mp_num, bool) or not isinstance(mp_num, int):
        raise ValueError(f"mp_num is a whole number of lanes, not {mp_num!r}")
    given: tuple[object, ...] = tuple(clocks)
    for name, seconds in zip(("timeout", "candidate_timeout", "compile_timeout"), given, strict=True):
        if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
            raise ValueError(f"{name} must be above 0 seconds, or None for no clock; not {seconds!r}")
    if on_fault not in ("abandon", "continue"):
        raise ValueError(f"on_fault is 'abandon' or 'continue', not {on_fault!r}")
    if retries < 0:
        raise ValueError(f"retries must be 0 or more, not {retries!r}")


def _check_in_datas(in_datas: object) -> None:
    if not isinstance(in_datas, Sequence):
        raise ValueError(f"in_datas is a list of (n, data), one for each shape, not a {type(in_datas).__name__}")
    for position, entry in enumerate(in_datas):
        pair = isinstance(entry, tuple | list) and len(entry) == 2
        if not pair or isinstance(entry[0], bool) or not isinstance(entry[0], numbers.Integral):
            raise ValueError(f"in_datas[{position}] is {entry!r}; expected (number of candidates, data or None)")
        data = entry[1]
        if not isinstance(data, Mapping) and (hasattr(data, "shape") or data):  # an array is neither true nor false
            raise ValueError(
                f"the data of in_datas[{position}] is a {type(data).__name__}; expected a mapping of names to values, "
                "or None to have gen_data make them"
            )


def _require_references(tasks: Sequence[MpTunerTask]) -> None:
    for position, task in enumerate(tasks):
        if task.ref is None and task.ref_func is None:
            raise ValueError(
                f"task {position} ({task.info!r}) has neither ref nor ref_func to be checked against; "
                "give one, or pass fast_mode=True to time without checking"
            )


def _clocks_of_one(clocks: Clocks) -> Clocks:
    """A group of one has the group's clock for its own."""
    own = [seconds for seconds in (clocks.group_s, clocks.candidate_s) if seconds is not None]
    return Clocks(None, min(own) if own else None, clocks.compile_s)


class ShapeTasks(Sequence[Group]):
    """The candidates of each shape as a group, shapes with the most candidates first; made when it is their turn.

    Raises:
        ValueError: ``in_datas`` does not have one entry for each shape, or an entry declares another number of
            candidates than its shape has.
    """

    def __init__(self, tasks: Sequence[MpTunerTask], in_datas: Sequence[tuple[int, Any]]) -> None:
        by_shape = group_by_shape(tasks)
        if len(in_datas) != len(by_shape):
            raise ValueError(f"in_datas has {len(in_datas)} entries but the tasks have {len(by_shape)} shapes")
        for (key, positions), (declared, _) in zip(by_shape, in_datas, strict=True):
            if declared != len(positions):
                raise ValueError(
                    f"work group declares {declared} kernels but contains {len(positions)} tasks (shape {key!r})"
                )
        self._tasks = tasks
        self._data = [data or None for _, data in in_datas]
        self._positions = [positions for _, positions in by_shape]
        firsts = itertools.accumulate(map(len, self._positions), initial=0)
        # Results come shape by shape in order of first appearance, whatever the order of the work.
        self._order = sorted(zip(range(len(by_shape)), firsts, strict=False), key=lambda x: -len(self._positions[x[0]]))

    def __len__(self) -> int:
        return len(self._order)

    def first(self, group: int) -> int:
        """Where the group's first result stands."""
        return self._order[group][1]

    def info(self, group: int, index: int) -> Any:
        """The caller's name of a candidate."""
        return self._tasks[self._positions[self._order[group][0]][index]].info

    def infos(self) -> Iterator[Any]:
        """All of them, in the order of the results."""
        return (self._tasks[position].info for positions in self._positions for position in positions)

    def __getitem__(self, group: Any) -> Any:
        shape = self._order[group][0]
        positions = self._positions[shape]
        tasks = tuple(self._tasks[position] for position in positions)
        return Group(tasks, tuple(positions), data=self._data[shape], label=str(shape_key(tasks[0])))


class SingleTasks(Sequence[Group]):
    """Tasks that share nothing, a few to a group so that a round trip serves several; made when it is their turn.

    A hundred thousand of them cost no memory here. Each has inputs of its own, and since a fault may cost only the one
    that faulted, they are to be run with ``on_fault="continue"``.

    Args:
        tasks: the tasks.
        in_datas: as for :func:`mp_tuner`; the counts must add up to the number of tasks.
        lanes: how many lanes share the work; with few tasks the groups are small, so that all lanes have some.
    """

    def __init__(self, tasks: Sequence[MpTunerTask], in_datas: Sequence[tuple[int, Any]], lanes: int) -> None:
        size = max(1, min(_MOST_TOGETHER, len(tasks) // (4 * lanes)))
        self._tasks = tasks
        self._spans: list[tuple[int, int, Any]] = []
        start = 0
        for count, data in _runs_of_equal_data(in_datas):
            for first in range(start, start + count, size):
                self._spans.append((first, min(first + size, start + count), data or None))
            start += count

    def __len__(self) -> int:
        return len(self._spans)

    def first(self, group: int) -> int:
        """Where the group's first result stands."""
        return self._spans[group][0]

    def info(self, group: int, index: int) -> Any:
        """The caller's name of a candidate."""
        return self._tasks[self._spans[group][0] + index].info

    def infos(self) -> Iterator[Any]:
        """All of them, in the order of the results."""
        return (task.info for task in self._tasks)

    def __getitem__(self, group: Any) -> Any:
        first, end, data = self._spans[group]
        return Group(tuple(self._tasks[first:end]), tuple(range(first, end)), data=data, shares=False)


_MOST_TOGETHER = 64


def _runs_of_equal_data(in_datas: Sequence[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Neighbouring entries without inputs of their own as one."""
    waiting = 0
    for count, data in in_datas:
        if data:
            if waiting:
                yield waiting, None
            waiting = 0
            yield count, data
        else:
            waiting += count
    if waiting:
        yield waiting, None


class _Collector(Watcher):
    """Gathers the results of one call in their order, and says at the end what failed, once for each cause."""

    def __init__(
        self,
        groups: ShapeTasks | SingleTasks,
        total: int,
        on_fault: OnFault,
        return_status: bool,
        callback: ResultCallback | None,
        verbose: bool,
    ) -> None:
        self.run_ahead = callback is None
        self._groups = groups
        self._on_fault = on_fault
        self._typed = return_status
        self._callback = callback
        self._verbose = verbose
        self._results: list[Any] = [None] * total
        self._statuses: Counter[Status] = Counter()
        self._causes: dict[tuple[Status, str], tuple[str, int]] = {}

    def _form(self, info: Any, measurement: Measurement) -> Any:
        result = measurement.result(info)
        return result if self._typed else tuple(result[:3])

    def measured(self, group: int, index: int, measurement: Measurement, *, logged: bool) -> None:
        info = self._groups.info(group, index)
        result = self._form(info, measurement)
        self._results[self._groups.first(group) + index] = result
        self._statuses[measurement.status] += 1
        if measurement.status is not Status.ok:
            self._remember(info, measurement)
        if self._callback is not None:
            self._callback(result)

    def _remember(self, info: Any, measurement: Measurement) -> None:
        cause = (measurement.status, measurement.detail[:60])
        first, count = self._causes.get(cause, (f"{info!r}: {measurement.detail}", 0))
        if count or len(self._causes) < _MOST_CAUSES:
            self._causes[cause] = (first, count + 1)
        if self._verbose:
            logger.warning("%s %r: %s", measurement.status, info, measurement.detail)

    def group_ended(self, group: int, results: Sequence[Measurement]) -> None:
        together = isinstance(self._groups, ShapeTasks) and not self._typed
        lost_together = together and any(self._is_fault(result) for result in results)
        for index, result in enumerate(results):
            place = self._groups.first(group) + index
            if lost_together:
                self._results[place] = (self._groups.info(group, index), *_LOST)
            elif not result.status.is_terminal:
                self._results[place] = self._form(self._groups.info(group, index), result)
                self._statuses[result.status] += 1

    def _is_fault(self, result: Measurement) -> bool:
        if not result.status.is_terminal:
            return True
        return self._on_fault == "abandon" and result.us == float("inf")

    def output(self, group: int, index: int, text: str) -> None:
        if self._verbose:
            logger.info("%r printed: %s", self._groups.info(group, index), one_line(text))

    def note(self, text: str) -> None:
        logger.warning("%s", text)

    def results(self, reason: str) -> list[Any]:
        """All of them; groups that were never begun are ``not_run``."""
        missing = Measurement.failed(Status.not_run, reason)
        for place, info in enumerate(self._groups.infos()):
            if self._results[place] is None:
                self._results[place] = self._form(info, missing)
                self._statuses[Status.not_run] += 1
        self._log_failures()
        return self._results

    def _log_failures(self) -> None:
        total, good = self._statuses.total(), self._statuses[Status.ok]
        if good == total:
            return
        counts = ", ".join(f"{count} {status}" for status, count in self._statuses.items())
        logger.warning("%d of %d candidates failed (%s)", total - good, total, counts)
        for (status, _), (first, count) in self._causes.items():
            if status is not Status.mismatch or self._verbose:
                logger.warning("%s ×%d, first %s", status, count, first)


_MOST_CAUSES = 50


__all__ = ["TuneResult", "mp_tuner"]
