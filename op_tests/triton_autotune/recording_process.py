"""Records two keys of a real kernel in a process of its own, and ends as it is told: by exit, SIGTERM or SIGKILL."""

import os
import signal
import sys

from aiter_tuning.triton_autotune import install
from op_tests.triton_autotune import kernels

if __name__ == "__main__":
    prefix, end = sys.argv[1:]
    if end == "SIGTERM-handled":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(7))
    install({"record_path": prefix, "modules": [kernels.MODULE], "arch": "sm90"})
    tuner = kernels.autotuned()
    kernels.launch(tuner, 100)
    if end != "exit":
        from aiter_tuning.triton_autotune import interception

        interception._session.recorder._last_cost_s = 1e9  # so slow a disk that winners wait for the end
    kernels.launch(tuner, 200)
    if end.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, end.partition("-")[0]))
        signal.pause()
