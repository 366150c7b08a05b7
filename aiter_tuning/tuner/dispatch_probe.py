"""Does serving take a new row, and is what it runs right? Asked in a fresh process, before the row is published.

A row can be measured, fast, and useless: its key is not the one that the runtime builds, its kernel is not the one that
the operator launches, its config does not survive the CSV. So each promoted row is served once from the staged table,
by a process that has seen nothing of the tuning. ::

    probe(reference, staged, shapes, device)             dispatch_probe_child
        │ ── name of a file: what to prove, as JSON ───▶   binds the device, serves from the staged table
        │ ◀─ {"started": 0} ─────────────────────────────  inputs, reference, lookup, the public operator
        │ ◀─ {"done": 0, "chosen": …, "reason": …} ──────  compared with the reference
        └ a clock for each row; a row that kills or hangs the process is not verified, the next one gets a new process

No torch and no device here. Standard library only, beside the vocabulary.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aiter_tuning.devices.device import Device, load_kind
from aiter_tuning.pool.process import describe_exit

ROW_TIMEOUT_S = 120.0
"""For one row: its inputs, its reference, compiling its kernel and one call."""
START_TIMEOUT_S = 120.0
"""Until a process comes to its first row."""
_STARTS_WITHOUT_A_ROW = 2
"""So many processes in a row may fail before they come to one."""
_ASK_EVERY_S = 0.25
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = "import sys; sys.path[:0] = [sys.argv[1]]; from aiter_tuning.tuner.dispatch_probe_child import main; main()"
_LAST_OUTPUT_BYTES = 4000


@dataclass(frozen=True)
class ProbeResult:
    """What serving did with one shape."""

    shape: Mapping[str, Any]
    verified: bool
    """A row was found and launched, and its result agrees with the reference."""
    chosen: str | None
    """``kernelName`` of the row that a lookup found in the staged table; None: it found none, or was not asked."""
    reason: str = ""
    """Why it is not verified."""
    err_ratio: float | None = None
    """Fraction of wrong elements; None: nothing was compared."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """What was launched."""


def probe(
    family_reference: str,
    staged_table: str | os.PathLike[str],
    shapes: Sequence[Mapping[str, Any]],
    device: Device,
    *,
    seed: int = 0,
    err_ratio: float | None = None,
    row_timeout_s: float = ROW_TIMEOUT_S,
    stop: Callable[[], bool] = lambda: False,
    started: StartedProcess | None = None,
) -> list[ProbeResult]:
    """Serves each shape once from the staged table in a fresh process; one result for each, in order.

    Args:
        family_reference: see :mod:`~aiter_tuning.tuner.family_reference`.
        staged_table: a tuned CSV that nobody reads yet.
        shapes: typed fields of the family's key.
        device: where they were tuned.
        seed: of the inputs.
        err_ratio: largest accepted fraction of wrong elements; None: what the family tolerates.
        row_timeout_s: for one row.
        stop: asked a few times a second whether to give up; what is left is not verified then.
        started: a process that waits for a request already; used for the first rows, and closed.
    """
    request = {
        "reference": family_reference,
        "table": os.path.abspath(staged_table),
        "device": asdict(device),
        "seed": seed,
        "err_ratio": err_ratio,
        "path": sys.path,
    }
    results: dict[int, ProbeResult] = {}
    end, fruitless = "", 0
    while fruitless < _STARTS_WITHOUT_A_ROW:
        left = [number for number in range(len(shapes)) if number not in results]
        if not left:
            break
        asked = {**request, "shapes": [[number, dict(shapes[number])] for number in left]}
        process, started = started or StartedProcess(device), None
        with _Child(process, asked, row_timeout_s, stop) as child:
            for answer in child.answers():
                results[answer["done"]] = _result(shapes[answer["done"]], answer)
        end = child.end
        if child.gave_up:
            break
        if child.running is not None:
            results[child.running] = ProbeResult(shapes[child.running], False, None, end)
        fruitless = 0 if any(number in results for number in left) else fruitless + 1
    untried = f"not tried: {end}"
    return [results.get(number, ProbeResult(shape, False, None, untried)) for number, shape in enumerate(shapes)]


def _result(shape: Mapping[str, Any], answer: Mapping[str, Any]) -> ProbeResult:
    reason = answer["reason"]
    return ProbeResult(shape, not reason, answer["chosen"], reason, answer["err_ratio"], answer["config"])


class StartedProcess:
    """A process that waits for what it is to prove, and of a GPU's imports torch meanwhile; it has no device yet."""

    def __init__(self, device: Device) -> None:
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._request: Path | None = None
        self.pipe, theirs = os.pipe()
        ahead = "torch" if device.torch_device != "cpu" else ""  # on a CPU its cores have to be known before
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, _PACKAGE_ROOT, str(theirs), str(os.getpid()), ahead],
                stdin=subprocess.PIPE,
                stdout=self.output,
                stderr=self.output,
                env={**os.environ, **load_kind(device.kind).exec_environment(device)},
                pass_fds=(theirs,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self.pipe)
            self.output.close()
            raise
        finally:
            os.close(theirs)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Tells it what to prove; one that is dead is found out by its answers.

        By the name of a file: a pipe takes 64 KiB at once, and nobody may read it.
        """
        assert self.process.stdin is not None
        descriptor, name = tempfile.mkstemp(prefix="aiter_tuning_proof_", suffix=".json")
        self._request = Path(name)
        with os.fdopen(descriptor, "w") as file:
            json.dump(request, file)
        with contextlib.suppress(BrokenPipeError), self.process.stdin as stdin:
            stdin.write(os.fsencode(name))

    def close(self) -> None:
        """Ends it, whatever it does."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        os.close(self.pipe)
        self.output.close()
        if self._request is not None:
            self._request.unlink(missing_ok=True)


