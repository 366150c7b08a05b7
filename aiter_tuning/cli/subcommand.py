"""What the grammars of all commands have in common: how one is added, and flags that mean the same in each."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn, TypeAlias

FAMILY = "a name from `aiter-tune families`, or path/to/op.py:ClassName"
DEVICE = "cpu, cuda, hip, or indices and UUIDs of GPUs separated by commas"
LANES = "how many GPUs to use, or lanes to divide a CPU's cores into (default: all GPUs, one lane)"
AS_JSON = "print JSON, for programs"


class Parser(argparse.ArgumentParser):
    """Ends with one line and exit code 2 where argparse would print the whole usage first."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


Commands: TypeAlias = "argparse._SubParsersAction[Any]"
"""Where commands are added to."""


def add_command(commands: Commands, name: str, about: str, epilog: str = "", description: str = "") -> Parser:
    """Adds a command.

    Args:
        commands: what it is added to.
        name: what is typed.
        about: its line in the list of all commands.
        epilog: follows its flags: what it does, examples, exit codes.
        description: stands above its flags; ``about`` unless it says more.
    """
    command: Parser = commands.add_parser(
        name,
        help=about,
        description=description or f"{about[0].upper()}{about[1:]}.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return command
