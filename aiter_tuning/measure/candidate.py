"""The steps of measuring one candidate, in order.

::

    arguments ─▶ poison outputs ─▶ prepare ─▶ one checked call ─▶ compare ─▶ warm up, time ─▶ verify ─▶ restore
                                                     │                           ▲
                                                     └─ writes its inputs? ── restored before each later call

It runs the candidate's code and lets its exceptions out; :mod:`~aiter_tuning.measure.group` turns them into verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch

from aiter_tuning.measure.bench import Bench
from aiter_tuning.measure.compare import Comparison
from aiter_tuning.measure.inputs import Inputs, on_device, tensors_in
from aiter_tuning.measure.judging import ComparisonError, judge, uncompared
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measure.plausibility import work_of
from aiter_tuning.measure.poison import poison, poison_free_memory
from aiter_tuning.measure.preflight import shortfall
from aiter_tuning.measure.pristine import Pristine, can_be_copied
from aiter_tuning.measure.reference import has_reference, storage_of
from aiter_tuning.measure.timer import Call
from aiter_tuning.measure.timing import Timed, refused, time_candidate
from aiter_tuning.measurement import UNMEASURED_US, WRITES_INPUTS, Measurement
from aiter_tuning.status import Status, is_device_fault
from aiter_tuning.task import MpTunerTask

TIMING_KEYWORDS = frozenset(("num_iters", "num_warmup", "testGraph", "num_rotate_args", "needTrace", "use_cuda_event"))
"""Keywords in a task's kwargs that tell the harness how to time; the candidate does not see them."""
VERIFYING_S = 0.1
"""Once this is used up, a candidate is not verified by further calls."""
UNPROTECTED = "unprotected"
"""The flag of a result that lies in an input which is not declared as an output."""


def measure_candidate(
    bench: Bench,
    task: MpTunerTask,
    inputs: Inputs,
    reference: Any,
    first_call_done: Callable[[], None],
    leader_us: float,
) -> Measurement:
    """Runs, checks and times one candidate on inputs that it leaves as they were.

    Raises:
        BaseException: whatever the candidate raised.
    """
    steps = Steps.of(bench, task, inputs, reference)
    if steps.iters < 1:
        return Measurement.failed(Status.crash, f"num_iters must be 1 or more, not {steps.iters}", us=UNMEASURED_US)
    try:
        measurement = steps.run(first_call_done, leader_us)
    except BaseException as error:
        if not is_device_fault(error):  # after one, nothing on the device can be put back
            steps.put_back(thoroughly=True)
        raise
    steps.put_back(thoroughly=steps.suspicious)
    return measurement


def _copies_of(args: Any) -> Sequence[Pristine]:
    """Copies of the tensors in literal arguments, which neighbours may have been given too."""
    tensors = [tensor for tensor in tensors_in(args) if can_be_copied(tensor)]
    return (Pristine(tensors),) if tensors else ()


def _call_counts(kwargs: Mapping[str, Any] | None, plan: MeasurePlan) -> tuple[Mapping[str, Any], int, int]:
    """The candidate's own keywords, its warm-up calls and its timed calls."""
    if not kwargs:
        return {}, plan.warmup, plan.iters
    warmup, iters = kwargs.get("num_warmup"), kwargs.get("num_iters")
    own = {name: value for name, value in kwargs.items() if name not in TIMING_KEYWORDS}
    return (
        own,
        plan.warmup if warmup is None else max(0, int(warmup)),
        plan.iters if iters is None else int(iters),
    )


class Checked(NamedTuple):
    """A first call that came back."""

    comparison: Comparison
    flags: tuple[str, ...]
    first_call_s: float


