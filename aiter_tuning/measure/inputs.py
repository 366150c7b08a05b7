"""What candidates are called with: made once, handed to each as it was made.

::

    gen_data(*gen_args, device=…) ──▶ Inputs: name → value, with pristine copies
                                         │ arguments(("a", "b", "c"), tile)     func(a, b, c, tile)
                                         ▼
                                      candidate after candidate, each on the same bits
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from aiter_tuning.measure.pristine import Pristine, can_be_copied
from aiter_tuning.task import ALL_INPUTS, MpTunerTask


class MissingInputError(LookupError):
    """A candidate names a value that its inputs do not hold."""


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in ``value``, which may be one or nest them in lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


def on_device(value: Any, device: torch.device) -> Any:
    """``value`` with its tensors on ``device``; those that are there already stay the same."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: on_device(item, device) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(on_device(item, device) for item in value)
    return value


def seed_generators(seed: int) -> None:
    """Seeds the generators of Python, torch and, where it is loaded, NumPy."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


class Inputs:
    """Named values, and what each was when it was made."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        """Args: the values by name; who gave them, for messages."""
        self.values = values
        self._source = source
        self._copies: dict[str, Pristine] = {}

    @classmethod
    def make(cls, task: MpTunerTask, given: Mapping[str, Any] | None, device: torch.device, seed: int) -> Inputs:
        """Inputs of ``task``: the ``given`` ones, else what its ``gen_data`` returns, on ``device``.

        Raises:
            TypeError: ``gen_data`` returned something else than a mapping.
            Exception: whatever ``gen_data`` raised.
        """
        if given:
            values: Any = given
            source = "the data given for this shape"
        elif task.gen_data is None:
            return cls({}, "")
        else:
            seed_generators(seed)
            values = task.gen_data(*task.gen_args, device=device)
            source = "gen_data"
            if not isinstance(values, Mapping):
                raise TypeError(
                    f"gen_data returned a {type(values).__name__}; expected a mapping of names to values, "
                    "as args[0] picks by name"
                )
        return cls(on_device(values, device) if device.type != "cpu" else values, source)

    def keep_copies(self, except_for: Iterable[str] = ()) -> None:
        """Copies every tensor but those named in ``except_for``, which all candidates overwrite anyway."""
        skipped = set(except_for)
        for name, value in self.values.items():
            if name not in skipped:
                copies = Pristine(tensor for tensor in tensors_in(value) if can_be_copied(tensor))
                if copies:
                    self._copies[name] = copies

    def copies(self, names: Iterable[str]) -> list[Pristine]:
        """The pristine copies of the values called ``names``, where there are tensors in them."""
        return [self._copies[name] for name in names if name in self._copies]

    def names(self, args: Sequence[Any]) -> Sequence[str]:
        """Which values ``args`` (as in a task with ``gen_data``) picks."""
        if not args:
            return ()
        picked: Sequence[str] = args[0]
        return tuple(self.values) if _is_all(picked) else picked

    def arguments(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Positional arguments of the call: the values named in ``args[0]``, then the rest of ``args``.

        Raises:
            MissingInputError: a name is not there.
        """
        if not args:
            return ()
        if _is_all(args[0]):
            # A copy, so that a candidate that stores something in it keeps that to itself.
            return (dict(self.values), *args[1:])
        values = self.values
        try:
            return (*[values[name] for name in args[0]], *args[1:])
        except KeyError as error:
            has = ", ".join(map(str, values)) or "nothing"
            verb = "returned" if self._source == "gen_data" else "have"
            if verb == "have":
                raise MissingInputError(f"{self._source} has no {error.args[0]!r}; it has {has}") from None
            raise MissingInputError(f"gen_data returned no {error.args[0]!r}; it returned {has}") from None

    def restore(self, names: Iterable[str], *, overwritten: Iterable[str] = (), thoroughly: bool = False) -> None:
        """Leaves the values called ``names`` as they were made.

        Args:
            names: what was used.
            overwritten: what was filled with poison; put back without looking.
            thoroughly: compare bits even where torch counted no write; after an exception nobody has looked yet.
        """
        for name in names:
            copies = self._copies.get(name)
            if copies is None:
                continue
            if name in overwritten:
                copies.put_back_all()
            else:
                copies.settle(thoroughly=thoroughly)


def _is_all(picked: object) -> bool:
    return isinstance(picked, str) and picked == ALL_INPUTS
