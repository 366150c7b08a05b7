"""Tables as every report prints them: without lines, and without losing a digit where a terminal is narrow."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TextIO

from aiter_tuning.quantities import counted

PLAIN_WIDTH = 200
"""Columns of a table that goes to a file or a pipe."""


def print_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    stream: TextIO,
    *,
    numbers: Collection[str] = (),
    whole: Collection[str] = (),
    width: int | None = None,
) -> None:
    """Prints rows of texts under their titles; without colours where nobody watches.

    Args:
        titles: of the columns.
        rows: their cells.
        stream: where to print.
        numbers: titles of columns that are aligned to the right and never cut: a number that lost digits would be
            another number.
        whole: titles of others that are never cut. The rest is folded where a terminal is narrow.
        width: how wide at most, in characters; by default as wide as the terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, title in enumerate(titles):
        if title in numbers or title in whole:
            least = max(len(text) for text in (title, *(row[column] for row in rows)))
            table.add_column(title, justify="right" if title in numbers else "left", no_wrap=True, min_width=least)
        else:
            table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # what looks like rich's markup in a name is none
    console = Console(file=stream, width=width or (None if stream.isatty() else PLAIN_WIDTH), highlight=False)
    with console.capture() as text:  # written by us: rich ends the process with 1 where the reader has gone
        console.print(table, crop=False)
    stream.write(text.get())


def print_hidden(hidden: int, noun: str, stream: TextIO) -> None:
    """Says how many rows are not shown, if any: ``… and 3 more shapes (-v shows all)``."""
    if hidden > 0:
        print(f"… and {counted(hidden, f'more {noun}')} (-v shows all)", file=stream)
