#!/usr/bin/env python3
"""Runs the tests in the environment that it sets up first.

    python3 tools/run_tests.py [--all] [pytest's arguments]

Tests marked ``slow`` are left out unless ``--all`` or an ``-m`` of your own is given, tests marked ``gpu`` where there
is no GPU. Property tests draw the same examples every time, and new ones with ``--all``. Ends with the exit code of
pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys

from environment import ROOT, has_gpu, ready_python


def marks(everything: bool) -> str:
    left_out = ([] if everything else ["slow"]) + ([] if has_gpu() else ["gpu"])
    return " and ".join(f"not {mark}" for mark in left_out)


INTERPRETED = "op_tests/triton_autotune"
"""Runs real Triton kernels under its interpreter, which a process has to choose before it imports Triton; other tests
compile."""
NO_TESTS = 5
"""What pytest returns when a filter left nothing; of one part that is no failure."""


def parts(arguments: list[str]) -> list[list[str]]:
    """The runs of pytest: one for the paths that were named, else all tests in two processes."""
    if any((ROOT / argument.split("::")[0]).exists() for argument in arguments if not argument.startswith("-")):
        return [arguments]
    return [[*arguments, f"--ignore={INTERPRETED}"], [*arguments, INTERPRETED]]


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(__doc__)
        return 0
    python = ready_python()
    os.chdir(ROOT)
    everything = "--all" in arguments
    given = [argument for argument in arguments if argument != "--all"]
    chosen = marks(everything)
    if chosen and not any(argument.startswith("-m") for argument in given):
        given = ["-m", chosen, *given]
    if everything:
        given = ["--hypothesis-profile=searching", *given]
    codes = [subprocess.call([python, "-m", "pytest", *part]) for part in parts(given)]
    failures = [code for code in codes if code not in (0, NO_TESTS)]
    return failures[0] if failures else min(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
