"""Looks at the machine: devices, packages, environment, host, files. Decides nothing, changes nothing."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from aiter_tuning.devices.conditions import Kinship, Reading, foreign_processes
from aiter_tuning.devices.cpu import available_memory_bytes
from aiter_tuning.devices.device import Device, NoDeviceError
from aiter_tuning.devices.discovery import device_notes, discover, kind_of
from aiter_tuning.devices.gpu_settings import CannotTellSettingsError, gpu_settings
from aiter_tuning.devices.host_load import governors, host_load, quota_cores
from aiter_tuning.devices.monitor import open_sensor
from aiter_tuning.devices.torch_facts import torch_build
from aiter_tuning.report.doctor.facts import Facts, GpuFindings, Place
from aiter_tuning.report.doctor.findings import (
    COMPILE_CACHE,
    OUTPUT,
    SHARED_MEMORY,
    STATE,
    TEMPORARY,
    compile_cache_path,
)
from aiter_tuning.report.doctor.host_findings import WATCHED
from aiter_tuning.report.doctor.lock_trial import try_locks
from aiter_tuning.report.doctor.trial import try_worker
from aiter_tuning.serving.versions import installed
from aiter_tuning.tuner.poison_list import state_directory

LOOK_S = 0.5
"""How long the host's cores are looked at."""
PACKAGES = ("aiter-tuning", "torch", "triton", "numpy", "nvidia-ml-py", "cupti-python", "amdsmi")


def gather(request: str | None = None, directory: Path = Path()) -> Facts:
    """All facts; takes about ten seconds, most of it the start of a worker.

    Args:
        request: ``--device`` as for a run.
        directory: where tuned CSVs would be written.

    Raises:
        ValueError: the request means nothing.
    """
    load = host_load(LOOK_S, name_processes=True)  # before anything of ours is at work
    problem = ""
    devices: tuple[Device, ...] = ()
    try:
        devices = discover(request)
    except NoDeviceError as error:
        problem = str(error)
    kind = kind_of(devices[0]) if devices else ""
    build = torch_build()
    if kind == "cpu" and request is None and build.kind != "cpu":
        problem = _why_no_gpu()
    gpus = tuple(look_at(device) for device in devices if kind in ("cuda", "hip"))
    trial = try_worker(devices[0]) if devices and build.version else None
    if gpus:
        gpus = (gpus[0]._replace(after=_reading(devices[0])[0]), *gpus[1:])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    locks = try_locks(directory) if os.access(directory, os.W_OK) else None
    return Facts(
        kind=kind,
        devices=devices,
        device_problem=problem,
        device_notes=device_notes(devices) if devices else (),
        torch_build=str(build),
        torch_kind=build.kind,
        packages={"python": sys.version.split()[0], **{name: installed(name) or "" for name in PACKAGES}},
        driver=devices[0].settings.get("driver", "") if devices else "",
        environ={name: os.environ[name] for name in WATCHED if name in os.environ},
        gpus=gpus,
        load=load,
        quota_cores=quota_cores(),
        governors=governors(),
        available_bytes=available_memory_bytes(),
        open_files=-1 if limit == resource.RLIM_INFINITY else limit,
        places=places(directory, os.environ),
        locks=locks,
        trial=trial,
    )


def look_at(device: Device) -> GpuFindings:
    """One GPU before anything of ours works on it."""
    reading, problem = _reading(device)
    try:
        settings = gpu_settings(kind_of(device), device.uuid, device.settings.get("pci", ""))
    except CannotTellSettingsError as error:
        settings, problem = None, problem or str(error)
    foreign = foreign_processes(reading.processes, (), Kinship().is_ours) if reading is not None else ()
    return GpuFindings(device, reading, None, settings, problem, tuple(_named(process.pid) for process in foreign))


def _reading(device: Device) -> tuple[Reading | None, str]:
    try:
        sensor = open_sensor(kind_of(device))
        try:
            return sensor.read(device.uuid, device.settings.get("pci", "")), ""
        finally:
            sensor.close()
    except Exception as error:  # whatever the vendor's library raises; see devices.monitor
        return None, " ".join(str(error).split()) or type(error).__name__


def _named(pid: int) -> str:
    if not pid:
        return "a process of another container"
    try:
        return f"{psutil.Process(pid).name()} ({pid})"
    except psutil.Error:
        return f"process {pid}"


def _why_no_gpu() -> str:
    try:
        discover(torch_build().kind)
    except NoDeviceError as error:
        return str(error)
    return ""


def places(directory: Path, environ: Mapping[str, str]) -> tuple[Place, ...]:
    """The directories that a run writes to."""
    try:
        state = str(state_directory(environ))
    except OSError as error:
        found = [Place(STATE, "", "", -1, str(error))]
    else:
        found = [place(STATE, state)]
    return (
        place(OUTPUT, str(directory.absolute()), make=False),
        place(COMPILE_CACHE, compile_cache_path(environ)),
        place(TEMPORARY, tempfile.gettempdir()),
        *([place(SHARED_MEMORY, "/dev/shm")] if os.path.isdir("/dev/shm") else ()),
        *found,
    )


def place(name: str, path: str, *, make: bool = True) -> Place:
    """A directory: whether a file can be made in it, or in the nearest directory above that is there.

    Args:
        name: what a run uses it for.
        path: the directory.
        make: whether a run would make it.
    """
    there = Path(path)
    while make and not there.exists() and there != there.parent:
        there = there.parent
    problem = ""
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x" * 4096)
            file.flush()
    except OSError as error:
        problem = error.strerror or str(error)
    try:
        free = psutil.disk_usage(str(there)).free
    except OSError:
        free = -1
    return Place(name, path, _file_system(there), free, problem)


def _file_system(path: Path) -> str:
    """The type of the mount that holds the path."""
    real = os.path.realpath(path)
    best = ("", "")
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.split()
        if len(words) < 3:
            continue
        mount = words[1].replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):  # of two at one place the later lies on top
            best = (mount, words[2])
    return best[1]
