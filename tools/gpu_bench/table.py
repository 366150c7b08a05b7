"""A plain table on stdout."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def show(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Numbers to the right, words to the left; floats with as many digits as tell something."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    words = [all(isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    for line in (columns, *texts):
        cells = zip(line, widths, words, strict=True)
        print("  ".join(cell.ljust(width) if is_word else cell.rjust(width) for cell, width, is_word in cells).rstrip())
    sys.stdout.flush()


def _text(cell: object) -> str:
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.4f}" if abs(cell) < 2 else f"{cell:.2f}"
