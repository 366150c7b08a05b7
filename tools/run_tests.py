#!/usr/bin/env python3
"""Runs the tests in the environment that it sets up first.

    python3 tools/run_tests.py [--all] [pytest's arguments]

Tests marked ``slow`` are left out unless ``--all`` or an ``-m`` of your own is given, tests marked ``gpu`` where there
is no GPU. Ends with the exit code of pytest.
"""

from __future__ import annotations

import os
import sys

from environment import ROOT, has_gpu, ready_python


def marks(everything: bool) -> str:
    left_out = ([] if everything else ["slow"]) + ([] if has_gpu() else ["gpu"])
    return " and ".join(f"not {mark}" for mark in left_out)


def main(arguments: list[str]) -> None:
    if "-h" in arguments or "--help" in arguments:
        print(__doc__)
        return
    python = ready_python()
    os.chdir(ROOT)
    everything = "--all" in arguments
    given = [argument for argument in arguments if argument != "--all"]
    chosen = marks(everything)
    if chosen and not any(argument.startswith("-m") for argument in given):
        given = ["-m", chosen, *given]
    os.execv(python, [str(python), "-m", "pytest", *given])


if __name__ == "__main__":
    main(sys.argv[1:])
