"""What a run came to: a table for a person, JSON for a program."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any, TextIO

from aiter_tuning.families import family_names
from aiter_tuning.quantities import counted, format_s, mean_gain_pct, us_digits
from aiter_tuning.report.progress import already_text, count_text
from aiter_tuning.report.table import print_hidden, print_table
from aiter_tuning.tuner.outcome import FailureCause, LaneTime, RunSummary, ShapeOutcome, Verdict
from aiter_tuning.tuner.reporter import RunOverview
from aiter_tuning.tuner.stale_rows import RowState

SHOWN_SHAPES = 40
SHOWN_CAUSES = 10

_SHAPE_COLUMNS = ("shape", "verdict", "kernel", "us", "default us", "gain %", "margin %", "candidates")
_CALLS_COLUMNS = ("calls", "saved ms")
_NUMBERS = (*_CALLS_COLUMNS, "us", "default us", "gain %", "margin %")

_TIME_COLUMNS = {
    "start": ("starting",),
    "compile": ("compiling",),
    "prepare": ("inputs", "reference"),
    "measure": ("measuring", "finals"),
    "idle": ("idle", "retired"),
}


def print_summary(summary: RunSummary, stream: TextIO, *, verbose: bool = False, width: int | None = None) -> None:
    """Shapes with their gain over the default, candidates by status, causes of failure, where the time went.

    Args:
        summary: the run.
        stream: where to print.
        verbose: every shape and cause, not just the most telling.
        width: columns of the table; by default those of the terminal.
    """
    if not summary.shapes and summary.shapes_to_tune:
        print(f"0 of {counted(summary.shapes_to_tune, 'shape')} concluded", file=stream)
        if summary.record_file:
            print(f"every candidate: {summary.record_file}", file=stream)
        if summary.has_rows and summary.record_file:
            print(f"pictures of it all: {shlex.join(('aiter-tune', 'report', summary.tune_file))}", file=stream)
    elif not summary.shapes:
        already = already_text(summary.already_tuned, summary.already_stale)
        have_row = f", {already}" if summary.already_tuned else ""
        print(f"0 shapes to tune{have_row}", file=stream)
    else:
        ranked = rank(summary.shapes)
        shown = ranked if verbose else _most_telling(ranked)
        _print_shapes(shown, stream, width)
        print_hidden(len(summary.shapes) - len(shown), "shape", stream)
        print(_totals(summary), file=stream)
        _print_causes(summary.causes, stream, SHOWN_CAUSES if not verbose else len(summary.causes))
        if not summary.compared:  # whose report says it
            _print_unserved(summary.shapes, stream, SHOWN_CAUSES if not verbose else len(summary.shapes))
        for lane in summary.lanes:
            print(_lane_text(lane), file=stream)
        rows = (
            f"tuned rows: {summary.tune_file}"
            if summary.has_rows
            else f"no tuned rows, {summary.tune_file} was not made"
        )
        print(f"{format_s(summary.elapsed_s)} in all; {rows}", file=stream)
        if summary.record_file:
            print(f"every candidate: {summary.record_file}", file=stream)
        if summary.has_rows and summary.record_file:
            print(f"pictures of it all: {shlex.join(('aiter-tune', 'report', summary.tune_file))}", file=stream)
        if how := _how_to_look_up(summary):
            print(f"how serving finds a row: {how}", file=stream)
    if summary.message:
        print(summary.message, file=stream)


def _how_to_look_up(summary: RunSummary) -> str:
    """The command that finds a row that this run wrote; empty if it wrote none, or no command knows the family."""
    written = next((shape for shape in summary.shapes if shape.published), None)
    family = summary.family if summary.family in family_names() else _from_here(summary.family_file)
    if written is None or not family:
        return ""
    words = ("aiter-tune", "lookup", family, *written.label.split(), "--tuned", summary.tune_file)
    return shlex.join(words)


def _from_here(path: str) -> str:
    """As a person would type it."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)


def rank(shapes: tuple[ShapeOutcome, ...]) -> tuple[ShapeOutcome, ...]:
    """Where it is known how often serving asks for each shape: by the time that serving saves, the most first."""
    if all(shape.calls is None for shape in shapes):
        return shapes
    return tuple(sorted(shapes, key=lambda shape: -_saved_ms(shape)))


def _saved_ms(shape: ShapeOutcome) -> float:
    return shape.saved_us * (shape.calls or 0) / 1e3


