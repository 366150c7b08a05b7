#!/usr/bin/env python3
"""From a fresh clone to tuned shapes: sets the environment up, then tunes what this repository ships.

On a machine with a GPU that is gemm_bf16, elsewhere gemm_cpu.

    python3 tools/quickstart.py [--setup-only] [flags for aiter-tune tune]

Runs again at any time: it resumes where the last run stopped. Ends with the exit code of aiter-tune.
"""

from __future__ import annotations

import os
import shlex
import sys

from environment import ROOT, has_gpu, ready_python


def main(arguments: list[str]) -> None:
    if "-h" in arguments or "--help" in arguments:
        print(__doc__)
        return
    python = ready_python()
    if "--setup-only" in arguments:
        return
    os.chdir(ROOT)
    family = "gemm_bf16" if has_gpu() else "gemm_cpu"
    shown = [
        *("aiter-tune", "tune", family),
        *("-i", f"configs/{family}_untuned.csv"),
        *("-o", f"tuned_csv/{family}_tuned.csv"),
        *arguments,
    ]
    print(f"\n$ .venv/bin/{shlex.join(shown)}\n", flush=True)
    # In this program's place: signals and the exit code need no forwarding.
    os.execv(python.with_name("aiter-tune"), shown)


if __name__ == "__main__":
    main(sys.argv[1:])
