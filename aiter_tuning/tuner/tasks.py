"""How a family's candidates become tasks that a worker can take.

::

    Family.inputs      ◀── MakeInputs(reference)      gen_data(shape, seed, device=…)
    Family.reference   ◀── MakeReference(reference)   ref_func(inputs)
    Family.run         ◀── RunCandidate(reference, config)
    Family.prepare     ◀── PreparedCandidate.prepare  only where the family defines it
    Family.serve       ◀── ServeShape                 see serving_tasks

What is pickled is the family's reference (a few words) and a config; the worker loads the family the first time and
keeps it. Nothing of the operator itself travels, so a task stays small and a broken import is the worker's finding.
Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from aiter_tuning.task import ALL_INPUTS, Group, Logbook, MpTunerTask
from aiter_tuning.tuner.family import Candidate, Family, Inputs, Tolerance, Work
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.plan import ShapePlan

FLOPS_PER_BYTE = 10.0
"""What a byte costs beside a floating-point operation when groups are ordered by expected work."""

_KEPT_BY_JSON = frozenset((str, int, float, bool, type(None)))
"""What is the same after it was written to a row and read; a tuple becomes a list, a number that is a name a text."""


@dataclass(frozen=True, slots=True)
class MakeInputs:
    family: str

    def __call__(self, shape: Mapping[str, Any], seed: int, *, device: Any) -> Inputs:
        from aiter_tuning.serving import record_misses

        record_misses(None)  # what a worker looks up is not asked for by serving
        family = load_family(self.family)
        inputs: object = family.inputs(shape, str(device), seed)
        if not isinstance(inputs, Mapping):
            gives = "nothing" if inputs is None else f"a {type(inputs).__name__}"
            raise TypeError(f"inputs() of {family.name} gives {gives}; expected a dict of named tensors")
        for name in family.outputs:
            if name not in inputs:  # it would not be filled with NaN, and what is never written go unnoticed
                has = ", ".join(map(str, inputs))
                raise LookupError(
                    f"outputs of {family.name} names {name!r}, which inputs() does not give; it gives {has}"
                )
        return inputs


@dataclass(frozen=True, slots=True)
class MakeReference:
    family: str

    def __call__(self, inputs: Inputs) -> Any:
        return load_family(self.family).reference(inputs)


@dataclass(frozen=True, slots=True)
class RunCandidate:
    """One call of the operator; looked up through the cache of :func:`load_family`, which costs a fraction of 1 us."""

    family: str
    config: Mapping[str, Any]
    work: Work | None = None
    """For the memory that it needs, and for latencies that cannot be."""

    def __call__(self, inputs: Inputs) -> Any:
        return load_family(self.family).run(inputs, self.config)


@dataclass(frozen=True, slots=True)
class PreparedCandidate(RunCandidate):
    """A candidate of a family that prepares its inputs once, as serving does when it loads weights."""

    def prepare(self, inputs: Inputs) -> tuple[Inputs]:
        return (load_family(self.family).prepare(inputs, self.config),)


class FamilyTasks:
    """Makes the groups of one family; its callables are shared, so that candidates of a shape share inputs."""

    def __init__(self, family: Family, reference: str, *, seed: int, kwargs: Mapping[str, Any]) -> None:
        self.seed = seed
        self.kwargs = dict(kwargs)
        self.tolerance: Tolerance = family.tolerance
        self.output_keys = tuple(family.outputs)
        self.reference = reference
        self._make_inputs = MakeInputs(reference)
        self._make_reference = MakeReference(reference)
        prepares = type(family).prepare is not Family.prepare
        self._run: type[RunCandidate] = PreparedCandidate if prepares else RunCandidate

    def group(self, plan: ShapePlan, candidates: Sequence[Candidate], logbook: Logbook | None = None) -> Group:
        """Candidates of one shape as a group, in the order given."""
        ways = [((one.kernel_id, one.split_k, one.name), self.way(one, plan.work)) for one in candidates]
        return self.group_of(plan.shape, plan.label, plan.work, ways, logbook)

    def way(self, candidate: Candidate, work: Work) -> RunCandidate:
        """What a worker calls to run a candidate: with the config that its row would give back."""
        config = dict(candidate.config)
        if not all(type(name) is str and type(value) in _KEPT_BY_JSON for name, value in config.items()):
            config = json.loads(json.dumps(config))
        return self._run(self.reference, config, work)

    def group_of(
        self,
        shape: Mapping[str, Any],
        label: str,
        work: Work,
        ways: Sequence[tuple[tuple[Any, ...], Callable[..., Any]]],
        logbook: Logbook | None = None,
    ) -> Group:
        """Any ways to compute one shape as a group: how each is told, and what a worker calls with the inputs."""
        shape = dict(shape)
        key = tuple(shape.values())
        tasks = tuple(
            MpTunerTask(
                info=(key, *told),
                gen_data=self._make_inputs,
                gen_args=(shape, self.seed),
                func=func,
                args=(ALL_INPUTS,),
                kwargs=self.kwargs,
                ref_func=self._make_reference,
                ref_args=(ALL_INPUTS,),
                ref_kwargs={},
                ref=None,
                rtol=self.tolerance.rtol,
                atol=self.tolerance.atol,
                max_abs_delta=self.tolerance.max_abs_delta,
                output_keys=self.output_keys,
            )
            for told, func in ways
        )
        cost = expected_cost(work, len(tasks))
        return Group(tasks, tuple(range(len(tasks))), label=label, cost=cost, logbook=logbook)


def expected_cost(work: Work, candidates: int) -> float:
    """The work in a group relative to that in other groups."""
    return max(work.flops, work.bytes * FLOPS_PER_BYTE, 1.0) * candidates


class ShapeGroups(Sequence[Group]):
    """The groups of a run in the order in which lanes take them; each is made when a lane takes it and not kept.

    Those ``first`` are for workers that have not done anything yet. Shapes that an earlier run has begun come next, so
    that a run which is killed again and again finishes shapes. Then those without a row, those whose row is stale, and
    the others; among equals the costliest first, so that no long group is left for the end.
    ``numbers[i]`` is the position of group ``i``'s shape in the lists given; shapes without candidates have no group,
    unless they are among the ``contests``: there nothing is left but the finals, which are made in their turn.
    """

    def __init__(
        self,
        tasks: FamilyTasks,
        plans: Sequence[ShapePlan],
        candidates: Sequence[Sequence[Candidate]],
        logbook: Callable[[int], Logbook | None] = lambda number: None,
        begun: Collection[int] = (),
        contests: Mapping[int, Callable[[], Group]] | None = None,
        first: Collection[int] = (),
    ) -> None:
        self._logbook = logbook
        self._tasks = tasks
        self._plans = plans
        self._candidates = candidates
        self._contests = contests or {}
        with_work = [number for number, todo in enumerate(candidates) if todo or number in self._contests]
        self.numbers = sorted(
            with_work,
            key=lambda n: (
                n not in first,
                n not in begun,
                plans[n].row_state,
                -expected_cost(plans[n].work, len(candidates[n])),
            ),
        )

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Group: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Group]: ...

    def __getitem__(self, index: int | slice) -> Group | Sequence[Group]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = self.numbers[index]
        if number in self._contests:
            return self._contests[number]()
        return self._tasks.group(self._plans[number], self._candidates[number], self._logbook(number))