def _saved_text(shapes: tuple[ShapeOutcome, ...]) -> str:
    """What all of it is worth, weighted by calls; empty where nobody counted them."""
    asked_for = [shape for shape in shapes if shape.calls is not None]
    before_ms = sum((shape.incumbent_us or 0.0) * (shape.calls or 0) / 1e3 for shape in asked_for)
    if not asked_for or not before_ms:
        return ""
    saved_ms = sum(map(_saved_ms, asked_for))
    calls = sum(shape.calls or 0 for shape in asked_for)
    share = f"{saved_ms * 100 / before_ms:.1f} %"
    return f"\nover {calls:g} calls as counted: {saved_ms:.4g} of {before_ms:.4g} ms saved, {share}"


def _most_telling(shapes: tuple[ShapeOutcome, ...]) -> tuple[ShapeOutcome, ...]:
    """Those that need a person first, then as many others as fit, in their order."""
    if len(shapes) <= SHOWN_SHAPES:
        return shapes
    trouble = (Verdict.failed, Verdict.not_served, Verdict.incomplete)
    troubled = [i for i, shape in enumerate(shapes) if shape.verdict in trouble]
    others = [i for i in range(len(shapes)) if i not in set(troubled)]
    return tuple(shapes[i] for i in sorted((troubled + others)[:SHOWN_SHAPES]))


def _print_shapes(shapes: tuple[ShapeOutcome, ...], stream: TextIO, width: int | None) -> None:
    titles: tuple[str, ...] = _SHAPE_COLUMNS
    rows: list[tuple[str, ...]] = [
        (
            shape.label,
            shape.verdict.replace("_", " "),
            shape.winner or "",
            "" if shape.us is None else us_digits(shape.us),
            "" if shape.default_us is None else us_digits(shape.default_us),
            "" if shape.gain_pct is None else f"{shape.gain_pct:.1f}",
            _margin_text(shape),
            ", ".join(f"{count} {status}" for status, count in shape.counts.items()),
        )
        for shape in shapes
    ]
    if any(shape.calls is not None for shape in shapes):
        titles = (*titles, *_CALLS_COLUMNS)
        calls = [(f"{shape.calls or 0:g}", f"{_saved_ms(shape):.4g}") for shape in shapes]
        rows = [(*row, *cells) for row, cells in zip(rows, calls, strict=True)]
    print_table(titles, rows, stream, numbers=_NUMBERS, whole=("verdict",), width=width)


def _serves(shape: ShapeOutcome) -> bool:
    """Whether serving gets what the verdict names, or is to get it: of these it does not, unless a row was written."""
    return shape.published or shape.verdict not in (Verdict.not_served, Verdict.incomplete)


def _margin_text(shape: ShapeOutcome) -> str:
    """``5.2 of 3.0``: how far the challenger was ahead of what runs today, and how far it had to be."""
    if shape.margin_pct is None or shape.bar_pct is None:
        return ""
    return f"{round(shape.margin_pct, 1) + 0.0:.1f} of {shape.bar_pct:.1f}"  # + 0.0: a zero has no sign


def _totals(summary: RunSummary) -> str:
    verdicts = [shape.verdict for shape in summary.shapes]
    parts = [f"{verdicts.count(verdict)} {verdict.replace('_', ' ')}" for verdict in Verdict if verdict in verdicts]
    gains = [shape.gain_pct for shape in summary.shapes if shape.gain_pct is not None and _serves(shape)]
    shapes = counted(len(verdicts), "shape")
    if summary.shapes_to_tune > len(verdicts):
        shapes = f"{len(verdicts)} of {counted(summary.shapes_to_tune, 'shape')} concluded"
    text = f"{shapes}: {', '.join(parts)}"
    if gains:
        text += f"; {mean_gain_pct(gains):.1f} % less time than the default on average, {max(gains):.1f} % at best"
    counts = ", ".join(f"{count} {status}" for status, count in summary.counts.items())
    already = f"; {already_text(summary.already_tuned, summary.already_stale)}" if summary.already_tuned else ""
    return f"{text}{already}{_saved_text(summary.shapes)}\ncandidates: {counts}"


def _print_causes(causes: tuple[FailureCause, ...], stream: TextIO, most: int) -> None:
    if causes:
        print("first failure of each cause:", file=stream)
    for cause in causes[:most]:
        detail = cause.detail or "no detail"
        print(f"  {cause.count} × {cause.status}: {detail} ({cause.candidate}, {cause.shape})", file=stream)
    if len(causes) > most:
        print(f"  … and {counted(len(causes) - most, 'other cause')} (-v shows all)", file=stream)


