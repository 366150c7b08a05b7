"""Is a result right? One number, the fraction of wrong elements, and a sentence for the person who asks why.

::

    reference ─┐   chunk by chunk, upcast:   |result - reference| <= atol + rtol * |reference|
    result    ─┴─▶ wrong / all = err_ratio ── few enough? ──▶ one element absurdly far off? ──▶ 1.0 after all

A few elements outside the tolerance are rounding; one that is off by half of the reference's peak is a bug that hides
among millions of right ones. Values are compared, not bits: 8-bit floats are upcast, types may differ. Tensors are
walked in chunks that stay in the cache: float copies of a whole 2 GB output would not fit where the output just did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from aiter_tuning.status import one_line

CPU_CHUNK = 1 << 18
"""Elements upcast at a time on a CPU: 1 MB as float32, so that they stay in its cache."""
DEVICE_CHUNK = 1 << 24
"""The same elsewhere, where each chunk costs a few launches and waits."""


class Tolerance(NamedTuple):
    """What counts as right."""

    rtol: float = 1e-2
    atol: float = 1e-2
    max_abs_delta: float | None = None
    """An element further off than this makes the whole result wrong; replaces the default rule for absurd ones."""
    err_ratio: float = 0.05
    """Largest accepted fraction of wrong elements."""
    equal_nan: bool = False
    row_wise: bool = False
    """Take the fraction of the worst row (last dimension) instead of that of all elements."""


class Comparison(NamedTuple):
    """How wrong a result is."""

    err_ratio: float
    """0.0: every element within the tolerance; 1.0: wrong altogether."""
    detail: str = ""
    """What is wrong and where; empty if nothing is."""

    def within(self, limit: float) -> bool:
        """Whether so few elements are wrong; never so for what is wrong altogether, such as nothing at all."""
        return self.err_ratio <= limit and self.err_ratio < 1.0


RIGHT = Comparison(0.0)


def compare(
    reference: Any, result: Any, tolerance: Tolerance, compare_fn: Callable[..., float] | None = None
) -> Comparison:
    """Compares a result, one tensor or several, with the reference; the worst output counts.

    Entries of the reference that are no tensors are skipped; outputs beyond the reference's are ignored. A reference
    without any tensor proves nothing, so nothing is right by it.

    Args:
        reference: a tensor, or a list, tuple or mapping of them; these may be nested.
        result: what the candidate returned, alike.
        tolerance: what counts as right.
        compare_fn: ``compare_fn(reference, result, msg=…, printLog=False)`` gives the error ratio of one output
            instead; its value is taken as it is, a non-finite one as 1.0.

    Raises:
        Exception: what ``compare_fn`` raised, except an ``AssertionError``, which is its way to say *wrong*.
    """
    worst, compared = _compare_all(reference, result, tolerance, compare_fn)
    if not compared:
        what = type(reference).__name__
        expected = "expected a tensor, or a list or dict of tensors"
        return Comparison(1.0, f"nothing to compare with: the reference is a {what} without a tensor in it; {expected}")
    return worst


def _compare_all(
    reference: Any,
    result: Any,
    tolerance: Tolerance,
    compare_fn: Callable[..., float] | None,
    prefix: str = "",
) -> tuple[Comparison, int]:
    """The worst output, and how many of the reference's tensors were looked at."""
    expected, found = paired(reference, result)
    worst, compared = RIGHT, 0
    for position, (name, right) in enumerate(expected):
        path = f"{prefix}{name}"
        missing = position >= len(found)
        if isinstance(right, list | tuple | Mapping):  # (out, (h, c)), as an LSTM returns them
            inner = [] if missing else found[position]
            comparison, tensors = _compare_all(right, inner, tolerance, compare_fn, f"{path}.")
            compared += tensors
            if comparison.err_ratio > worst.err_ratio:
                worst = comparison
            continue
        right_tensor = as_tensor(right)
        if right_tensor is None:
            continue
        compared += 1
        label = "" if len(expected) == 1 and not prefix else f"output {path}: "
        if missing:
            comparison = Comparison(1.0, f"{len(found)} outputs instead of {len(expected)}")
        else:
            candidate = as_tensor(found[position])
            if candidate is None:
                comparison = Comparison(1.0, f"a {type(found[position]).__name__} instead of a tensor")
            elif compare_fn is not None:
                comparison = _ask(compare_fn, right_tensor, candidate, path)
            else:
                comparison = compare_tensors(right_tensor, candidate, tolerance)
        if comparison.err_ratio > worst.err_ratio:
            worst = Comparison(comparison.err_ratio, label + comparison.detail)
    return worst, compared


