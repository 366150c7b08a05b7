"""The unit of work: one candidate for one shape, and how candidates are gathered into groups.

::

    MpTunerTask   info = (shape key, candidate…), gen_data, func, reference, tolerances
        │  group_by_shape
        ▼
    Group         the candidates that share a lane, in order, with what they share (inputs, reference) numbered

A group is what a lane takes at a time. Which candidates share inputs is decided here, in the parent, by identity:
pickling would lose it, and a worker that dies while making inputs has to be attributable to all who share them.
Standard library only.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from aiter_tuning.contest import Block, Contest
    from aiter_tuning.measurement import Measurement

ALL_INPUTS = "*"
"""In the place of a task's list of data keys: the candidate gets the whole mapping as its first argument."""


class MpTunerTask(NamedTuple):
    """One candidate. Plain tuples in this order work too; the last five fields may be left out.

    ``gen_data(*gen_args, device=…)`` returns a mapping of named values. With it, ``args[0]`` lists the names that the
    candidate gets, and the call is ``func(*[data[k] for k in args[0]], *args[1:], **kwargs)``; without it ``args`` is
    literal. ``kwargs`` may hold ``num_warmup`` and ``num_iters`` (and upstream's other timing keywords); the rest goes
    to ``func``. ``ref_args`` and ``ref_kwargs`` follow the same convention; a ready ``ref`` wins over ``ref_func``.

    A ``func`` with a method ``prepare(*args, **kwargs)`` has it called once, untimed, before its first call, with the
    call's own arguments; what it returns, a tuple, replaces them (weights packed once at load time, as serving does).
    """

    info: Any
    """Identity; ``info[0]`` is the shape key, the rest names the candidate."""
    gen_data: Callable[..., Mapping[str, Any]] | None
    gen_args: tuple[Any, ...]
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    ref_func: Callable[..., Any] | None
    ref_args: tuple[Any, ...]
    ref_kwargs: Mapping[str, Any]
    ref: Any
    rtol: float = 1e-2
    atol: float = 1e-2
    compare_fn: Callable[..., float] | None = None
    """``compare_fn(reference, result, msg=…, printLog=…)`` returns the error ratio."""
    max_abs_delta: float | None = None
    """An element further off than this makes the whole result wrong."""
    output_keys: Sequence[str] | None = None
    """Names of inputs that are outputs; filled with NaN before each checked call."""


MIN_TASK_FIELDS = 10
"""Fields without which a plain tuple is no task."""


def as_task(task: object, position: int) -> MpTunerTask:
    """A task from a plain tuple or an :class:`MpTunerTask`.

    Raises:
        ValueError: it does not have 10 to 15 fields, ``func`` is not callable, or a tolerance is no number; the message
            names its position.
    """
    if isinstance(task, MpTunerTask):
        converted = task
    else:
        if not isinstance(task, tuple | list):
            raise ValueError(f"task {position} is a {type(task).__name__}, not a tuple")
        most = len(MpTunerTask._fields)
        if not MIN_TASK_FIELDS <= len(task) <= most:
            raise ValueError(
                f"task {position} has {len(task)} fields; expected {MIN_TASK_FIELDS} to {most}: "
                + ", ".join(MpTunerTask._fields)
            )
        converted = MpTunerTask(*task)
    if not callable(converted.func):
        raise ValueError(
            f"task {position} ({converted.info!r}): func is a {type(converted.func).__name__}, not callable"
        )
    for name in ("rtol", "atol", "max_abs_delta"):
        value = getattr(converted, name)
        optional = name == "max_abs_delta" and value is None
        if not optional and (isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value) >= 0):
            raise ValueError(
                f"task {position} ({converted.info!r}): {name} is {value!r}; expected a number of 0 or more"
            )
    return converted


def shape_key(task: MpTunerTask) -> Hashable:
    """The grouping key: ``info[0]``, or the whole ``info`` where it is not a sequence."""
    info = task.info
    key: Hashable = info[0] if isinstance(info, tuple | list) and info else info
    try:
        hash(key)
    except TypeError:
        return repr(key)
    return key


def _identity(value: Any) -> Hashable:
    """A value's identity for sharing inputs: tensors by address, shape and type; containers element by element."""
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(_identity, value))
    if isinstance(value, Mapping):
        return ("mapping", *((str(name), _identity(item)) for name, item in value.items()))
    if hasattr(value, "data_ptr"):
        return ("tensor", value.data_ptr(), tuple(value.shape), str(value.dtype))
    try:
        hash(value)
    except TypeError:
        return ("object", id(value))
    return (type(value).__name__, value)


