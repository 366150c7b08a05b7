"""``aiter-tune report``: a page of pictures about a tuned table and the runs behind it."""

from __future__ import annotations

import argparse
from pathlib import Path

from aiter_tuning.quantities import counted
from aiter_tuning.tables.atomic import atomic_write
from aiter_tuning.tuner.arguments import UsageError, check_readable, check_writable


def run(args: argparse.Namespace) -> int:
    """Writes the page and says where it is.

    Raises:
        UsageError: there is nothing to draw from, or nothing to draw with.
        CsvError: a file is broken.
        OSError: the page could not be written.
    """
    table = Path(args.table)
    check_readable(table, "a tuned CSV")
    record = None if args.profile is None else Path(args.profile)
    if record is not None:
        check_readable(record, "a profile or checkpoint", flag="--profile")
    out = table.with_name(f"{table.stem}.report.html") if args.output is None else Path(args.output)
    check_writable(out, "-o")
    try:
        from aiter_tuning.report.page.html_page import page_of
        from aiter_tuning.report.page.run_files import read_run_files
    except ModuleNotFoundError as error:
        if error.name != "plotly":
            raise
        raise UsageError("plotly draws the pictures and is not installed: pip install plotly") from None
    files = read_run_files(table, record)
    if not (files.rows or files.decisions or files.candidates):
        raise UsageError(f"{table}: neither it nor what lies beside it holds a row; there is nothing to draw")
    page = page_of(files)
    atomic_write(out, page.html)
    beside = "" if files.record is None else f", candidates from {files.record}"
    print(f"{out}: {counted(page.pictures, 'picture')} of {counted(len(files.rows), 'row')}{beside}")
    return 0
