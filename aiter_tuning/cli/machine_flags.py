"""The grammar of the commands about this machine: ``families``, ``doctor`` and ``poison``."""

from __future__ import annotations

from aiter_tuning.cli.subcommand import AS_JSON, DEVICE, Commands, add_command

_FAMILIES_EPILOG = """\
One line for each: name, kinds of device that it runs on, fields of a shape (those with a value may be left out). The
fields are the columns of the CSV of shapes that `aiter-tune tune FAMILY -i CSV` reads.
"""

_DOCTOR_EPILOG = """\
Looks at devices, versions, clocks, other processes, files and locks, starts a worker as a run would, and times a
kernel against itself for five seconds. Every finding is ok, a warning, or bad, and says what to do.

exit codes:
  0  tuning here would tell the truth
  1  tuning here would mislead, or fail
  2  bad usage
"""

_POISON_EPILOG = """\
A candidate that killed its worker or had to be killed is put on a list, and left alone by later runs on the same model
of device under the same versions. `aiter-tune tune --retry crash,timeout` runs such candidates all the same; one that
works is taken off the list. The list is poison.jsonl in $AITER_TUNING_HOME, else in $XDG_STATE_HOME/aiter_tuning, else
in ~/.local/state/aiter_tuning.

examples:
  aiter-tune poison                                  what is on the list
  aiter-tune poison clear --candidate bm128_bn256    give a candidate another chance
  aiter-tune poison clear --all

exit codes: 0 done, 2 bad usage, 5 the list cannot be read or written
"""


def add_families_command(commands: Commands) -> None:
    """Adds ``families``."""
    families = add_command(
        commands, "families", "list the families, which are the operators that can be tuned", _FAMILIES_EPILOG
    )
    families.add_argument("--json", action="store_true", help=AS_JSON)


def add_doctor_command(commands: Commands) -> None:
    """Adds ``doctor``."""
    doctor = add_command(
        commands,
        "doctor",
        "would tuning on this machine, now, tell the truth?",
        _DOCTOR_EPILOG,
        "Finds out what on this machine would make measurements misleading, or a run fail.",
    )
    doctor.add_argument("--device", metavar="DEVICE", help=f"{DEVICE} (default: all visible GPUs, else the CPU)")
    doctor.add_argument(
        "--directory", metavar="DIR", default=".", help="where tuned CSVs are to be written (default: here)"
    )
    doctor.add_argument("--json", action="store_true", help=AS_JSON)


def add_poison_command(commands: Commands) -> None:
    """Adds ``poison``."""
    poison = add_command(
        commands,
        "poison",
        "candidates that killed or hung a worker",
        _POISON_EPILOG,
        "Shows or clears the list of candidates that later runs leave alone.",
    )
    poison.add_argument("action", nargs="?", choices=("list", "clear"), default="list", help="default: list")
    poison.add_argument("--family", metavar="NAME", help="only this family's")
    poison.add_argument("--candidate", metavar="NAME", help="only the candidate of this name")
    poison.add_argument("--fingerprint", metavar="HEX", help="only the candidate whose fingerprint begins so")
    poison.add_argument("--model", metavar="NAME", help="only those of this model of device")
    poison.add_argument("--all", action="store_true", help="clear the whole list")
    poison.add_argument("--json", action="store_true", help=AS_JSON)