def _number(keys: Iterable[tuple[Hashable, ...]], identify: Callable[[int], Hashable]) -> tuple[int, ...]:
    """Small integers in order of first appearance.

    Args:
        keys: for each candidate the identities of its objects: equal keys are equal without a closer look.
        identify: what candidates of different keys are compared by.
    """
    by_key: dict[tuple[Hashable, ...], int] = {}
    by_identity: dict[Hashable, int] = {}
    numbers = []
    for index, key in enumerate(keys):
        number = by_key.get(key)
        if number is None:
            number = by_key[key] = by_identity.setdefault(identify(index), len(by_identity))
        numbers.append(number)
    return tuple(numbers)


class LogbookError(OSError):
    """A logbook could not be written; the run that it belongs to has ended."""


class Logbook(Protocol):
    """Where a worker itself writes down what it does, so that nothing is lost whoever dies. Travels with its group."""

    def started(self, candidate: int, attempt: int) -> None:
        """The candidate is about to run. Raises OSError when it cannot be written."""
        ...

    def finished(self, candidate: int, measurement: Measurement) -> None:
        """Its verdict. Raises OSError when it cannot be written."""
        ...


@runtime_checkable
class ContestLogbook(Logbook, Protocol):
    """A logbook that follows a contest turn by turn; one that does not is only told of entrants and verdicts."""

    def turn(self, ended: tuple[int, int] | None, begins: tuple[int, int] | None) -> None:
        """One entrant's turn has ended and another's begins; candidate and attempt of each. Raises OSError."""
        ...

    def block(self, block: Block, timed: Sequence[Measurement]) -> None:
        """A block is over; ``timed`` are its turns, in the block's order. Raises OSError."""
        ...


@dataclass(frozen=True)
class Group:
    """The candidates that one lane measures, one after another or, with a contest, in turns."""

    tasks: tuple[MpTunerTask, ...]
    positions: tuple[int, ...]
    """Where each task stood in the caller's list."""
    data: Mapping[str, Any] | None = None
    """Inputs that the caller made already; ``gen_data`` is then not called."""
    label: str = ""
    """What a person calls the shape."""
    cost: float = 1.0
    """Expected work relative to other groups; the longest is handed out first."""
    shares: bool = True
    """Whether candidates share inputs and reference; False: each makes its own."""
    logbook: Logbook | None = None
    """Written by the worker before and after each candidate; None: the parent is told, and that is all."""
    contest: Contest | None = None
    """How to time the candidates in turns; None: one after another."""
    fresh: bool = False
    """Whether it is for a worker that has carried out nothing but such groups: what a process does to a candidate's
    latency (where its memory lies, what a library chose once) is then none of what earlier ones did."""
    inputs_ids: tuple[int, ...] = field(init=False)
    """Candidates with equal numbers share inputs."""
    reference_ids: tuple[int, ...] = field(init=False)
    """Candidates with equal numbers share a reference."""

    def __post_init__(self) -> None:
        if len(self.tasks) != len(self.positions) or not self.tasks:
            raise ValueError(f"a group needs a position for each task: {len(self.tasks)} and {len(self.positions)}")
        if not self.shares:
            apart = tuple(range(len(self.tasks)))
            object.__setattr__(self, "inputs_ids", apart)
            object.__setattr__(self, "reference_ids", apart)
            return
        tasks = self.tasks

        def inputs_of(index: int) -> Hashable:
            return id(tasks[index].gen_data), _identity(tasks[index].gen_args)

        def reference_of(index: int) -> Hashable:
            task = tasks[index]
            made_with = _identity(task.ref_args), _identity(task.ref_kwargs)
            return id(task.ref), id(task.ref_func), made_with, inputs[index]

        inputs = _number(((id(task.gen_data), id(task.gen_args)) for task in tasks), inputs_of)
        reference_keys = (
            (id(task.ref), id(task.ref_func), id(task.ref_args), id(task.ref_kwargs), shared)
            for task, shared in zip(tasks, inputs, strict=True)
        )
        references = _number(reference_keys, reference_of)
        object.__setattr__(self, "inputs_ids", inputs)
        object.__setattr__(self, "reference_ids", references)

    def sharing(self, index: int, phase: str) -> tuple[int, ...]:
        """Indices of the candidates that share ``inputs`` or ``reference`` (``phase``) with the one at ``index``."""
        ids = self.inputs_ids if phase == "inputs" else self.reference_ids
        return tuple(i for i, shared in enumerate(ids) if shared == ids[index])


def group_by_shape(tasks: Sequence[MpTunerTask]) -> list[tuple[Hashable, list[int]]]:
    """Positions of each shape's tasks, shapes in order of first appearance."""
    groups: dict[Hashable, list[int]] = {}
    for position, task in enumerate(tasks):
        groups.setdefault(shape_key(task), []).append(position)
    return list(groups.items())
