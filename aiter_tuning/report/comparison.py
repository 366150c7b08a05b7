"""What a comparison came to: what serving runs before and after, for a person, and the shapes that failed as a CSV."""

from __future__ import annotations

import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from aiter_tuning.quantities import counted, us_digits
from aiter_tuning.report.table import PLAIN_WIDTH, print_hidden, print_table
from aiter_tuning.tables.csv_writer import csv_line
from aiter_tuning.tuner.before_after import Side
from aiter_tuning.tuner.outcome import RunSummary, ShapeOutcome

SHOWN = 40
_TITLES = ("shape", "before us", "after us", "speedup", "action", "verdict", "before", "after")
_NUMBERS = ("before us", "after us", "speedup")


def report_path(tune_file: Path, pid: int) -> Path:
    """Where a comparison's report goes: ``<tuned stem>.compare.<run>.txt``, beside the tuned CSV."""
    run = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{pid}"
    return tune_file.with_name(f"{tune_file.stem}.compare.{run}.txt")


def comparison_text(summary: RunSummary, *, gfx: str = "") -> str:
    """The whole report, as it goes to a file."""
    out = StringIO()
    print_comparison(summary, out, verbose=True, width=PLAIN_WIDTH, gfx=gfx)
    return out.getvalue()


def print_comparison(
    summary: RunSummary, stream: TextIO, *, verbose: bool = False, width: int | None = None, gfx: str = ""
) -> None:
    """The table of shapes, what is or would be written, why the others stay, and the shapes that failed."""
    shapes = summary.shapes
    if not shapes:
        return
    shown = shapes if verbose else shapes[:SHOWN]
    print(f"Tune performance comparison: {summary.family} on {summary.device}, as serving calls it", file=stream)
    print(
        f"before: the rows of {summary.tune_file}; after: the best challenger, written where the action says so",
        file=stream,
    )
    print_table(_TITLES, list(map(_cells, shown)), stream, numbers=_NUMBERS, whole=("action", "verdict"), width=width)
    print_hidden(len(shapes) - len(shown), "shape", stream)
    earlier = sum(shape.decided_earlier for shape in shapes)
    if earlier:
        print(f"{earlier} of these decided in an earlier part of this run, as the evidence tells", file=stream)
    written = sum(
        shape.published if summary.updates else shape.proposed and not shape.decided_earlier for shape in shapes
    )
    verb = ("was" if written == 1 else "were") if summary.updates else "would be"
    print(f"{counted(written, 'row')} {verb} written, {counted(len(shapes) - written, 'shape')} as before", file=stream)
    for shape in shown:
        if not shape.proposed or not _is_plain(shape):
            row = f"the row names {shape.winner}; " if shape.proposed else ""
            print(f"  {shape.label}: {row}{shape.reason}", file=stream)
    if summary.already_tuned:
        told = "decided in an earlier part of this run, without evidence of how"
        print(f"{counted(summary.already_tuned, 'shape')} {told}", file=stream)
    if summary.candidate_file:
        print(f"candidate table: {summary.candidate_file}", file=stream)
        print("re-run with --update_improved to apply", file=stream)
    failed = repro_csv(shapes, gfx=gfx)
    if failed:
        print(f"shapes that fail as served, to be run again with -i:\n{failed}", file=stream, end="")


def repro_csv(shapes: Sequence[ShapeOutcome], *, gfx: str = "") -> str:
    """The shapes that fail as served, or have no correct candidate, as a file of shapes; empty if there are none.

    ``cu_num`` is left out: a failure is looked into wherever the arch is.
    """
    failed = [shape.shape for shape in shapes if (shape.served is not None and shape.served.failures) or _failed(shape)]
    return shapes_csv(failed, gfx=gfx)


def shapes_csv(shapes: Sequence[Any], *, gfx: str = "") -> str:
    """Shapes as the text of a CSV file; empty for none."""
    if not shapes:
        return ""
    header = (*(("gfx",) if gfx else ()), *shapes[0])
    rows = [(*((gfx,) if gfx else ()), *map(str, shape.values())) for shape in shapes]
    return csv_line(header) + "".join(map(csv_line, rows))


def _is_plain(shape: ShapeOutcome) -> bool:
    """Whether the row names what was compared, and nothing went wrong with it: the table says all."""
    served = shape.served
    return (
        served is not None and not served.failures and served.after is not None and served.after.kernel == shape.winner
    )


def _failed(shape: ShapeOutcome) -> bool:
    return shape.verdict in ("failed", "not_served")


def _cells(shape: ShapeOutcome) -> tuple[str, ...]:
    before = shape.served.before if shape.served is not None else None
    after = shape.served.after if shape.served is not None else None
    speedup = f"{before.us / after.us:.3f}x" if before and after and before.us and after.us else ""
    action = "keep"
    if shape.proposed:
        action = "new" if shape.was_untuned else "update"
    sides = (before.kernel if before else "", after.kernel if after else "")
    return (shape.label, _us(before), _us(after), speedup, action, shape.verdict.replace("_", " "), *sides)


def _us(side: Side | None) -> str:
    if side is None:
        return ""
    if side.us is None:
        return str(side.measurement.status)
    return us_digits(side.us)
