"""The grammar of the command line: its commands, and a help that teaches.

Hyphens are accepted for underscores in every flag. A usage error is one line and exit code 2, found before anything is
read or started.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from aiter_tuning import __version__
from aiter_tuning.cli.machine_flags import add_doctor_command, add_families_command, add_poison_command
from aiter_tuning.cli.report_flags import add_report_command
from aiter_tuning.cli.serving_flags import add_serving_commands
from aiter_tuning.cli.subcommand import Commands, Parser
from aiter_tuning.cli.table_flags import add_table_commands
from aiter_tuning.cli.tune_flags import add_tune_command

_EPILOG = """\
words:
  family     an operator that can be tuned, such as gemm_bf16
  shape      one size of it, a row of a CSV file: M=64 N=4096 K=4096
  candidate  a kernel with a config that can compute it
  tuned CSV  the fastest correct candidate for each shape and device, a row each; what serving looks into

examples:
  aiter-tune families                                  what can be tuned
  aiter-tune doctor                                    can times taken here be believed?
  aiter-tune tune gemm_cpu -i shapes.csv -o tuned.csv  tune the shapes in a file
  aiter-tune lookup gemm_cpu M=1 N=768 K=768 --tuned tuned.csv   what serving finds in it
  aiter-tune tune --help                               every flag, with examples

exit codes: 0 all is well, 2 bad usage or input; the help of each command tells its others
"""


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


def _build() -> tuple[Parser, Commands]:
    parser = Parser(
        prog="aiter-tune",
        description="Finds the fastest correct kernel for each shape on the machine in front of it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"aiter-tune {__version__}")
    commands = parser.add_subparsers(
        dest="command", required=True, title="commands", metavar="COMMAND", parser_class=Parser
    )
    add_families_command(commands)
    add_doctor_command(commands)
    add_tune_command(commands)
    add_serving_commands(commands)
    add_table_commands(commands)
    add_report_command(commands)
    add_poison_command(commands)
    commands.add_parser("autotune", help="tables and recordings of Triton's own autotuner", add_help=False)
    return parser, commands
