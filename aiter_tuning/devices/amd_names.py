"""What an AMD Instinct is called where libdrm's list of names is missing or too old.

HIP gets a GPU's name from libdrm, which looks it up in a file (``amdgpu.ids``) that many container images and virtual
environments lack: every GPU is an ``AMD Radeon Graphics`` there (ROCm/TheRock#4693, pytorch/pytorch#144203). The name
is part of a tuned row's key, so that a table from one image would serve nobody in the other. The kernel tells the
device's PCI id everywhere; names are those of the list.
"""

from __future__ import annotations

from pathlib import Path

PCI_DEVICES = Path("/sys/bus/pci/devices")

NAMELESS = frozenset({"", "AMD Radeon Graphics"})
"""What HIP says of a GPU that is not in the list. Some small Radeons are really called so."""

_INSTINCTS = {
    0x738C: "MI100",
    0x7408: "MI250X",
    0x740C: "MI250X / MI250",
    0x740F: "MI210",
    0x74A0: "MI300A",
    0x74A1: "MI300X",
    0x74A2: "MI308X",
    0x74A5: "MI325X",
    0x74A8: "MI308X HF",
    0x74A9: "MI300X HF",
    0x74B5: "MI300X VF",
    0x74B6: "MI308X",
    0x74BD: "MI300X HF",
    0x75A0: "MI350X",
    0x75A3: "MI355X",
    0x75B0: "MI350X VF",
    0x75B3: "MI355X VF",
}


def name_by_pci(pci: str) -> str:
    """The name of the Instinct at a PCI address; empty: it is none, or the kernel does not tell."""
    try:
        model = _INSTINCTS[int((PCI_DEVICES / pci / "device").read_text(), 16)]
    except (OSError, ValueError, KeyError):
        return ""
    return f"AMD Instinct {model}"