def _print_unserved(shapes: tuple[ShapeOutcome, ...], stream: TextIO, most: int) -> None:
    unserved = [shape for shape in shapes if shape.verdict is Verdict.not_served]
    if unserved:
        print("not written, as serving cannot run them:", file=stream)
    for shape in unserved[:most]:
        print(f"  {shape.label}: {shape.reason}", file=stream)
    if len(unserved) > most:
        print(f"  … and {len(unserved) - most} more (-v shows all)", file=stream)


def _lane_text(lane: LaneTime) -> str:
    split = lane_split(lane.seconds)
    return f"{lane.name}: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in split.items() if seconds >= 0.05)


def lane_split(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a lane by what a person calls it: start, compile, prepare, measure, idle."""
    return {name: sum(seconds.get(state, 0.0) for state in states) for name, states in _TIME_COLUMNS.items()}


def print_overview(overview: RunOverview, stream: TextIO, *, verbose: bool = False) -> None:
    """What a run would do (``--dry_run``): its counts, and the first shapes or all of them."""
    print(count_text(overview), file=stream)
    if not overview.shapes:
        return
    shown = overview.shapes if verbose else overview.shapes[:SHOWN_SHAPES]
    titles = ["shape", "candidates", "incumbent"]
    rows = [[shape.label, str(len(shape.candidates)), shape.incumbent] for shape in shown]
    if any(shape.row is not RowState.none for shape in overview.shapes):
        titles.insert(2, "row")
        for shape, row in zip(shown, rows, strict=True):
            row.insert(2, shape.row.name)
    print_table(titles, rows, stream, numbers=("candidates",), whole=("row",))
    print_hidden(len(overview.shapes) - len(shown), "shape", stream)


def summary_json(summary: RunSummary) -> str:
    """The summary as one JSON object; latencies in microseconds, times in seconds."""
    return _json(
        {
            "family": summary.family,
            "device": summary.device,
            "exit_code": int(summary.exit_code),
            "message": summary.message,
            "elapsed_s": round(summary.elapsed_s, 3),
            "tune_file": summary.tune_file,
            "candidate_file": summary.candidate_file,
            "record_file": summary.record_file,
            "already_tuned": summary.already_tuned,
            "already_stale": summary.already_stale,
            "candidates": {str(status): count for status, count in summary.counts.items()},
            "shapes": list(map(_shape_json, summary.shapes)),
            "causes": [
                {
                    "status": str(cause.status),
                    "count": cause.count,
                    "detail": cause.detail,
                    "shape": cause.shape,
                    "candidate": cause.candidate,
                }
                for cause in summary.causes
            ],
            "lanes": {
                lane.name: {name: round(seconds, 3) for name, seconds in lane_split(lane.seconds).items()}
                for lane in summary.lanes
            },
        }
    )


def _shape_json(shape: ShapeOutcome) -> dict[str, Any]:
    return {
        "shape": dict(shape.shape),
        "verdict": str(shape.verdict),
        "reason": shape.reason,
        "kernel": shape.winner,
        "us": shape.us,
        "default": shape.default,
        "default_us": shape.default_us,
        "gain_pct": shape.gain_pct,
        "calls": shape.calls,
        "saved_us": shape.saved_us,
        "incumbent": shape.incumbent,
        "margin_pct": shape.margin_pct,
        "bar_pct": shape.bar_pct,
        "noise_pct": shape.noise_pct,
        "blocks": shape.blocks,
        "published": shape.published,
        "proposed": shape.proposed,
        "decided_earlier": shape.decided_earlier,
        "served": _served(shape),
        "resumed": shape.resumed,
        "candidates": {str(status): count for status, count in shape.counts.items()},
    }


def _served(shape: ShapeOutcome) -> dict[str, Any] | None:
    """What was compared as served: latencies and failures before and after."""
    if shape.served is None:
        return None
    sides = {"before": shape.served.before, "after": shape.served.after}
    told = {
        name: None if side is None else {"kernel": side.kernel, "us": side.us, "failure": side.failure}
        for name, side in sides.items()
    }
    return {**told, "blocks": shape.served.blocks}


def overview_json(overview: RunOverview) -> str:
    """What a run would do, as one JSON object."""
    return _json(
        {
            "family": overview.family,
            "device": overview.device,
            "lanes": overview.lanes,
            "already_tuned": overview.already_tuned,
            "already_stale": overview.already_stale,
            "stale": overview.stale,
            "candidates": overview.candidates,
            "shapes": [
                {
                    "shape": dict(shape.shape),
                    "candidates": list(shape.candidates),
                    "incumbent": shape.incumbent,
                    "row": shape.row.name,
                    "stale": shape.stale,
                }
                for shape in overview.shapes
            ],
        }
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False)
