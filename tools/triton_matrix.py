#!/usr/bin/env python3
"""Runs the tests of Triton autotuning against several Tritons, each in a fresh environment.

    python3 tools/triton_matrix.py [--keep DIRECTORY] [VERSION …]     (default: 3.4 3.6 3.7 3.8, and what is installed)

A fresh environment has nothing but Triton in it, and sees everything else (torch, pytest) in the project's own, which
is not changed. Needs pip and a package index. Ends with 1 if a version fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from environment import ROOT, VENV, ready_python

VERSIONS = ("3.4", "3.6", "3.7", "3.8")
TESTS = ("op_tests/triton_autotune", "op_tests/measure/test_steady_keys.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="VERSION", default=VERSIONS)
    parser.add_argument("--keep", metavar="DIRECTORY", help="make the environments here and leave them")
    args = parser.parse_args()
    python = ready_python()
    if Path(sys.prefix) != VENV:
        os.execv(python, [str(python), __file__, *sys.argv[1:]])
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = {"installed": _test(sys.executable)}
        for version in args.versions:
            outcomes[version] = _test(_environment(Path(args.keep or scratch) / f"triton-{version}", version))
    for version, code in outcomes.items():
        print(f"triton {version}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
    return int(any(outcomes.values()))


def _environment(folder: Path, version: str) -> str:
    """An interpreter that has this Triton, and for the rest looks into the project's environment."""
    python = str(folder / "bin" / "python")
    if not Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, f"triton=={version}.*"], check=True)
        theirs = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        Path(theirs, "zz_project.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


def _test(python: str) -> int:
    named = "import triton; print('== triton', triton.__version__, flush=True)"
    subprocess.run([python, "-c", named], check=True)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *TESTS]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
