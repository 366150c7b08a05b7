"""Which process has a context on which GPU, as the driver says, and which lane's worker is where."""

import os
import shutil
import subprocess
import sys
import time
from typing import Any, NamedTuple

import psutil

from aiter_tuning.devices.discovery import kind_of
from op_tests.lane_candidates import Meeting, met
from op_tests.lane_scenarios import hold
from op_tests.processes import wait_for


def contexts():
    """Processes by GPU: ``{uuid: [pid]}`` of every GPU that has any; None where nobody can be asked."""
    try:
        import pynvml
    except ImportError:
        return _by_nvidia_smi()
    pynvml.nvmlInit()
    try:
        found = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            found[uuid] = [int(one.pid) for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        return found
    finally:
        pynvml.nvmlShutdown()


def _by_nvidia_smi():
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True)
    if done.returncode:
        return None
    found: dict[str, list[int]] = {}
    for line in done.stdout.splitlines():
        uuid, _, pid = line.partition(",")
        found.setdefault(uuid.strip(), []).append(int(pid))
    return found


class WhereLanesAre(NamedTuple):
    """A pool whose lanes all have a worker at work, looked at from outside."""

    lanes: list[dict[str, Any]]
    """Of each: name, uuid and mask of the lane; worker, the uuid and the number of devices it found, its masks, and
    what its result says it was measured on."""
    contexts: dict[str, list[int]] | None
    """See :func:`contexts`, while the workers live."""
    family: list[int]
    """This process and all that it started: workers, standbys."""
    torch_here: bool
    """Whether torch was imported into this process."""
    foreign: dict[str, list[int]]
    """Processes that the pool's monitor takes for strangers, by GPU."""
    blind: str
    """Why the monitor sees nothing."""

    @classmethod
    def found_out(cls, pool, operator, good, folder):
        """Lets all lanes meet, and looks."""
        diary = hold(pool, [operator.group([Meeting(good, str(folder), len(pool.lanes))]) for _ in pool.lanes])
        results = [entry.measurement for entry in diary.entries.values()]
        assert [str(result.status) for result in results] == ["ok"] * len(results), [r.detail for r in results]
        by_pid = {one["pid"]: one for one in met(folder)}
        lanes = []
        for lane in pool.lanes:
            seen = by_pid[lane.worker.pid]
            told = [result.device for result in results if result.device == lane.device.uuid]
            lanes.append(
                {
                    "name": lane.name,
                    "lane": lane.device.uuid,
                    "mask": lane.device.settings.get("mask", ""),
                    "worker": lane.worker.pid,
                    "uuid": seen["uuid"],
                    "count": seen["count"],
                    "masks": seen["masks"],
                    "told": "".join(told),
                }
            )
        watched = [lane.device.uuid for lane in pool.lanes if kind_of(lane.device) in ("cuda", "hip")]
        now, monitor = time.monotonic(), pool.monitor
        wait_for(lambda: monitor.blind or all(monitor.record(uuid, now)["readings"] for uuid in watched))
        read = {uuid: monitor.conditions(uuid) for uuid in watched}
        return cls(
            lanes,
            contexts(),
            [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))],
            "torch" in sys.modules,
            {uuid: [process.pid for process in one.foreign] for uuid, one in read.items() if one is not None},
            monitor.blind,
        )
