"""NVIDIA's management library: what GPUs there are and how they are doing, without a context on any of them.

It answers in milliseconds where torch's import takes seconds, but it knows nothing of CUDA's own numbering: it counts
every GPU of the host in PCI order and sees no mask. :func:`visible_gpus` applies the mask as CUDA would, and gives up
(:class:`CannotTellError`) wherever CUDA's answer might differ; torch is asked then.

Needs ``nvidia-ml-py`` (the extra ``nvidia``); everything here takes the module as an argument, since it may be missing.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiter_tuning.devices.conditions import GpuProcess, Reading
from aiter_tuning.devices.identity import GpuFacts, Identity, normal_uuid, pci_address
from aiter_tuning.devices.peaks import peaks_of
from aiter_tuning.devices.visibility import Mask

_CORES_OF_SM = {6: 128, 7: 64, 8: 128, 9: 128, 10: 128, 11: 128, 12: 128}
"""FP32 lanes of an SM by major compute capability; exceptions in :func:`_cores_of_sm`."""

_THROTTLE = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x020: "software thermal",
    0x040: "hardware thermal",
    0x080: "power brake",
}
"""Reasons for which a GPU runs slower than asked; idling and clocks set on purpose are none."""


class CannotTellError(Exception):
    """NVML's answer may not be CUDA's."""


def nvml_module() -> Any | None:
    """``pynvml``, or None where it is not installed."""
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


@contextmanager
def nvml_session(nvml: Any) -> Iterator[None]:
    """NVML opened; it counts its openings, so sessions may overlap."""
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def visible_gpus(nvml: Any, mask: Mask, environ: Mapping[str, str]) -> list[tuple[GpuFacts, str]]:
    """What CUDA shows under the mask, in its order, each with the word of the mask that names it.

    Raises:
        CannotTellError: torch has to be asked.
    """
    try:
        with nvml_session(nvml):
            return _visible_gpus(nvml, mask, environ)
    except nvml.NVMLError as error:
        raise CannotTellError(f"NVML: {error}") from error


def driver_version(nvml: Any) -> str:
    """The driver's version, empty where NVML does not work."""
    try:
        with nvml_session(nvml):
            return str(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError:
        return ""


def _visible_gpus(nvml: Any, mask: Mask, environ: Mapping[str, str]) -> list[tuple[GpuFacts, str]]:
    if _under_mps(environ):
        raise CannotTellError("MPS may give a process fewer SMs than its GPU has")
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    models = {nvml.nvmlDeviceGetName(handle) for handle in handles}
    words = mask.words if mask.words is not None else tuple(map(str, range(len(handles))))
    if len(models) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and any(map(str.isdigit, words)):
        raise CannotTellError("GPUs of several models: CUDA counts the fastest first")
    uuids = [normal_uuid(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    found: list[tuple[GpuFacts, str]] = []
    for word in words:
        handle = _handle_of(nvml, word, handles, uuids)
        if handle is None:
            break  # CUDA ignores everything behind a word that names nothing
        found.append((_facts(nvml, handle), word))
    return found


def _under_mps(environ: Mapping[str, str]) -> bool:
    """Whether CUDA goes through NVIDIA's Multi-Process Service, whose limits may be set on either side of its pipe.

    torch then tells 4 multiprocessors of a T4 with 40 (NVIDIA/k8s-device-plugin#679).
    """
    pipes = environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    return "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in environ or os.path.exists(os.path.join(pipes, "control"))


def _handle_of(nvml: Any, word: str, handles: list[Any], uuids: list[str]) -> Any | None:
    if word.isdigit():
        matches = [index for index in range(len(handles)) if str(index) == word]
    elif word.upper().startswith("MIG-"):
        if "/" in word:  # MIG-GPU-<uuid>/<instance>/<instance>, of old drivers
            raise CannotTellError(f"{word} is an old name of a MIG instance")
        return nvml.nvmlDeviceGetHandleByUUID(word)
    else:
        matches = [index for index, uuid in enumerate(uuids) if uuid.startswith(normal_uuid(word))]
    if len(matches) != 1:
        return None
    handle = handles[matches[0]]
    if _in_mig_mode(nvml, handle):
        raise CannotTellError("a GPU in MIG mode: which of its instances CUDA shows is CUDA's choice")
    return handle


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:  # not supported: a GPU without MIG
        return False


def _facts(nvml: Any, handle: Any) -> GpuFacts:
    is_mig = bool(nvml.nvmlDeviceIsMigDeviceHandle(handle))
    whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_mig else handle
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(whole)
    if is_mig:
        units = int(nvml.nvmlDeviceGetAttributes(handle).multiprocessorCount)
    else:
        cores, size = int(nvml.nvmlDeviceGetNumGpuCores(whole)), _cores_of_sm(major, minor)
        if not size or cores % size:
            raise CannotTellError(
                f"{cores} cores of compute capability {major}.{minor}: how many to an SM is not known here"
            )
        units = cores // size
    model = " ".join(nvml.nvmlDeviceGetName(handle).split())
    identity = Identity(f"sm{major}{minor}", units, model)
    peaks = peaks_of(identity)
    pci = nvml.nvmlDeviceGetPciInfo(whole)
    return GpuFacts(
        uuid=normal_uuid(nvml.nvmlDeviceGetUUID(handle)),
        identity=identity,
        pci=pci_address(pci.domain, pci.bus, pci.device),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        l2_bytes=peaks.l2_bytes if peaks is not None else 0,
        parent_uuid=normal_uuid(nvml.nvmlDeviceGetUUID(whole)) if is_mig else "",
    )


def _cores_of_sm(major: int, minor: int) -> int:
    if (major, minor) in ((6, 0), (8, 0)):
        return 64
    return _CORES_OF_SM.get(major, 0)


class NvmlSensor:
    """Clocks, temperature, throttling and processes of NVIDIA GPUs. Raises whatever NVML raises."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()

    def read(self, uuid: str, pci: str) -> Reading:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        # Of a MIG instance only the processes are its own.
        whole = nvml.nvmlDeviceGetHandleByPciBusId(pci) if pci else handle
        bits = self._of(self._reasons, whole)
        return Reading(
            sm_mhz=self._of(nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_SM),
            memory_mhz=self._of(nvml.nvmlDeviceGetClockInfo, whole, nvml.NVML_CLOCK_MEM),
            temperature_c=self._of(nvml.nvmlDeviceGetTemperature, whole, nvml.NVML_TEMPERATURE_GPU),
            throttle=tuple(name for bit, name in _THROTTLE.items() if (bits or 0) & bit),
            processes=tuple(
                GpuProcess(int(process.pid), int(process.usedGpuMemory or 0))
                for process in self._of(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            ),
        )

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _reasons(self, handle: Any) -> int:
        nvml = self._nvml
        # Renamed in driver 535; the old name goes on working, the new one is missing before.
        ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        try:
            return int(ask(handle))
        except nvml.NVMLError:
            return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))

    def _of(self, ask: Any, *what: Any) -> Any | None:
        """One value, None where this GPU does not tell it."""
        try:
            return ask(*what)
        except self._nvml.NVMLError:
            return None