class _Child:
    """One process that serves rows, and how it ended."""

    def __init__(
        self,
        started: StartedProcess,
        request: Mapping[str, Any],
        row_timeout_s: float,
        stop: Callable[[], bool],
    ) -> None:
        self.running: int | None = None
        """The row that it was at when it ended; None: at none."""
        self.end = ""
        """How it ended, for a person."""
        self.gave_up = False
        self._row_timeout_s = row_timeout_s
        self._deadline = time.monotonic() + START_TIMEOUT_S
        self._stop = stop
        self._started = started
        self._process, self._pipe, self._output = started.process, started.pipe, started.output
        started.ask(request)

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._started.close()

    def answers(self) -> Iterator[dict[str, Any]]:
        """Its answers as they come, until it ends or a clock runs out; ``running`` and ``end`` say how."""
        for line in self._lines():
            message = json.loads(line)
            self._deadline = time.monotonic() + self._row_timeout_s
            self.running = message.get("started")
            if self.running is None:
                yield message
        if not self.end:
            returncode = self._process.wait()
            last = self._last_output()
            self.end = f"its process {describe_exit(returncode)}" + (f": {last}" if last else "")

    def _lines(self) -> Iterator[bytes]:
        """Whole lines from the pipe; sets ``end`` where it stops before the process does."""
        pending = b""
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                if self.running is None:
                    self.end = f"it took more than {START_TIMEOUT_S:g} s until its process came to a row"
                else:
                    self.end = f"it took more than {self._row_timeout_s:g} s to serve it"
                return
            if self._stop():
                self.end, self.gave_up = "the run was stopped", True
                return
            if not select.select([self._pipe], [], [], min(left, _ASK_EVERY_S))[0]:
                continue
            data = os.read(self._pipe, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            yield from lines

    def _last_output(self) -> str:
        """The last line that it printed."""
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - _LAST_OUTPUT_BYTES))
        lines = self._output.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
