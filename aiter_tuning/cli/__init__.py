"""``aiter-tune``, and ``python -m aiter_tuning``: what a person types.

Commands import what they need when they run, so that ``--help`` and a mistyped flag are answered at once.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

EXIT_USAGE = 2
EXIT_INTERRUPTED = 3
EXIT_NO_DEVICE = 4
EXIT_WRITE_FAILED = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the process's exit code (see ``aiter-tune tune --help``)."""
    _have_standard_streams()
    _show_what_can_be_shown()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["autotune"]:  # stands alone, with a grammar of its own
        from aiter_tuning.triton_autotune.command_line import main as autotune

        return autotune(words[1:], prog="aiter-tune autotune")

    from aiter_tuning.cli.parser import parse

    args = parse(words)
    code = 0
    try:
        code = _run(args.command, args)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output (head, less) has gone; a second error at interpreter exit would hide that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _have_standard_streams() -> None:
    """Opens those that whoever started us closed; a file of ours would get such a descriptor, and what is printed."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def _show_what_can_be_shown() -> None:
    """A letter that the terminal or the log has no code for becomes a question mark, and ends no run of hours."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(command: str, args: object) -> int:
    import importlib

    from aiter_tuning.devices.device import NoDeviceError

    try:
        run = importlib.import_module(f"aiter_tuning.cli.{command}_command").run
        return int(run(args))
    except NoDeviceError as error:
        return _fail(command, EXIT_NO_DEVICE, error)
    except KeyboardInterrupt:
        if command == "repro":  # where a candidate hangs is what its traceback tells
            raise
        print(f"aiter-tune {command}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (ValueError, OSError) as error:
        code = _code_of(error)
        if code is None:
            raise
        return _fail(command, code, error)


def _code_of(error: Exception) -> int | None:
    """The exit code of an error that a person can mend; None for what is a mistake in this program."""
    from aiter_tuning.tables.csv_reader import CsvError
    from aiter_tuning.tuner.arguments import UsageError
    from aiter_tuning.tuner.family_reference import FamilyError

    if isinstance(error, CsvError | UsageError | FamilyError):
        return EXIT_USAGE
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return EXIT_WRITE_FAILED
    return None


def _fail(command: str, code: int, error: Exception) -> int:
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:  # a bare one reads "[Errno 21] Is a …: 'path'"
        text = f"{os.fsdecode(error.filename)}: {error.strerror[0].lower()}{error.strerror[1:]}"
    line = " ".join(text.split())
    print(f"aiter-tune {command}: error: {line}", file=sys.stderr)
    return code
