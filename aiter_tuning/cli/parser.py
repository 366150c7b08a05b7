"""The grammar of the command line: flags, their defaults, and a help that teaches.

Flags keep upstream's spelling (``--untune_file``); hyphens are accepted for underscores everywhere. A usage error is
one line and exit code 2, found before anything is read or started.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from aiter_tuning.cli.serving_flags import add_serving_commands
from aiter_tuning.cli.table_flags import add_table_commands
from aiter_tuning.status import Status
from aiter_tuning.tuning_policy import (
    DEFAULT_FINALISTS,
    DEFAULT_MEASUREMENT,
    DEFAULT_PROMOTION,
    DEFAULT_RUN,
    SAMPLE_SEED,
)

EXIT_CODES = """\
exit codes:
  0  done, also when nothing deserved to replace what is there
  1  some shapes have no correct candidate, or none that serving can run
  2  bad usage or input; nothing was written
  3  interrupted or incomplete; the same command goes on where it stopped
  4  no usable device
  5  results could not be written
"""

_MAIN_EPILOG = (
    """\
examples:
  aiter-tune families                                  what can be tuned
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv  tune the shapes in a file
  aiter-tune tune --help                               every flag, with examples

"""
    + EXIT_CODES
)

_TUNE_EPILOG = (
    """\
A shape with a row that can serve is skipped. Every finished candidate is on disk before the next one starts:
after Ctrl-C, a crash or a reboot, the same command goes on where it stopped. Candidates that crash, hang, run out of
memory or compute the wrong result are recorded as such and cost nothing but themselves.

examples:
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv          shapes.csv needs the columns M,N,K
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv --dry_run   what would be done
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv --mp 2   on two lanes at a time
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv --all    tune again what has a row
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv --budget 600   what can be had in ten minutes
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv --all --min_improvement_pct 5   replace what is 5 % slower
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv --compare   what serving would gain; writes a candidate table
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv --compare --update_improved   and write what is better
  aiter-tune tune gemm_cpu --run_config tuned.csv              time and check what serving runs; tunes nothing
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv --retry crash,timeout
  aiter-tune tune my/op.py:MyOp -i shapes.csv -o tuned.csv     an operator of your own

