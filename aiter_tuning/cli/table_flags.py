"""The grammar of the commands that look after tables: ``check``, ``merge``, ``diff`` and ``verify``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiter_tuning.tables.findings import Code

_FAMILY = "whose tables these are; without it their names tell (FAMILY_tuned.csv)"
_TABLES = "several are separated by spaces or colons; 'configs/model_configs/*' stands for the tables there"

_CHECK_EPILOG = """\
One line for each finding, file:line:column first. What is looked for: cells and rows that cannot be read, conflict
markers, keys that are there twice (in a file, or in two), rows that were never measured or name no arch, kernels that
the family does not offer, archs that it does not run on, rows measured under other versions or before the kernel
changed, shapes that another one serves, and shapes of the untuned sibling that have no row.

examples:
  aiter-tune check tuned_csv/gemm_cpu_tuned.csv
  aiter-tune check --family gemm_bf16 'configs/model_configs/*' --for gfx942/304
  aiter-tune check tuned.csv --family gemm_cpu --ignore stale,no_line_end --json
  aiter-tune check tuned.csv --family gemm_cpu --fix mended.csv

exit codes: 0 nothing found, 1 findings, 2 bad usage
"""

_MERGE_EPILOG = """\
Of several rows with one key the fastest counts where their evidence says that they were measured in one environment;
otherwise the newest verified row does, and the conflict is told. Without evidence the fastest counts, and that is told
as well. The inputs stay as they are; what the output file held takes part. Evidence of the rows goes with them.

examples:
  aiter-tune merge -o tuned.csv shard0.csv shard1.csv --family gemm_cpu
  aiter-tune merge -o gemm_bf16_tuned.csv 'configs/model_configs/*' --family gemm_bf16
  aiter-tune merge -o new.csv old.csv --family gemm_bf16 --gfx gfx942    old.csv names no arch
"""

_DIFF_EPILOG = """\
examples:
  aiter-tune diff before.csv after.csv --family gemm_cpu
  aiter-tune diff a.csv b.csv --family gemm_cpu --json

exit codes: 0 no difference, 1 differences, 2 bad usage or input
"""


_VERIFY_EPILOG = """\
Each row for this device is timed again, in turns with the family's default and, where the evidence names it, with what
it replaced. A row does not hold if its kernel is gone, its result is wrong, it fails, it is slower than either by more
than the noise, the kernel of its name has another config today (changed_config), or it was measured under other
versions of torch or triton (stale). Nothing is written.

examples:
  aiter-tune verify tuned_csv/gemm_cpu_tuned.csv
  aiter-tune verify tuned.csv --family gemm_bf16 --ignore stale --json

exit codes: 0 all rows hold, 1 some do not, 2 bad usage or input, 3 interrupted, 4 no usable device
"""


def add_table_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the four commands."""
    verify = _add(commands, "verify", "time the rows of a table again, and say which no longer hold", _VERIFY_EPILOG)
    verify.add_argument("table", metavar="CSV", help="the tuned table")
    verify.add_argument("--family", metavar="FAMILY", help=_FAMILY)
    verify.add_argument("--device", metavar="DEVICE", help="cpu, cuda, hip, or indices and UUIDs separated by commas")
    verify.add_argument("--mp", metavar="N", type=_whole, help="how many devices or lanes at a time (default: 0, all)")
    verify.add_argument("--rounds", metavar="N", type=_whole, help="timed turns of each, at least (default: 3)")
    verify.add_argument("--timer", metavar="NAME", help="which clock, see `aiter-tune tune --help` (default: auto)")
    verify.add_argument("--ignore", metavar="KIND,…", default="", help="of doubts, such as stale: left out")
    verify.add_argument("--json", action="store_true", help="as JSON")

    check = _add(commands, "check", "say what is wrong with tables", _CHECK_EPILOG)
    check.add_argument("tables", metavar="CSV", nargs="+", help=f"tuned tables and files of shapes; {_TABLES}")
    check.add_argument("--family", metavar="FAMILY", help=_FAMILY)
    check.add_argument(
        "--for", dest="target", metavar="GFX[/CU]", help="a device that each tuned table must have rows for"
    )
    check.add_argument("--ignore", metavar="CODE,…", type=_codes, default=(), help="kinds of findings to leave out")
    check.add_argument("--fix", metavar="OUT", help="write a new file with the rows that can be served")
    check.add_argument("--json", action="store_true", help="as JSON")

    merge = _add(commands, "merge", "make one tuned table of several", _MERGE_EPILOG)
    merge.add_argument("tables", metavar="CSV", nargs="+", help=f"tuned tables; {_TABLES}")
    merge.add_argument("-o", "--output", metavar="OUT", required=True, help="the file to write; may be one of them")
    merge.add_argument("--family", metavar="FAMILY", help=_FAMILY)
    merge.add_argument("--gfx", metavar="ARCH", help="the arch of rows that name none (older tables)")
    merge.add_argument("--sort", action="store_true", help="order the file by device and shape")
    merge.add_argument("--json", action="store_true", help="report as JSON")
    merge.add_argument("-v", "--verbose", action="store_true", help="tell every row that does not count")

    diff = _add(commands, "diff", "compare two tuned tables", _DIFF_EPILOG)
    diff.add_argument("before", metavar="A", help="a tuned table, or several separated by colons")
    diff.add_argument("after", metavar="B", help="what it became")
    diff.add_argument("--family", metavar="FAMILY", help=_FAMILY)
    diff.add_argument("--json", action="store_true", help="as JSON")
    diff.add_argument("-v", "--verbose", action="store_true", help="every difference")


def _add(commands: argparse._SubParsersAction[Any], name: str, about: str, epilog: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def _codes(text: str) -> tuple[Code, ...]:
    from aiter_tuning.tables.findings import Code

    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in tuple(Code)]
    if unknown or not words:
        found = ", ".join(unknown) or "nothing"
        raise argparse.ArgumentTypeError(f"{found!r} is no kind of finding; there are {', '.join(Code)}")
    return tuple(map(Code, words))


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)
