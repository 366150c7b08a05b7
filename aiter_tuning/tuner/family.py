"""What there is to know about one operator: the only file that somebody who adds an operator writes.

A family says which fields identify a shape, how inputs and the right answer are made, which candidates are worth
trying, and how one of them is run. It says nothing about processes, files or flags. Its methods run in two places::

    parent (no torch, no device)           worker (device bound, torch imported)
    ────────────────────────────           ─────────────────────────────────────
    default(shape, device)                 inputs(shape, device, seed)
    candidates(shape, device)              reference(inputs)
    work(shape)                            prepare(inputs, config)
    bucket(shape)                          run(inputs, config)
    resolve(name, config, shape, device)   serve(inputs)

so a family's module imports torch inside the methods of the right-hand column. Lookups, wherever serving is, call
bucket and resolve. Standard library only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from aiter_tuning.devices.device import Device
    from aiter_tuning.keys import Key

Shape: TypeAlias = Mapping[str, Any]
"""A shape's fields by name, typed by the family's key: ``{"M": 64, "dtype": "bf16", …}``."""

Inputs: TypeAlias = Mapping[str, Any]
"""Named tensors and whatever else ``run`` needs."""

Config: TypeAlias = Mapping[str, Any]
"""What is launched: JSON values only, because it is written to the tuned CSV and read back by serving."""


@dataclass(frozen=True)
class Candidate:
    """One way to run the operator."""

    name: str
    """Stable, readable, unique within the family and shape; the ``kernelName`` of its tuned row."""
    config: Config = field(default_factory=dict)
    kernel_id: int = 0
    """The ``kernelId`` column, for tables that number their kernels."""
    split_k: int = 0
    """The ``splitK`` column."""


@dataclass(frozen=True)
class Tolerance:
    """When a result counts as right."""

    rtol: float = 1e-2
    atol: float = 1e-2
    err_ratio: float = 0.05
    """Largest accepted fraction of elements outside ``atol + rtol * |reference|``."""
    max_abs_delta: float | None = None
    """An element further off than this makes the whole result wrong."""


@dataclass(frozen=True)
class Work:
    """What one call has to do, for TFLOP/s, GB/s, the order of shapes and the plausibility check."""

    flops: float
    bytes: float
    """Read and written, each tensor once."""
    workspace_bytes: float = 0.0
    """Needed beside the inputs."""


class Family(ABC):
    """One operator. Instances hold no state: parent and workers each make their own, without arguments."""

    name: ClassVar[str]
    """What people type; that of the module for families of this package."""
    devices: ClassVar[Sequence[str]] = ("cuda", "hip")
    """Kinds of device that it runs on: ``cpu``, ``cuda``, ``hip``."""
    key: ClassVar[Key]
    """The fields of a shape; the tuner adds gfx, cu_num and gpu_model."""
    tolerance: ClassVar[Tolerance] = Tolerance()
    outputs: ClassVar[Sequence[str]] = ()
    """Which of the inputs are written; they are filled with NaN before each checked call."""
    precompiles: ClassVar[bool] = False
    """Whether ``run`` may be called on meta tensors, without a device, so that its Triton kernels are compiled before a
    lane needs them; see :mod:`aiter_tuning.measure.dry_run`. Where that fails a candidate compiles in its lane."""
    arg_defaults: ClassVar[Mapping[str, Any]] = {}
    """Flags whose default differs for this family, by their long name: ``{"sort": True}``."""

    @abstractmethod
    def inputs(self, shape: Shape, device: str, seed: int) -> Inputs:
        """Makes the inputs of a shape, the same for the same seed.

        Args:
            shape: the fields of the key.
            device: what torch calls the device in the worker, ``cpu`` or ``cuda:0``.
            seed: for a generator of the method's own.
        """

    @abstractmethod
    def reference(self, inputs: Inputs) -> Any:
        """The right result: a tensor or a sequence of tensors, compared with what ``run`` returns."""

    @abstractmethod
    def default(self, shape: Shape, device: Device) -> Candidate:
        """What serving uses unasked: the incumbent of a first tune."""

    @abstractmethod
    def candidates(self, shape: Shape, device: Device) -> Sequence[Candidate]:
        """The candidates worth trying, without those that the device cannot hold."""

    @abstractmethod
    def run(self, inputs: Inputs, config: Config) -> Any:
        """One call of the operator under a candidate's config; returns its result, or None if ``outputs`` hold it."""

    @abstractmethod
    def work(self, shape: Shape) -> Work:
        """Floating-point operations and bytes of one call."""

    def prepare(self, inputs: Inputs, config: Config) -> Inputs:
        """What serving does once, when it loads its weights, under this config; ``run`` gets what this returns.

        Untimed: a weight is packed or transposed here. The inputs that it is given are shared by all candidates:
        return a new mapping, change nothing.
        """
        return inputs

    def bucket(self, shape: Shape) -> Shape:
        """The shape whose row serves this one; tuner and lookup both ask. By default a shape serves itself."""
        return shape

    def resolve(self, name: str, config: Config, shape: Shape, device: Device) -> Config | None:
        """What serving launches for a tuned row that names ``name``; None if there is no such kernel (any more).

        By default one of the shape's candidates has to have that name. The row's own config is launched; a row that
        has none stands for the candidate's.
        """
        named = (c for c in (self.default(shape, device), *self.candidates(shape, device)) if c.name == name)
        candidate = next(named, None)
        return None if candidate is None else config or candidate.config

    def serve(self, inputs: Inputs) -> Any:
        """The public operator, which looks its config up itself: what a comparison before and after times."""
        raise NotImplementedError(f"{self.name} has no public operator to time")