"""
    + EXIT_CODES
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command and its flags; exits with code 2 and one line if they mean nothing."""
    parser, commands = _build()
    args, unknown = parser.parse_known_args([_underscored(word) for word in argv])
    assert isinstance(args, argparse.Namespace)
    if unknown:  # told by the command that does not know them, whose help lists those that it knows
        commands.choices[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def _underscored(word: str) -> str:
    """``--untune-file`` as ``--untune_file``; values are left alone."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _build() -> tuple[argparse.ArgumentParser, argparse._SubParsersAction[_Parser]]:
    parser = _Parser(
        prog="aiter-tune",
        description="Finds the fastest correct kernel for each shape on the machine in front of it.",
        epilog=_MAIN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    _add_tune(commands)
    families = commands.add_parser("families", help="list the families that can be tuned", allow_abbrev=False)
    families.add_argument("--json", action="store_true", help="as JSON")
    _add_poison(commands)
    _add_doctor(commands)
    add_serving_commands(commands)
    add_table_commands(commands)
    commands.add_parser("autotune", help="tables and recordings of Triton's own autotuner", add_help=False)
    return parser, commands


def _add_tune(commands: argparse._SubParsersAction[_Parser]) -> None:
    tune = commands.add_parser(
        "tune",
        help="tune the shapes in a file",
        description="Measures every candidate for every shape and writes the fastest correct one to the tuned CSV.",
        epilog=_TUNE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    tune.add_argument("family", metavar="FAMILY", help="a name from `aiter-tune families`, or path/to/op.py:ClassName")

    files = tune.add_argument_group("files")
    files.add_argument(
        "-i", "--untune_file", metavar="CSV", help="shapes to tune (default: configs/FAMILY_untuned.csv)"
    )
    files.add_argument(
        "-o",
        "--tune_file",
        metavar="CSV",
        help="tuned rows; of several, separated by colons, the first is written (default: tuned_csv/FAMILY_tuned.csv)",
    )
    files.add_argument("-o2", "--profile_file", metavar="CSV", help="append every candidate's result to this file")
    files.add_argument(
        "--checkpoint", metavar="CSV", help="where to keep the checkpoint (default: beside the tuned CSV)"
    )
    files.add_argument("--fresh", action="store_true", help="do not resume: set an existing checkpoint aside")
    files.add_argument("--dry_run", action="store_true", help="say what would be done; write nothing")

    choice = tune.add_argument_group("what is tuned")
    choice.add_argument(
        "--all", action="store_true", help="also shapes that have a row; it is replaced by faster ones only"
    )
    choice.add_argument(
        "--retry",
        metavar="STATUS,…",
        type=_statuses,
        help="measure candidates with these statuses again, e.g. crash,timeout",
    )
    choice.add_argument(
        "--errRatio",
        "--err_ratio",
        dest="errRatio",
        metavar="F",
        type=_fraction,
        help="largest accepted fraction of wrong elements, 0 to 1 "
        f"(default: the family's, mostly {DEFAULT_MEASUREMENT.err_ratio})",
    )

    choice.add_argument(
        "--run_config",
        metavar="CSV",
        nargs="?",
        const=True,
        help="tune nothing: time and check what serving runs, for the rows of this table, or without one for the "
        "shapes of -i; exit code 1 if something fails or is wrong",
    )
    choice.add_argument(
        "--candidate_sample",
        metavar="N",
        type=_count(0),
        help="try N candidates of each shape besides what runs today and the default, drawn with a fixed seed "
        f"({SAMPLE_SEED}): the same ones each time, and among those of a larger N",
    )

    measuring = tune.add_argument_group("measuring")
    measuring.add_argument(
        "--device", metavar="DEVICE", help="cpu, cuda, hip, or indices and UUIDs separated by commas"
    )
    measuring.add_argument(
        "--mp", metavar="N", type=_count(0), help="how many devices or lanes at a time (default: 0, all)"
    )
    measuring.add_argument(
        "--warmup",
        metavar="N",
        type=_count(0),
        help=f"untimed calls before timing (default: {DEFAULT_MEASUREMENT.warmup})",
    )
    measuring.add_argument(
        "--iters", metavar="N", type=_count(1), help=f"timed calls at most (default: {DEFAULT_MEASUREMENT.iters})"
    )
    measuring.add_argument(
        "--timeout",
        metavar="S",
        type=_seconds,
        help=f"seconds for all candidates of a shape (default: {DEFAULT_MEASUREMENT.timeout:g})",
    )
    measuring.add_argument(
        "--candidate_timeout", metavar="S", type=_seconds, help="seconds for one candidate (default: 60)"
    )
    measuring.add_argument(
        "--compile_timeout",
        metavar="S",
        type=_seconds,
        help="seconds for a candidate's first call (default: 300 for families that compile; else --candidate_timeout)",
    )
    measuring.add_argument(
        "--timer",
        metavar="NAME",
        help="which clock: auto, kernel, graph, event, profiler or wall (default: auto, the best that works there)",
    )
    measuring.add_argument(
        "--full_iters",
        action="store_true",
        help="time every candidate --iters times, also those that are sure already or hopelessly behind",
    )
    measuring.add_argument(
        "--budget", metavar="S", type=_seconds, help="seconds for the run; then the best so far is published"
    )
    measuring.add_argument("--shape_grouped", action="store_true", help="accepted; shapes are always grouped")

    deciding = tune.add_argument_group(
        "deciding",
        "The best of the screening are timed again, in turns with what runs "
        "today, until their differences are sure; see docs/choosing.md.",
    )
    deciding.add_argument(
        "--finalists",
        metavar="N",
        type=_count(0),
        help="how many of the screening are timed again, besides what runs today and the default; 0: nobody, decide by "
        f"single timings (default: {DEFAULT_FINALISTS.finalists})",
    )
    deciding.add_argument(
        "--rounds",
        metavar="N",
        type=_count(1),
        help=f"timed turns of each finalist, at least; there are more until it is sure (default: "
        f"{DEFAULT_FINALISTS.rounds})",
    )
    deciding.add_argument(
        "--min_improvement_pct",
        metavar="PCT",
        type=_percent,
        help="the bar: how much faster than what runs today a candidate must be to replace it "
        f"(default: {DEFAULT_PROMOTION.min_improvement_pct:g})",
    )
    deciding.add_argument(
        "--strategy",
        choices=("finals", "race"),
        help="finals: the fastest wins, in a near tie what runs today; race: whoever is surely more than --delta "
        "behind is eliminated, and the steadiest of the others wins (default: finals)",
    )
    deciding.add_argument(
        "--delta",
        metavar="PCT",
        type=_percent,
        help="of a race: candidates that differ by less are equals (default: the bar)",
    )

    deciding.add_argument(
        "--compare",
        action="store_true",
        help="tune all shapes, and time what serving calls under the table as it is and with the new row, in turns; "
        "the tuned CSV is not written, a candidate table beside it is",
    )
    deciding.add_argument(
        "--update_improved",
        action="store_true",
        help="with --compare: write the rows that clear the bar as served, that are right where today's are wrong, or "
        "that take the place of rows which cannot serve",
    )

    deciding.add_argument(
        "--probe",
        metavar="BOOL",
        type=_flag,
        help="let a fresh process serve each new row before it is written (default: for families that say what serving "
        "calls)",
    )

    output = tune.add_argument_group("output")
    output.add_argument(
        "--batch",
        metavar="N",
        type=_count(1),
        help=f"rewrite the tuned CSV at least every N shapes (default: {DEFAULT_RUN.batch})",
    )
    output.add_argument(
        "--sort",
        metavar="BOOL",
        nargs="?",
        const=True,
        type=_flag,
        help="keep the tuned CSV sorted by device and shape",
    )
    output.add_argument("--json", action="store_true", help="print the summary as JSON")
    output.add_argument(
        "-v", "--verbose", action="store_true", help="a line for each shape and failure, and what candidates print"
    )


_DOCTOR_EPILOG = """\
Looks at devices, versions, clocks, other processes, files and locks, starts a worker as a run would, and times a
kernel against itself for five seconds. Every finding is ok, a warning, or bad, and says what to do.

exit codes:
  0  tuning here would tell the truth
  1  tuning here would mislead, or fail
"""


def _add_doctor(commands: argparse._SubParsersAction[_Parser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="would tuning on this machine, now, tell the truth?",
        description="Finds out what on this machine would make measurements misleading, or a run fail.",
        epilog=_DOCTOR_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    doctor.add_argument("--device", metavar="DEVICE", help="cpu, cuda, hip, or indices and UUIDs separated by commas")
    doctor.add_argument(
        "--directory", metavar="DIR", default=".", help="where tuned CSVs are to be written (default: here)"
    )
    doctor.add_argument("--json", action="store_true", help="as JSON")


_POISON_EPILOG = """\
A candidate that killed its worker or had to be killed is put on a list in $AITER_TUNING_HOME (else
~/.local/state/aiter_tuning) and left alone by later runs on the same model of device, under the same versions.
`aiter-tune tune --retry crash,timeout` runs such candidates all the same; one that works is taken off the list.

examples:
  aiter-tune poison                                  what is on the list
  aiter-tune poison clear --candidate bm128_bn256    give a candidate another chance
  aiter-tune poison clear --all
"""


def _add_poison(commands: argparse._SubParsersAction[_Parser]) -> None:
    poison = commands.add_parser(
        "poison",
        help="candidates that killed or hung a worker",
        description="Shows or clears the candidates that later runs leave alone.",
        epilog=_POISON_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    poison.add_argument("action", nargs="?", choices=("list", "clear"), default="list", help="default: list")
    poison.add_argument("--family", metavar="NAME", help="only this family's")
    poison.add_argument("--candidate", metavar="NAME", help="only the candidate of this name")
    poison.add_argument("--fingerprint", metavar="HEX", help="only the candidate whose fingerprint begins so")
    poison.add_argument("--model", metavar="NAME", help="only those of this model of device")
    poison.add_argument("--all", action="store_true", help="to clear the whole list")
    poison.add_argument("--json", action="store_true", help="as JSON")


# What a value has to be. argparse puts the flag's name in front.


def _count(least: int) -> Callable[[str], int]:
    def parse_count(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return value

    return parse_count


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _seconds(text: str) -> float:
    value = _number(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _fraction(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction between 0 and 1")
    return value


def _percent(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage of 0 or more and under 100")
    return value


def _flag(text: str) -> bool:
    from aiter_tuning.keys import parse_flag

    value = parse_flag(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return value


_RETRIED = tuple(status for status in Status if status not in (Status.ok, Status.not_run))


def _statuses(text: str) -> tuple[Status, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in _RETRIED]
    if unknown or not words:
        found = f"{', '.join(unknown)!r}" if unknown else "nothing"
        raise argparse.ArgumentTypeError(f"{found} is no status to retry; there are {', '.join(_RETRIED)}")
    return tuple(map(Status, words))
