"""Ctrl-C and SIGTERM: the first one ends the run so that it can be resumed, the second one ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_on_signal(request_stop: Callable[[], None]) -> Iterator[None]:
    """Calls ``request_stop`` at the first signal; a second one has its default effect, which ends the process.

    Workers have a death signal of their own and go with it. Outside the main thread nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    stopping = False

    def stop(signum: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if stopping:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        stopping = True
        # Not by print: the handler may have come in the middle of one.
        os.write(2, f"\n{signal.Signals(signum).name}: stopping; once more ends at once\n".encode())
        request_stop()

    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
