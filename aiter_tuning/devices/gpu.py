"""What CUDA and HIP lanes have in common once they are bound: torch drives both through ``torch.cuda``."""

from __future__ import annotations

import os

from aiter_tuning.devices.device import Device
from aiter_tuning.devices.identity import Identity, facts_of
from aiter_tuning.devices.visibility import mask_variable


class SurpriseError(RuntimeError):
    """The device that a worker got is not the one that its lane stands for."""


class TorchGpuKind:
    """One GPU, which the worker sees as ``cuda:0`` and as its only one."""

    kind = "cuda"

    def exec_environment(self, device: Device) -> dict[str, str]:
        return {mask_variable(self.kind): device.settings["mask"]}

    def prepare_process(self, device: Device) -> None:
        os.environ.update(self.exec_environment(device))

    def bind(self, device: Device) -> str:
        import torch

        os.environ.update(self.exec_environment(device))
        hip = torch.version.hip is not None
        if hip != (self.kind == "hip"):
            raise SurpriseError(f"torch {torch.__version__} drives {'hip' if hip else 'cuda'}, not {self.kind}")
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch leaves it without types
        count = torch.cuda.device_count()
        if count != 1:
            # The mask is read once, when the runtime starts: something that was imported has started it before.
            shown = f"{mask_variable(self.kind)}={device.settings['mask']}"
            raise SurpriseError(f"torch sees {count} GPUs under {shown}; was the runtime started by an import?")
        torch.zeros(1, device=device.torch_device)
        torch.cuda.synchronize()
        facts = facts_of(torch.cuda.get_device_properties(0), hip=hip, environ=os.environ)
        expected = Identity(device.gfx, device.cu_num, device.gpu_model)
        if facts.identity != expected:
            # Rows would be written under one name and looked up under the other.
            raise SurpriseError(f"torch calls this GPU {facts.identity}, discovery called it {expected}")
        return reported_uuid(facts.uuid, facts.pci, device)

    def probe(self) -> None:
        """A small product, written out: a library's would load the library, and a restart has no time for that."""
        import torch

        left = (torch.arange(24 * 32) % 7).reshape(24, 32, 1) - 3
        right = (torch.arange(32 * 16) % 5).reshape(1, 32, 16) - 2
        want = (left * right).sum(1)
        got = (left.float().to("cuda:0") * right.float().to("cuda:0")).sum(1)
        torch.cuda.synchronize()
        wrong = int((got.cpu() != want).sum())
        if wrong:
            raise RuntimeError(f"{wrong} of {want.numel()} elements of a 24x32 by 32x16 product are wrong")

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def empty_cache(self) -> None:
        import torch

        torch.cuda.empty_cache()


def reported_uuid(uuid: str, pci: str, device: Device) -> str:
    """The id that a bound worker reports: the lane's own if what torch says is the lane's device.

    torch may give a MIG instance the id of the GPU that it is a part of, and old torches give none; then the mask, and
    the PCI address where there is one, have to do.
    """
    settings = device.settings
    if uuid and _digits(uuid) in (_digits(device.uuid), _digits(settings.get("parent_uuid", ""))):
        return device.uuid
    if not uuid and pci == settings.get("pci", ""):
        return device.uuid
    return uuid or f"PCI {pci or 'unknown'}"


def _digits(uuid: str) -> str:
    """Without the prefix: to torch a MIG instance is a GPU."""
    return uuid.partition("-")[2]
