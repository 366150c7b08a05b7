"""The grammar of ``aiter-tune autotune …`` and ``python -m aiter_tuning.triton_autotune …``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

EPILOG = """\
exit codes:
  0  done, and nothing to mend
  1  something to mend: differences, misses, findings, or input that cannot be read
  2  bad usage
  5  the output could not be written

examples:
  {prog} merge run.rank*.json -o tables/sm90.json               the majority of the recordings
  {prog} merge run.rank*.json -o tables/sm90.json --by regret   the least time lost, near ties marked
  {prog} report run.rank*.json                                  where ranks disagree
  {prog} show tables/sm90.json --kernel 'fla.*'
  {prog} diff tables/sm90.json new/sm90.json                    or two recordings, or two choice logs
  {prog} validate tables/sm90.json --import my_kernels          does every entry name a live candidate?
  {prog} coverage tables/sm90.json --seen choices.json          which launches had no entry
"""


class _Parser(argparse.ArgumentParser):
    """Ends with one line and exit code 2 where argparse would print the whole usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def main(argv: Sequence[str] | None = None, prog: str = "python -m aiter_tuning.triton_autotune") -> int:
    """Runs one command; returns its exit code."""
    args = _parser(prog).parse_args(sys.argv[1:] if argv is None else argv)
    from aiter_tuning.triton_autotune import commands

    try:
        report = getattr(commands, args.command)(args)
    except (ImportError, ValueError) as error:
        return _fail(prog, args.command, error, 1)
    except OSError as error:
        return _fail(prog, args.command, error, 5 if _is_output(error, args) else 1)
    try:
        for line in [json.dumps(report.data, indent=1, sort_keys=True)] if args.json else report.lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0 if report.is_good else 1


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description="Tables and recordings of Triton's own autotuner.",
        epilog=EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, about: str) -> argparse.ArgumentParser:
        description = f"{about[0].upper()}{about[1:]}."
        command = commands.add_parser(name, help=about, description=description, allow_abbrev=False)
        command.add_argument("--json", action="store_true", help="print JSON, for programs")
        return command

    recordings = "what ranks have recorded: <record_path>.rank<N>.json"
    merge = add("merge", "make one table of recordings")
    merge.add_argument("record", nargs="+", metavar="RECORD", help=recordings)
    merge.add_argument("-o", "--output", required=True, metavar="PATH", help="the table, e.g. tables/sm90.json")
    merge.add_argument("--arch", help="which architecture, where the recordings cover several")
    merge.add_argument("--source", default="", metavar="TEXT", help="where the recordings come from, for the table")
    merge.add_argument(
        "--by", choices=("votes", "regret"), default="votes", help="majority, or least time lost (default: votes)"
    )
    merge.add_argument(
        "--any-key", "--any_key", action="store_true", help="with --by regret: a * entry, safest over all keys"
    )

    report = add("report", "what recordings hold, and where they disagree")
    report.add_argument("record", nargs="+", metavar="RECORD", help=recordings)

    show = add("show", "what a table holds")
    show.add_argument("table", metavar="TABLE", help="e.g. tables/sm90.json")
    show.add_argument("--kernel", default="*", metavar="GLOB", help="only these kernels (default: all)")

    diff = add("diff", "what differs between two tables, recordings or choice logs")
    diff.add_argument("left", metavar="A", help="a table, a recording or a choice log")
    diff.add_argument("right", metavar="B", help="one of the same kind")

    validate = add("validate", "what is wrong with tables")
    validate.add_argument("table", nargs="+", metavar="TABLE", help="e.g. tables/sm90.json")
    _add_import(validate, "compare with the kernels of this module")

    coverage = add("coverage", "which launches have entries")
    coverage.add_argument("table", metavar="TABLE", help="a table, or a directory of tables")
    coverage.add_argument("--seen", nargs="+", default=[], metavar="FILE", help="choice logs or recordings")
    coverage.add_argument("--arch", help="with --import and a directory: which table")
    _add_import(coverage, "look for the kernels of this module")
    return parser


def _add_import(command: argparse.ArgumentParser, about: str) -> None:
    command.add_argument(
        "--import", action="append", default=[], dest="modules", metavar="MODULE", help=f"{about}; may be repeated"
    )


def _is_output(error: OSError, args: argparse.Namespace) -> bool:
    output = getattr(args, "output", None)
    return output is not None and error.filename is not None and str(error.filename) not in args.record


def _fail(prog: str, command: str, error: Exception, code: int) -> int:
    from aiter_tuning.triton_autotune.commands import worded

    sys.stderr.write(f"{prog} {command}: error: {' '.join(worded(error).split())}\n")
    return code
