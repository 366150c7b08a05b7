"""The grammar of ``aiter-tune tune``. Flags keep upstream's spelling (``--untune_file``)."""

from __future__ import annotations

import argparse

from aiter_tuning.cli.flag_values import count, flag, fraction, percent, seconds, statuses
from aiter_tuning.cli.subcommand import AS_JSON, DEVICE, FAMILY, LANES, Commands, add_command
from aiter_tuning.tuning_policy import (
    CANDIDATE_TIMEOUT_S,
    COMPILE_TIMEOUT_S,
    DEFAULT_FINALISTS,
    DEFAULT_MEASUREMENT,
    DEFAULT_PROMOTION,
    DEFAULT_RUN,
    SAMPLE_SEED,
)

_EPILOG = """\
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

exit codes:
  0  done, also when nothing deserved to replace what is there
  1  some shapes have no correct candidate, or none that serving can run
  2  bad usage or input; nothing was written
  3  interrupted or incomplete; the same command goes on where it stopped
  4  no usable device
  5  results could not be written
"""


def add_tune_command(commands: Commands) -> None:
    """Adds ``tune``."""
    tune = add_command(
        commands,
        "tune",
        "find the fastest correct candidate for each shape in a file",
        _EPILOG,
        "Measures every candidate for every shape and writes the fastest correct one to the tuned CSV.",
    )
    tune.add_argument("family", metavar="FAMILY", help=FAMILY)
    _add_files(tune.add_argument_group("files"))
    _add_choice(tune.add_argument_group("what is tuned"))
    _add_measuring(tune.add_argument_group("measuring"))
    deciding = "The fastest candidates are timed again, in turns with what serving runs today, until the differences"
    _add_deciding(tune.add_argument_group("deciding", f"{deciding}\nare sure; see docs/choosing.md."))
    _add_comparing(tune.add_argument_group("comparing what serving runs, before and after; see docs/comparing.md"))
    _add_output(tune.add_argument_group("output"))


def _add_files(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-i",
        "--untune_file",
        metavar="CSV",
        help="shapes to tune, a row each (default: configs/FAMILY_untuned.csv)",
    )
    group.add_argument(
        "-o",
        "--tune_file",
        metavar="CSV",
        help="the tuned CSV; of several, separated by colons, all are read and the first is written "
        "(default: tuned_csv/FAMILY_tuned.csv)",
    )
    group.add_argument("-o2", "--profile_file", metavar="CSV", help="append every candidate's result to this file")
    group.add_argument(
        "--checkpoint",
        metavar="CSV",
        help="where to keep what is measured until the run is complete (default: beside the tuned CSV)",
    )
    group.add_argument("--fresh", action="store_true", help="do not resume: set an existing checkpoint aside")
    group.add_argument("--dry_run", action="store_true", help="say what would be done; measure and write nothing")


def _add_choice(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--all", action="store_true", help="also shapes that have a row; it is replaced by faster ones only"
    )
    group.add_argument(
        "--retry",
        metavar="STATUS,…",
        type=statuses,
        help="measure candidates again that ended with these statuses, e.g. crash,timeout",
    )
    group.add_argument(
        "--errRatio",
        "--err_ratio",
        dest="errRatio",
        metavar="F",
        type=fraction,
        help="largest accepted fraction of wrong elements, 0 to 1 "
        f"(default: the family's, mostly {DEFAULT_MEASUREMENT.err_ratio})",
    )
    group.add_argument(
        "--candidate_sample",
        metavar="N",
        type=count(0),
        help="try N candidates of each shape besides what runs today and the default, drawn with a fixed seed "
        f"({SAMPLE_SEED}): the same ones each time, and among those of a larger N",
    )


