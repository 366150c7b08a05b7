"""Copies of what a candidate gets, to see whether it wrote there and to put things back.

::

    inputs ── clone ──▶ pristine        after the checked call: bits equal? ── no ──▶ the candidate writes its inputs
       ▲                   │                                                          (restored before each call)
       └──── restore ──────┘            at the end: neighbours find the inputs as they were made

Bits are compared, not values: a NaN that stays a NaN was not written. A kernel may write without torch knowing, so
torch's version counter can only say that something was written, never that nothing was.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

_CHUNK_BYTES = 256 << 20
"""Of a copy that lies on the host, compared at once: so much room there must be on the device."""
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def can_be_copied(tensor: torch.Tensor) -> bool:
    """Whether its memory can be copied and compared: neither sparse, nor quantised, nor without memory at all."""
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta


def _bits(tensor: torch.Tensor, *, wide: bool) -> torch.Tensor:
    """The same memory as integers; ``wide``: the widest there are, flattened, because they compare faster."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.view(-1).view(torch.int64) if wide else tensor.view(_SAME_SIZE[tensor.itemsize])


def _fits_wide(tensor: torch.Tensor) -> bool:
    size = tensor.itemsize
    return tensor.is_contiguous() and tensor.numel() * size % 8 == 0 and tensor.storage_offset() * size % 8 == 0


def _without_repeats(tensor: torch.Tensor) -> torch.Tensor:
    """One copy of what an expanded tensor repeats; torch refuses to write through the repeats."""
    for dim, (length, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and length > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy beside the tensor; on the host where a GPU has no room for it, so that memory goes to candidates first."""
    try:
        return tensor.clone(memory_format=torch.preserve_format)
    except torch.OutOfMemoryError:
        if tensor.device.type == "cpu":
            raise
        return tensor.to("cpu", memory_format=torch.preserve_format)


def _same(bits: torch.Tensor, pristine: torch.Tensor) -> bool:
    if bits.device == pristine.device:
        return torch.equal(bits, pristine)
    ours, theirs = bits.reshape(-1), pristine.reshape(-1)
    step = max(1, _CHUNK_BYTES // ours.itemsize)
    return all(
        torch.equal(ours[at : at + step], theirs[at : at + step].to(ours.device)) for at in range(0, ours.numel(), step)
    )


def _version(tensor: torch.Tensor) -> int:
    try:
        return tensor._version
    except RuntimeError:  # inference tensors have no counter
        return -1


class _Copy:
    """One tensor and how it was."""

    __slots__ = ("_alias", "_bits", "_memory", "_pristine", "_pristine_bits", "_tensor", "_version", "dirty")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        # Shares the memory but not the shape: brings back a tensor that was transposed or resized in place.
        self._alias = tensor.detach()
        self._memory = _without_repeats(self._alias)
        self._pristine = _clone(self._memory)
        wide = _fits_wide(self._memory) and _fits_wide(self._pristine)
        self._bits = _bits(self._memory, wide=wide)
        self._pristine_bits = _bits(self._pristine, wide=wide)
        self._version = _version(tensor)
        self.dirty = False

    def _moved(self) -> bool:
        tensor, alias = self._tensor, self._alias
        return tensor.data_ptr() != alias.data_ptr() or tensor.shape != alias.shape or tensor.stride() != alias.stride()

    def written_for_torch(self) -> bool:
        """Whether torch saw a write since the last look; costs nothing, misses kernels that write by address."""
        return _version(self._tensor) != self._version or self._moved()

    def look(self) -> bool:
        """Compares the bits; remembers and returns whether they differ."""
        self._version = _version(self._tensor)
        self.dirty = self.dirty or self._moved() or not _same(self._bits, self._pristine_bits)
        return self.dirty

    def restore(self) -> None:
        if self._moved():
            self._tensor.data = self._alias
        self._memory.copy_(self._pristine)
        self._version = _version(self._tensor)


class Pristine:
    """Copies of some tensors, taken now."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._copies = [_Copy(tensor) for tensor in tensors]

    def __len__(self) -> int:
        return len(self._copies)

    def find_written(self) -> bool:
        """Whether any tensor differs from its copy now; those that do are *dirty* from here on."""
        written = False
        for copy in self._copies:
            written = copy.look() or written
        return written

    def written_for_torch(self) -> bool:
        """Whether torch counted a write since the last look."""
        return any(copy.written_for_torch() for copy in self._copies)

    def dirty(self) -> Pristine:
        """The dirty tensors alone, still those that they are after everything was settled."""
        part = Pristine(())
        part._copies = [copy for copy in self._copies if copy.dirty]
        return part

    def restore(self) -> None:
        """Puts everything back without looking; what is dirty stays so, as what wrote it is about to run again."""
        with torch.no_grad():
            for copy in self._copies:
                copy.restore()

    def settle(self, *, thoroughly: bool = False) -> None:
        """Leaves every tensor as it was made; ``thoroughly``: compares bits even where torch counted no write."""
        with torch.no_grad():
            for copy in self._copies:
                if copy.dirty or ((thoroughly or copy.written_for_torch()) and copy.look()):
                    copy.restore()
                copy.dirty = False

    def put_back_all(self) -> None:
        """Restores everything without looking: what was filled with poison."""
        with torch.no_grad():
            for copy in self._copies:
                copy.restore()
                copy.dirty = False
