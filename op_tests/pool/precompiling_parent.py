"""Starts a precompiler on a candidate that hangs, says so, and waits to be killed."""

import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

from aiter_tuning.pool.precompiler import Precompiler
from op_tests.pool.compile_candidates import group, hangs
from op_tests.pool.fake_devices import gpu

if __name__ == "__main__":
    work = [group((hangs, sys.argv[1]))]
    precompiler = Precompiler(
        work,
        [gpu(0)],
        ThreadPoolExecutor(1),
        tempfile.mkdtemp(dir=sys.argv[2]),
        cores=sorted(os.sched_getaffinity(0)),
        fewest=1,
    )
    print(precompiler.token, flush=True)
    threading.Event().wait()