def paired(reference: Any, result: Any) -> tuple[list[tuple[object, Any]], Sequence[Any]]:
    """The reference's entries with their names, and the result's in the same order."""
    if isinstance(reference, Mapping):
        if isinstance(result, Mapping):
            result = [result.get(name) for name in reference]
        expected: list[tuple[object, Any]] = list(reference.items())
    elif isinstance(reference, list | tuple):
        expected = list(enumerate(reference))
    else:
        expected = [(0, reference)]
    if isinstance(result, Mapping):
        result = list(result.values())
    return expected, result if isinstance(result, list | tuple) else [result]


def as_tensor(value: Any) -> torch.Tensor | None:
    """``value`` as a tensor, arrays included; None if it is neither."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        try:
            return torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):  # an array of objects or strings
            return None
    return None


def _ask(compare_fn: Callable[..., float], reference: torch.Tensor, result: torch.Tensor, name: object) -> Comparison:
    try:
        err = float(compare_fn(reference, result, msg=f"output {name}", printLog=False))
    except AssertionError as error:
        return Comparison(1.0, f"compare_fn: {one_line(str(error)) or 'AssertionError'}")
    if not math.isfinite(err):
        return Comparison(1.0, f"compare_fn returned {err}")
    return Comparison(err, f"compare_fn returned {err:.6g}")


def compare_tensors(reference: torch.Tensor, result: torch.Tensor, tolerance: Tolerance) -> Comparison:
    """Compares two tensors element by element.

    The error ratio is the fraction of elements outside ``atol + rtol * |reference|``; NaN is never right (unless
    ``equal_nan`` and both are). Another shape is 1.0. Where the fraction would be accepted, it becomes 1.0 if an
    element is further off than ``max_abs_delta``; without that limit, if any value is not finite or, for a floating
    reference, an element is further off than half of ``max(|reference|.max(), 1)``. Without a wrong element the default
    limits are not asked.
    """
    if reference.shape != result.shape:
        return Comparison(1.0, f"shape {list(result.shape)} instead of {list(reference.shape)}")
    if reference.numel() == 0:
        return RIGHT
    if reference.dtype == result.dtype and reference.device == result.device and _equal(reference, result):
        return RIGHT
    tally = _walk(reference, result, tolerance)
    fraction = tally.fraction(tolerance.row_wise)
    absurd = _absurd(reference, tally, tolerance) if fraction <= tolerance.err_ratio else ""
    if not tally.wrong and not absurd:
        return RIGHT
    detail = tally.describe(reference, result, tolerance.row_wise)
    if absurd:
        return Comparison(1.0, f"{detail}; counted as wrong altogether: {absurd}")
    return Comparison(fraction, detail)


def _equal(reference: torch.Tensor, result: torch.Tensor) -> bool:
    try:
        return torch.equal(reference, result)
    except (RuntimeError, NotImplementedError):  # packed and half-complex types have no equality
        return False


def _absurd(reference: torch.Tensor, tally: _Tally, tolerance: Tolerance) -> str:
    """Why a result with few wrong elements is wrong altogether; empty if it is not."""
    if tolerance.max_abs_delta is not None:
        if tally.largest > tolerance.max_abs_delta:
            return f"|Δ| {tally.largest:.6g} is beyond max_abs_delta {tolerance.max_abs_delta:g}"
        return ""
    if not tally.wrong:
        return ""
    if tally.non_finite:
        return "not all values are finite"
    limit = 0.5 * max(tally.peak, 1.0)
    if (reference.is_floating_point() or reference.is_complex()) and tally.largest > limit:
        return f"|Δ| {tally.largest:.6g} is beyond half of the reference's peak ({max(tally.peak, 1.0):.6g})"
    return ""


@dataclass
class _Tally:
    """What a walk over all chunks counted."""

    elements: int
    row_length: int
    wrong: int = 0
    wrong_in_worst_row: int = 0
    worst_row: int = 0
    largest: float = 0.0
    """The largest |Δ| of all elements; inf where one of both is not finite."""
    worst: float = -1.0
    """The largest |Δ| of the wrong elements."""
    worst_at: int = 0
    peak: float = 0.0
    non_finite: bool = False
    nans: int = 0
    """Wrong elements of the result that are NaN."""

    def fraction(self, row_wise: bool) -> float:
        return self.wrong_in_worst_row / self.row_length if row_wise else self.wrong / self.elements

    def describe(self, reference: torch.Tensor, result: torch.Tensor, row_wise: bool) -> str:
        if not self.wrong:
            return "every element is within rtol and atol"
        parts = [f"{_percent(self.wrong, self.elements)} of {self.elements} elements differ"]
        if row_wise:
            parts.append(
                f"{_percent(self.wrong_in_worst_row, self.row_length)} of row "
                f"{_position(self.worst_row, reference.shape[:-1])}"
            )
        if self.nans:
            parts.append(f"{self.nans} are NaN (computed, or never written)")
        index = _unravel(self.worst_at, reference.shape)
        where = f" at {list(index)}" if index else ""
        found, right = _show(result[index]), _show(reference[index])
        delta = f"{self.worst:.6g}" if math.isfinite(self.worst) else "not finite"
        parts.append(f"worst |Δ| {delta}{where}: {found} instead of {right}")
        return "; ".join(parts)


def _walk(reference: torch.Tensor, result: torch.Tensor, tolerance: Tolerance) -> _Tally:
    """Counts what is wrong, a chunk at a time."""
    row_length = reference.shape[-1] if reference.dim() else 1
    tally = _Tally(reference.numel(), row_length)
    chunk = CPU_CHUNK if reference.device.type == "cpu" else DEVICE_CHUNK
    # Only the row-wise count needs whole rows; a vector is a single one, of any length.
    step = max(1, chunk // row_length) * row_length if tolerance.row_wise else chunk
    flat_reference, flat_result = reference.reshape(-1), result.reshape(-1)
    working = _working_dtype(reference.dtype, result.dtype)
    exact = tolerance.rtol == 0 and tolerance.atol == 0 and _is_integer(reference) and _is_integer(result)
    for start in range(0, tally.elements, step):
        right_as_is, found_as_is = flat_reference[start : start + step], flat_result[start : start + step]
        if found_as_is.device != right_as_is.device:
            found_as_is = found_as_is.to(right_as_is.device)
        right, found = _upcast(right_as_is, working), _upcast(found_as_is, working)
        _count(tally, start, right, found, tolerance, right_as_is.eq(found_as_is) if exact else None)
    return tally


def _count(
    tally: _Tally,
    start: int,
    right: torch.Tensor,
    found: torch.Tensor,
    tolerance: Tolerance,
    exactly_equal: torch.Tensor | None,
) -> None:
    """Adds one chunk of upcast values to the tally."""
    delta = _sizes(found - right)
    limit = right.abs()
    tally.peak = max(tally.peak, float(limit.max()))
    # An infinite reference would allow anything; clamped, only equality lets it pass.
    limit = limit.mul_(tolerance.rtol).add_(tolerance.atol).clamp_(max=torch.finfo(limit.dtype).max)
    equal = found == right if exactly_equal is None else exactly_equal
    close = equal if exactly_equal is not None else (delta <= limit).logical_or_(equal)
    if tolerance.equal_nan:
        both_nan = found.isnan().logical_and_(right.isnan())
        close = close.logical_or(both_nan)
        delta.masked_fill_(both_nan, 0.0)
        equal = equal.logical_or(both_nan)
    wrong = close.numel() - int(close.count_nonzero())
    top = float(delta.max())
    if not math.isfinite(top):
        tally.non_finite = True
        delta.nan_to_num_(nan=math.inf, posinf=math.inf).masked_fill_(equal, 0.0)
        top = float(delta.max())
    tally.largest = max(tally.largest, top)
    if not wrong:
        return
    tally.wrong += wrong
    delta.masked_fill_(close, -1.0)
    at = int(delta.argmax())
    if float(delta[at]) > tally.worst:
        tally.worst, tally.worst_at = float(delta[at]), start + at
    if tally.non_finite:
        tally.nans += int(found.isnan().logical_and_(close.logical_not()).count_nonzero())
    if tolerance.row_wise:
        in_rows = close.logical_not().view(-1, tally.row_length).sum(dim=1)
        row = int(in_rows.argmax())
        if int(in_rows[row]) > tally.wrong_in_worst_row:
            tally.wrong_in_worst_row = int(in_rows[row])
            tally.worst_row = start // tally.row_length + row


def _sizes(values: torch.Tensor) -> torch.Tensor:
    """Absolute values, in place where the type stays the same: those of complex numbers are real."""
    return values.abs() if values.is_complex() else values.abs_()


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _working_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """Where both types' values are exact, or at least finer than any tolerance."""
    if any(dtype.is_complex for dtype in dtypes):
        return torch.complex128
    if any(dtype is torch.float64 or (not dtype.is_floating_point and dtype.itemsize > 2) for dtype in dtypes):
        return torch.float64
    return torch.float32


def _upcast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    try:
        return tensor.to(dtype)
    except (RuntimeError, NotImplementedError):  # packed types have no values to torch: their bytes decide
        return tensor.view(torch.uint8).to(dtype)


def _unravel(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    index: list[int] = []
    for length in reversed(shape):
        position, remainder = divmod(position, length)
        index.append(remainder)
    return tuple(reversed(index))


def _position(position: int, shape: Sequence[int]) -> str:
    return str(list(_unravel(position, shape)))


def _percent(part: int, whole: int) -> str:
    """``37.5 %``; never 0 % or 100 % of what is neither."""
    if part == whole:
        return "100 %"
    percent = 100.0 * part / whole
    return f"{percent:.4g} %" if percent < 99.995 else "nearly 100 %"


def _show(element: torch.Tensor) -> str:
    try:
        value: object = element.item()
    except (RuntimeError, NotImplementedError):
        value = element.view(torch.uint8).tolist()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
