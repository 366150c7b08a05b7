"""The grammar of the commands that look after tables: ``check``, ``merge``, ``diff`` and ``verify``."""

from __future__ import annotations

from aiter_tuning.cli.flag_values import codes, count, doubts, fraction
from aiter_tuning.cli.subcommand import AS_JSON, DEVICE, LANES, Commands, add_command

_FAMILY = "the family of these tables; may be left out where their names tell it (FAMILY_tuned.csv)"
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

exit codes: 0 done, 2 bad usage or input, 5 the output could not be written
"""

_DIFF_EPILOG = """\
Tells which rows were added or removed, have another kernel, or another latency. A gain in percent is given only where
both latencies were measured in one environment, as far as their evidence tells.

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

exit codes: 0 all rows hold, 1 some do not, 2 bad usage or input, or no row for this device, 3 interrupted, 4 no usable
device
"""


def add_table_commands(commands: Commands) -> None:
    """Adds all four."""
    verify = add_command(
        commands, "verify", "time the rows of a table again, and say which no longer hold", _VERIFY_EPILOG
    )
    verify.add_argument("table", metavar="CSV", help="the tuned table")
    verify.add_argument("--family", metavar="FAMILY", help=_FAMILY)
    verify.add_argument("--device", metavar="DEVICE", help=f"{DEVICE} (default: all that the family runs on)")
    verify.add_argument("--mp", metavar="N", type=count(0), help=LANES)
    verify.add_argument("--rounds", metavar="N", type=count(1), help="timed turns of each, at least (default: 3)")
    verify.add_argument("--timer", metavar="NAME", help="which clock, see `aiter-tune tune --help` (default: auto)")
    verify.add_argument(
        "--errRatio",
        "--err_ratio",
        dest="errRatio",
        metavar="F",
        type=fraction,
        help="largest accepted fraction of wrong elements, as the rows were tuned with (default: the family's)",
    )
    verify.add_argument(
        "--ignore", metavar="KIND,…", type=doubts, default=(), help="kinds of doubts to leave out, such as stale"
    )
    verify.add_argument("--json", action="store_true", help=AS_JSON)

    check = add_command(commands, "check", "say what is wrong with tables", _CHECK_EPILOG)
    check.add_argument("tables", metavar="CSV", nargs="+", help=f"tuned tables and files of shapes; {_TABLES}")
    check.add_argument("--family", metavar="FAMILY", help=_FAMILY)
    check.add_argument(
        "--for",
        dest="target",
        metavar="GFX[/CU]",
        help="a device that each tuned table must have rows for, e.g. gfx942/304",
    )
    check.add_argument(
        "--ignore", metavar="KIND,…", type=codes, default=(), help="kinds of findings to leave out, such as duplicate"
    )
    check.add_argument("--fix", metavar="OUT", help="write the rows that can be served to a new file")
    check.add_argument("--json", action="store_true", help=AS_JSON)

    merge = add_command(commands, "merge", "make one tuned table of several", _MERGE_EPILOG)
    merge.add_argument("tables", metavar="CSV", nargs="+", help=f"tuned tables; {_TABLES}")
    merge.add_argument("-o", "--output", metavar="OUT", required=True, help="the file to write; may be one of them")
    merge.add_argument("--family", metavar="FAMILY", help=_FAMILY)
    merge.add_argument("--gfx", metavar="ARCH", help="the arch of rows that name none (older tables)")
    merge.add_argument("--sort", action="store_true", help="order the file by device and shape")
    merge.add_argument("--json", action="store_true", help=AS_JSON)
    merge.add_argument(
        "-v", "--verbose", action="store_true", help="tell of every row that does not count, not of conflicts only"
    )

    diff = add_command(commands, "diff", "compare two tuned tables", _DIFF_EPILOG)
    diff.add_argument("before", metavar="A", help="a tuned table, or several separated by colons")
    diff.add_argument("after", metavar="B", help="what it became")
    diff.add_argument("--family", metavar="FAMILY", help=_FAMILY)
    diff.add_argument("--json", action="store_true", help=AS_JSON)
    diff.add_argument("-v", "--verbose", action="store_true", help="show every difference, not the first 60 only")
