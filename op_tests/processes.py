"""What tests ask about processes from outside."""

import os
import time
from pathlib import Path

import psutil

from aiter_tuning.pool.messages import TOKEN_VARIABLE


def descendants(tokens):
    """Processes that carry one of the workers' tokens, wherever they moved to."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TOKEN_VARIABLE) in tokens and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_for(condition, timeout_s=20.0):
    """Polls an outside fact (another process's file) until it holds; fails after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain"
        time.sleep(0.005)


def read_pid(file):
    """The process id that a candidate wrote."""
    wait_for(Path(file).exists)
    return int(Path(file).read_text())


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))