class Steps:
    """One candidate on its way; holds what its steps share."""

    __slots__ = (
        "_bench",
        "_copies",
        "_inputs_at",
        "_outputs",
        "_put_back",
        "_reference",
        "_task",
        "_written",
        "call",
        "iters",
        "suspicious",
        "warmup",
    )

    def __init__(
        self,
        bench: Bench,
        task: MpTunerTask,
        args: tuple[Any, ...],
        outputs: Sequence[torch.Tensor],
        copies: Sequence[Pristine],
        reference: Any,
        put_back: Callable[[bool], None],
    ) -> None:
        """Use :meth:`of`."""
        self._bench = bench
        self._task = task
        kwargs, self.warmup, self.iters = _call_counts(task.kwargs, bench.plan)
        self.call = Call(task.func, args, kwargs)
        """What is timed."""
        self._outputs = outputs
        self._copies = copies
        self._reference = reference
        self._put_back = put_back
        self._written: Sequence[Pristine] = ()
        self.suspicious = False
        """Whether it may have written its inputs in a call after the checked one."""
        declared = {storage_of(tensor) for tensor in outputs} if outputs else set()
        self._inputs_at = {storage_of(tensor) for tensor in tensors_in(args)} - declared if copies else set()

    @classmethod
    def of(cls, bench: Bench, task: MpTunerTask, inputs: Inputs, reference: Any) -> Steps:
        """The steps of ``task`` on ``inputs``.

        Raises:
            MissingInputError: it names a value that the inputs do not hold.
        """
        if task.gen_data is None:
            args = on_device(task.args, bench.device) if bench.device.type != "cpu" else task.args
            copies = _copies_of(args)

            def put_back(thoroughly: bool) -> None:
                for copy in copies:
                    copy.settle(thoroughly=thoroughly)

            return cls(bench, task, args, (), copies, reference, put_back)
        args = inputs.arguments(task.args)
        names = inputs.names(task.args)
        declared = task.output_keys if isinstance(task.output_keys, list | tuple) else ()
        output_names = [name for name in declared if name in names]
        outputs = [tensor for name in output_names for tensor in tensors_in(inputs.values[name])]

        def restore(thoroughly: bool) -> None:
            inputs.restore(names, overwritten=output_names, thoroughly=thoroughly)

        kept = inputs.copies(name for name in names if name not in output_names)
        return cls(bench, task, args, outputs, kept, reference, restore)

    def run(self, first_call_done: Callable[[], None], leader_us: float) -> Measurement:
        """All of them; the inputs are left to be put back."""
        rule = self._bench.plan.early_stop
        checked = self.check(first_call_done)
        if isinstance(checked, Measurement):
            return checked
        wrong = not self.is_right(checked.comparison)
        iters = self.iters if rule is None or not wrong else min(self.iters, rule.min_samples)
        timed = time_candidate(
            self._bench,
            self._task,
            self.call,
            warmup=self.warmup,
            iters=iters,
            restore=self.restore,
            leader_us=leader_us,
        )
        verify = rule is None or not (wrong or timed.sampled.censored or not self.has_reference)
        return self.refused(timed) or self.conclude(checked, timed, verify=int(verify))

    def check(self, first_call_done: Callable[[], None]) -> Checked | Measurement:
        """The first call, compared with the reference; a measurement if it ends here.

        ``first_call_done`` is called when the call has returned and its work is done.
        """
        bench = self._bench
        if bench.on_gpu:
            lacking = self._lacks()
            if lacking:
                return Measurement.failed(Status.oom_preflight, lacking, us=math.inf)
        self._poison(turn=0)
        prepare = getattr(self._task.func, "prepare", None)
        if prepare is not None:
            self._prepare(prepare)
        start = perf_counter()
        result = self.call.func(*self.call.args, **self.call.kwargs)
        bench.kind.synchronize()
        first_call_s = perf_counter() - start
        first_call_done()
        flags = self._flags(result)
        self._written = [copies.dirty() for copies in self._copies if copies.find_written()]
        if self._written:
            flags += (WRITES_INPUTS,)
        try:
            return Checked(self._judge(result), flags, first_call_s)
        except ComparisonError as error:
            return uncompared(error)

    def refused(self, timed: Timed) -> Measurement | None:
        """The verdict on a time that cannot be; None if nothing speaks against it."""
        return refused(self._bench.limits, self.call, timed)

    def conclude(self, checked: Checked, timed: Timed, *, verify: int) -> Measurement:
        """The verdict, after so many more calls that are compared; after fewer where one is wrong or time is up."""
        comparison = checked.comparison
        began = perf_counter()
        for turn in range(1, verify + 1):
            try:
                verified = self._verify(turn)
            except ComparisonError as error:
                return uncompared(error)
            if verified.err_ratio > comparison.err_ratio:
                self.suspicious = True
                was_right = "right in its first call, wrong after timing: " if self.is_right(comparison) else ""
                comparison = Comparison(verified.err_ratio, was_right + verified.detail)
            if not self.is_right(comparison) or perf_counter() > began + VERIFYING_S:
                break
        right = self.is_right(comparison)
        return Measurement(
            status=Status.ok if right else Status.mismatch,
            us=timed.sampled.us,
            err_ratio=comparison.err_ratio,
            detail="" if right else comparison.detail,
            censored=timed.sampled.censored,
            samples=timed.sampled.calls,
            timer=timed.timer,
            flags=checked.flags + timed.flags,
            first_call_s=checked.first_call_s,
            timing_s=timed.timing_s,
            device=self._bench.device_id,
        )

    def is_right(self, comparison: Comparison) -> bool:
        return comparison.within(self._bench.plan.err_ratio)

    def put_back(self, *, thoroughly: bool) -> None:
        """Leaves the inputs as they were made; ``thoroughly``: even where nobody has seen a write."""
        self._put_back(thoroughly)

    @property
    def restore(self) -> Callable[[], None] | None:
        """Puts back what it writes among its inputs; None if it writes nothing."""
        return self._restore if self._written else None

    @property
    def has_reference(self) -> bool:
        """Whether there is anything to compare with."""
        return has_reference(self._task)

    def _poison(self, turn: int) -> None:
        if self._outputs:
            poison(self._outputs, turn)
        elif self._reference is not None:
            poison_free_memory((tensor for tensor in tensors_in(self._reference) if can_be_copied(tensor)), turn)

    def _prepare(self, prepare: Callable[..., Any]) -> None:
        func, args, kwargs = self.call
        prepared = prepare(*args, **kwargs)
        if not isinstance(prepared, tuple):
            raise TypeError(f"prepare returned a {type(prepared).__name__}; expected the tuple of the call's arguments")
        self.call = Call(func, prepared, kwargs)

    def _flags(self, result: Any) -> tuple[str, ...]:
        """``unprotected``: the result lies in an input that is not declared as an output."""
        if self._inputs_at and any(storage_of(tensor) in self._inputs_at for tensor in tensors_in(result)):
            return (UNPROTECTED,)
        return ()

    def _judge(self, result: Any) -> Comparison:
        """Compares a result with the reference."""
        return judge(self._task, self._bench.plan, self._reference, result, self._outputs)

    def _lacks(self) -> str:
        """Memory that the candidate says it needs and the GPU has not."""
        work = work_of(self._task.func)
        if work is None or not work.workspace_bytes:
            return ""
        from aiter_tuning.measure.gpu.accelerator import free_bytes

        return shortfall(free_bytes(), work.workspace_bytes)

    def _restore(self) -> None:
        for written in self._written:
            written.restore()

    def _verify(self, turn: int) -> Comparison:
        """One more call after all the timed ones, on inputs as they were made."""
        self._restore()
        for copies in self._copies:
            if copies.written_for_torch():
                copies.settle()
        self._poison(turn)
        result = self.call.func(*self.call.args, **self.call.kwargs)
        self._bench.kind.synchronize()
        return self._judge(result)
