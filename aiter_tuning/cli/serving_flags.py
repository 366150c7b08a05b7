"""The grammar of the commands that look at one shape: ``lookup`` and ``repro``."""

from __future__ import annotations

import os
from collections.abc import Mapping

from aiter_tuning.cli.flag_values import count
from aiter_tuning.cli.subcommand import AS_JSON, FAMILY, Commands, Parser, add_command
from aiter_tuning.keys import DEVICE_COLUMNS, KeyFieldError
from aiter_tuning.tuner.arguments import UsageError

_LOOKUP_EPILOG = f"""\
Prints the row that serving finds for a shape, where it is, and why; or the rows that come nearest, and what differs.
Fields of the key that have a default may be left out; {", ".join(DEVICE_COLUMNS)} ask for another device than this one.
Tables are looked for in AITER_TUNING_TUNED_FAMILY (paths separated by {os.pathsep}), else in
$XDG_DATA_HOME/aiter_tuning, ./tuned_csv and the package, in this order.

examples:
  aiter-tune lookup gemm_cpu M=1 N=768 K=768
  aiter-tune lookup gemm_bf16 M=64 N=4096 K=4096 bias=1 --tuned tuned.csv
  aiter-tune lookup gemm_bf16 M=64 N=4096 K=4096 gfx=sm90 cu_num=132 "gpu_model=NVIDIA H200"

exit codes: 0 there is a row, 1 there is none, 2 bad usage
"""

_REPRO_EPILOG = """\
Runs in this process and in the foreground: under a debugger, a profiler or compute-sanitizer what happens is what that
candidate does. An exception keeps its traceback.

examples:
  aiter-tune repro gemm_cpu M=1 N=768 K=768 --list
  aiter-tune repro gemm_cpu M=1 N=768 K=768 --candidate split_k4 --times 100
  compute-sanitizer aiter-tune repro gemm_bf16 M=64 N=4096 K=4096 --candidate split_k8_64x64x128_w4_s4 --times 0

exit codes: 0 right, 1 wrong or failed, 2 bad usage, 4 no such device
"""


def add_serving_commands(commands: Commands) -> None:
    """Adds both."""
    lookup = _add(
        commands, "lookup", "the tuned row that serving finds for a shape, or why there is none", _LOOKUP_EPILOG
    )
    lookup.add_argument("--tuned", metavar="CSV", help="look into this table, or several separated by colons")
    lookup.add_argument("--json", action="store_true", help=AS_JSON)

    repro = _add(commands, "repro", "run one candidate in the foreground, for a debugger or profiler", _REPRO_EPILOG)
    repro.add_argument("--candidate", metavar="NAME", help="which one, by its name, the kernelName of a tuned row")
    repro.add_argument("--list", action="store_true", help="name the shape's candidates and run none")
    repro.add_argument(
        "--times", metavar="N", type=count(0), default=10, help="timed calls; 0: only run it and compare (default: 10)"
    )
    repro.add_argument(
        "--device",
        metavar="DEVICE",
        help="cpu, cuda, hip, or an index or UUID of a GPU (default: the first that the family runs on)",
    )


def named_fields(words: list[str]) -> dict[str, str]:
    """``["M=64", "dtype=bf16"]`` as a mapping.

    Raises:
        UsageError: a word is no FIELD=VALUE, or a field is there twice.
    """
    fields: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip()
        if not (equals and name):
            raise UsageError(f"{word!r} is no field of a key; expected FIELD=VALUE, for instance M=64")
        if name in fields:
            raise UsageError(f"{name} is given twice")
        fields[name] = value.strip()
    return fields


def key_mistake(error: KeyFieldError, fields: Mapping[str, str]) -> UsageError:
    """What is wrong with the fields that were typed, as a usage error."""
    shown = " ".join(f"{name}={value}" for name, value in fields.items()) or "no field"
    return UsageError(f"{shown}: {error}")


def _add(commands: Commands, name: str, about: str, epilog: str) -> Parser:
    command = add_command(commands, name, about, epilog)
    command.add_argument("family", metavar="FAMILY", help=FAMILY)
    command.add_argument("fields", metavar="FIELD=VALUE", nargs="+", help="the fields of a shape, for instance M=64")
    return command
