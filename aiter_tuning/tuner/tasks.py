"""How a family's candidates become tasks that a worker can take.

::

    Family.inputs      ◀── MakeInputs(reference)      gen_data(shape, seed, device=…)
    Family.reference   ◀── MakeReference(reference)   ref_func(inputs)
    Family.run         ◀── RunCandidate(reference, config)
    Family.prepare     ◀── PreparedCandidate.prepare  only where the family defines it

What is pickled is the family's reference (a few words) and a config; the worker loads the family the first time and
keeps it. Nothing of the operator itself travels, so a task stays small and a broken import is the worker's finding.
Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiter_tuning.task import ALL_INPUTS, Group, MpTunerTask
from aiter_tuning.tuner.family import Candidate, Family, Inputs, Tolerance, Work
from aiter_tuning.tuner.family_reference import load_family

FLOPS_PER_BYTE = 10.0
"""What a byte costs beside a floating-point operation when groups are ordered by expected work."""


@dataclass(frozen=True, slots=True)
class MakeInputs:
    family: str

    def __call__(self, shape: Mapping[str, Any], seed: int, *, device: Any) -> Inputs:
        return load_family(self.family).inputs(shape, str(device), seed)


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

    def group(
        self,
        shape: Mapping[str, Any],
        key: tuple[Any, ...],
        label: str,
        candidates: Sequence[Candidate],
        work: Work,
    ) -> Group:
        """The candidates of one shape as a group, in the order given."""
        shape = dict(shape)
        tasks = tuple(
            MpTunerTask(
                info=(key, candidate.kernel_id, candidate.split_k, candidate.name),
                gen_data=self._make_inputs,
                gen_args=(shape, self.seed),
                func=self._run(self.reference, dict(candidate.config)),
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
            for candidate in candidates
        )
        one_call = max(work.flops, work.bytes * FLOPS_PER_BYTE, 1.0)
        return Group(tasks, tuple(range(len(tasks))), label=label, cost=one_call * len(tasks))
