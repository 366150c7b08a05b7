"""The grammar of ``report``."""

from __future__ import annotations

from aiter_tuning.cli.subcommand import Commands, add_command

_EPILOG = """\
Draws what was gained, how sure each decision is, the turns that decided it, all candidates, how near the rows come to
the device's limits, and where the time went: from the table, the evidence and the newest profile (or the checkpoint of
a run that is not over) that lie beside it. Needs no GPU, no family and no network; the page is one file of some 5 MB,
to be opened in a browser or sent to somebody. Of a table with rows for several devices it draws the one that has most.

examples:
  aiter-tune report tuned.csv                          writes tuned.report.html
  aiter-tune report tuned.csv -o monday.html --profile tuned.profile.20260131T010203Z-77.csv

exit codes: 0 written, 2 bad usage or input, 5 could not be written
"""


def add_report_command(commands: Commands) -> None:
    """Adds the command."""
    report = add_command(commands, "report", "draw what runs found, as a page for a browser", _EPILOG)
    report.add_argument("table", metavar="CSV", help="a tuned CSV")
    report.add_argument("-o", "--output", metavar="HTML", help="the page (default: STEM.report.html beside the table)")
    report.add_argument(
        "--profile", metavar="CSV", help="the candidates of this profile or checkpoint, not of the newest one"
    )