def _add_measuring(group: argparse._ArgumentGroup) -> None:
    policy = DEFAULT_MEASUREMENT
    group.add_argument("--device", metavar="DEVICE", help=f"{DEVICE} (default: all that the family runs on)")
    group.add_argument("--mp", metavar="N", type=count(0), help=LANES)
    group.add_argument(
        "--warmup", metavar="N", type=count(0), help=f"untimed calls before timing (default: {policy.warmup})"
    )
    group.add_argument("--iters", metavar="N", type=count(1), help=f"timed calls at most (default: {policy.iters})")
    group.add_argument(
        "--full_iters",
        action="store_true",
        help="time every candidate --iters times, also those that are sure already or hopelessly behind",
    )
    group.add_argument(
        "--timer",
        metavar="NAME",
        help="which clock: auto, kernel, graph, event, profiler or wall; see docs/timing.md "
        "(default: auto, the best that works there)",
    )
    group.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        help=f"seconds for all candidates of a shape (default: {policy.timeout:g})",
    )
    group.add_argument(
        "--candidate_timeout",
        metavar="S",
        type=seconds,
        help=f"seconds for one candidate (default: {CANDIDATE_TIMEOUT_S:g})",
    )
    group.add_argument(
        "--compile_timeout",
        metavar="S",
        type=seconds,
        help=f"seconds for a candidate's first call (default: {COMPILE_TIMEOUT_S:g} for families that compile; else "
        "--candidate_timeout)",
    )
    group.add_argument(
        "--budget",
        metavar="S",
        type=seconds,
        help="seconds for the run; then the best so far is written, and a later run goes on",
    )
    group.add_argument("--shape_grouped", action="store_true", help="changes nothing: shapes are always grouped")


def _add_deciding(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--finalists",
        metavar="N",
        type=count(0),
        help="how many of the fastest are timed again, besides what runs today and the default; 0 or 1: nobody, decide "
        f"by single timings (default: {DEFAULT_FINALISTS.finalists})",
    )
    group.add_argument(
        "--rounds",
        metavar="N",
        type=count(1),
        help="timed turns of each finalist, at least; there are more until it is sure "
        f"(default: {DEFAULT_FINALISTS.rounds})",
    )
    group.add_argument(
        "--min_improvement_pct",
        metavar="PCT",
        type=percent,
        help="the bar: how much faster than what runs today a candidate must be to replace it "
        f"(default: {DEFAULT_PROMOTION.min_improvement_pct:g})",
    )
    group.add_argument(
        "--strategy",
        choices=("finals", "race"),
        help="finals: the fastest wins, in a near tie what runs today; race: whoever is surely more than --delta "
        "behind is eliminated, and the steadiest of the others wins (default: finals)",
    )
    group.add_argument(
        "--delta",
        metavar="PCT",
        type=percent,
        help="of a race: candidates that differ by less are equals (default: the bar)",
    )
    group.add_argument(
        "--confirm",
        metavar="BOOL",
        type=flag,
        help="promote only what is faster in a second process too (default: True)",
    )
    group.add_argument(
        "--probe",
        metavar="BOOL",
        type=flag,
        help="let a fresh process serve each new row before it is written "
        "(default: True where the family says what serving calls)",
    )


def _add_comparing(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--compare",
        action="store_true",
        help="tune all shapes, and time what serving calls under the table as it is and with the new row, in turns; "
        "the tuned CSV is not written, a candidate table beside it is",
    )
    group.add_argument(
        "--update_improved",
        action="store_true",
        help="with --compare: write the rows that clear the bar as served, that are right where today's are wrong, or "
        "that take the place of rows which cannot serve",
    )
    group.add_argument(
        "--run_config",
        metavar="CSV",
        nargs="?",
        const=True,
        help="tune nothing: time and check what serving runs, for the rows of this table, or without one for the "
        "shapes of -i; exit code 1 if something fails or is wrong",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--batch",
        metavar="N",
        type=count(1),
        help=f"rewrite the tuned CSV at least every N shapes (default: {DEFAULT_RUN.batch})",
    )
    group.add_argument(
        "--sort",
        metavar="BOOL",
        nargs="?",
        const=True,
        type=flag,
        help="keep the tuned CSV sorted by device and shape",
    )
    group.add_argument("--json", action="store_true", help=f"{AS_JSON}, instead of the summary")
    group.add_argument(
        "-v", "--verbose", action="store_true", help="a line for each shape and failure, and what candidates print"
    )
