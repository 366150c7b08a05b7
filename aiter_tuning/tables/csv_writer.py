"""Writing cells so that ``csv_reader`` reads the same ones.

Not by ``csv.writer``: on Python 3.11 it leaves a lone carriage return unquoted, which a reader takes for a line end,
and for the checkpoint it would cost more than the write itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPECIAL = re.compile(r'[",\r\n]')


def quoted(cell: str) -> str:
    """The cell as it stands in a line: in quotes where it holds a comma, a quote or a line end."""
    if _SPECIAL.search(cell) is None:
        return cell
    doubled = cell.replace('"', '""')
    return f'"{doubled}"'


def csv_line(cells: Iterable[str]) -> str:
    """One row with its line end."""
    return ",".join(map(quoted, cells)) + "\n"
