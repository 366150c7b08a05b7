"""The candidates of one group on a lane: what they share is made once, what they break stays theirs.

::

    pool.child ── prepare(i) ──▶ inputs, reference: made, or remembered as impossible to make
               ── measure(i) ──▶ candidate ──▶ Measurement, always          (surroundings put back)
               ── close()    ──▶ memory given back

Whatever a candidate raises becomes a verdict here. Only a device fault is handed out beside it, because the process has
to be replaced after one.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from aiter_tuning.devices.device import Device, DeviceKind
from aiter_tuning.measure.bench import Bench
from aiter_tuning.measure.candidate import measure_candidate
from aiter_tuning.measure.inputs import Inputs, MissingInputError, tensors_in
from aiter_tuning.measure.place import described_with_place
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.plausibility import limits_of
from aiter_tuning.measure.reference import has_reference, make_reference
from aiter_tuning.measure.surroundings import Surroundings
from aiter_tuning.measure.timer import timer_factory
from aiter_tuning.measurement import UNMEASURED_US, Measurement
from aiter_tuning.status import Status, classify, describe, is_device_fault
from aiter_tuning.task import MpTunerTask

_WORTH_COLLECTING_BYTES = 16 << 20
"""Groups that held less leave nothing behind that is worth a walk over all objects."""


def _bytes_in(value: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(value))


class GroupBench:
    """Measures the candidates of one group, one at a time, in any order."""

    def __init__(
        self,
        tasks: Mapping[int, MpTunerTask] | Sequence[MpTunerTask],
        inputs_ids: Sequence[int] | Mapping[int, int],
        reference_ids: Sequence[int] | Mapping[int, int],
        data: Mapping[str, Any] | None,
        plan: MeasurePlan,
        kind: DeviceKind,
        torch_device: str,
        *,
        device_id: str = "",
        surroundings: Surroundings | None = None,
        on: Device | None = None,
    ) -> None:
        """Takes a group; nothing of the user's runs yet.

        Args:
            tasks: the candidates by index.
            inputs_ids: by index; candidates with equal numbers share inputs.
            reference_ids: by index; candidates with equal numbers share a reference.
            data: inputs that the caller made already.
            plan: how to measure.
            kind: the bound device.
            torch_device: what torch calls it.
            device_id: what records call it.
            surroundings: captured when the worker started; None: captured now.
            on: the lane's device, for the size of its cache and for what it can do at most; None: as torch tells,
                and no latency is too good to be true.

        Raises:
            ValueError: the plan's timer does not exist, or not for such a device.
        """
        self._tasks = tasks
        self._inputs_ids = inputs_ids
        self._reference_ids = reference_ids
        self._data = data
        device = torch.device(torch_device)
        cache_bytes = int(on.settings.get("llc_bytes", 0)) if on is not None else 0
        new_timer = timer_factory(plan.timer, device.type, cold_cache=plan.cold_cache, cache_bytes=cache_bytes)
        on_gpu = device.type != "cpu"
        limits = limits_of(on) if on is not None and on_gpu else None
        self._bench = Bench(plan, kind, device, new_timer, device_id, on_gpu, limits, self._ask_for_clean_worker)
        self._owns_surroundings = surroundings is None
        self._surroundings = surroundings or Surroundings.capture()
        self._inputs: Inputs | None = None
        self._inputs_of = -1
        self._reference: Any = None
        self._reference_of = -1
        self._failed_inputs: dict[int, Measurement] = {}
        self._failed_references: dict[int, Measurement] = {}
        self._setup_s = 0.0
        self._held_bytes = 0
        self.fault: BaseException | None = None
        """The last device fault, whether a candidate, the inputs or the reference raised it."""
        self.unclean = ""
        """Why this process should be replaced before it measures another candidate, though the last one is not to
        blame; empty: it need not be."""

    def prepare(self, index: int, announce: Callable[[str], None]) -> Measurement | None:
        """Makes inputs and reference of a candidate, unless they are there.

        ``announce`` is called with ``"inputs"`` or ``"reference"`` just before code of the user's makes them. Returns
        None, or the failed measurement that every candidate sharing them gets.
        """
        inputs_id, reference_id = self._inputs_ids[index], self._reference_ids[index]
        if inputs_id == self._inputs_of and reference_id == self._reference_of:
            return None
        failed = self._failed_inputs.get(inputs_id) or self._failed_references.get(reference_id)
        if failed is not None:
            return failed
        start = perf_counter()
        task = self._tasks[index]
        if inputs_id != self._inputs_of:
            failed = self._make_inputs(task, inputs_id, announce)
        if failed is None and reference_id != self._reference_of:
            failed = self._make_reference(task, reference_id, announce)
        self._surroundings.restore()
        self._setup_s += perf_counter() - start
        return failed

    def measure(
        self, index: int, first_call_done: Callable[[], None], leader_us: float = math.inf
    ) -> tuple[Measurement, BaseException | None]:
        """Measures a candidate whose :meth:`prepare` returned None.

        ``first_call_done`` is called once, when the first call, which may compile, has returned and its work is done.
        Returns the measurement, and the exception if it was a device fault: the process is worthless then.
        """
        measurement, fault = self._attempt(index, first_call_done, leader_us)
        changes = self._surroundings.restore()
        if changes or self._setup_s:
            measurement = replace(
                measurement,
                flags=measurement.flags + tuple(f"changed_{name}" for name in changes),
                setup_s=self._setup_s,
            )
            self._setup_s = 0.0
        return measurement, fault

    def close(self) -> None:
        """Drops inputs and reference and gives their memory back."""
        self._inputs = self._reference = self._data = None
        self._inputs_of = self._reference_of = -1
        if self._bench.on_gpu:
            from aiter_tuning.measure.gpu.timer_choice import release_timers

            release_timers()
        if self._held_bytes >= _WORTH_COLLECTING_BYTES:
            self._give_memory_back()
        self._held_bytes = 0
        if self._owns_surroundings:
            self._surroundings.close()

    def _ask_for_clean_worker(self, reason: str) -> None:
        self.unclean = reason

    def _attempt(
        self, index: int, first_call_done: Callable[[], None], leader_us: float
    ) -> tuple[Measurement, BaseException | None]:
        try:
            inputs = self._inputs
            if inputs is None:
                raise RuntimeError("measure() was called for a candidate whose prepare() did not return None")
            measurement = measure_candidate(
                self._bench, self._tasks[index], inputs, self._reference, first_call_done, leader_us
            )
        except BaseException as error:  # a candidate may raise SystemExit or a class of its own: a verdict all the same
            return self._verdict(error)
        return measurement, None

    def _verdict(self, error: BaseException) -> tuple[Measurement, BaseException | None]:
        if isinstance(error, MissingInputError):
            return Measurement.failed(Status.crash, str(error), us=UNMEASURED_US), None
        detail = describe(error)
        if is_device_fault(error):
            self.fault = error
            return Measurement.failed(Status.crash, detail, us=math.inf), error
        status = classify(error)
        if status is Status.crash:
            detail = described_with_place(error)
        us = math.inf if status is Status.timeout else UNMEASURED_US
        return Measurement.failed(status, detail, us=us), None

    def _make_inputs(self, task: MpTunerTask, inputs_id: int, announce: Callable[[str], None]) -> Measurement | None:
        # The old ones go first: two shapes' inputs may not fit side by side.
        self._inputs, self._inputs_of = None, -1
        self._reference, self._reference_of = None, -1
        user_made = bool(self._data) or task.gen_data is not None
        if user_made:
            announce("inputs")
        try:
            inputs = Inputs.make(task, self._data, self._bench.device, self._bench.plan.seed)
            if user_made:
                self._bench.kind.synchronize()
                inputs.keep_copies(except_for=self._always_outputs(inputs_id))
                self._held_bytes += _bytes_in(inputs.values)
        except BaseException as error:
            self._failed_inputs[inputs_id] = failed = self._unmade("inputs", error)
            return failed
        self._inputs, self._inputs_of = inputs, inputs_id
        return None

    def _make_reference(
        self, task: MpTunerTask, reference_id: int, announce: Callable[[str], None]
    ) -> Measurement | None:
        self._reference, self._reference_of = None, -1
        inputs = self._inputs
        if inputs is not None and has_reference(task):
            if task.ref is None:
                announce("reference")
            try:
                self._reference = make_reference(task, inputs, self._bench.device)
                self._held_bytes += _bytes_in(self._reference)
                self._bench.kind.synchronize()
                inputs.restore(inputs.values, thoroughly=True)
            except BaseException as error:
                self._reference = None
                self._failed_references[reference_id] = failed = self._unmade("reference", error)
                return failed
        self._reference_of = reference_id
        return None

    def _unmade(self, what: str, error: BaseException) -> Measurement:
        """The verdict for all candidates that would have used what could not be made; none of them launched."""
        if is_device_fault(error):
            self.fault = error
        status, detail = classify(error, launched=False), f"{what}: {described_with_place(error)}"
        return Measurement.failed(status, detail, us=math.inf)

    def _always_outputs(self, inputs_id: int) -> set[str]:
        """Names that every candidate sharing these inputs declares as outputs; no copy of them is ever needed."""
        indices = list(self._tasks) if isinstance(self._tasks, Mapping) else range(len(self._tasks))
        common: set[str] | None = None
        for index in indices:
            if self._inputs_ids[index] == inputs_id:
                declared = self._tasks[index].output_keys
                names = set(declared) if isinstance(declared, list | tuple) else set()
                common = names if common is None else common & names
                if not common:
                    break
        return common or set()

    def _give_memory_back(self) -> None:
        gc.collect()
        try:
            self._bench.kind.empty_cache()
        except Exception as error:  # on a faulted device nothing works; the next probe will say so
            if is_device_fault(error):
                self.fault = error
