"""What common GPUs can do at best, to tell a fast kernel from a measurement that cannot be.

Dense peaks (no structured sparsity) at boost clock, from the vendors' data sheets:

- NVIDIA: the data sheets and architecture papers of V100, T4, A100, A30, A10, A40, L4, L40, L40S, H100, H200, GH200,
  H20, Blackwell (HGX B200/B300 and GB200/GB300), RTX A6000, RTX 6000 Ada, RTX PRO 6000 Blackwell, Ada and Blackwell
  GeForce. Sheets that give a figure "with sparsity" are halved.
- AMD: the data sheets of Instinct MI100, MI210, MI250, MI250X (one GCD is one device, so half of the card), MI300A,
  MI300X, MI325X, MI350X, MI355X; Radeon RX 7900 XTX, PRO W7900, RX 9070 XT, AI PRO R9700.

Where a part has variants the larger figure stands: these are bounds. On GeForce and Ada boards 16-bit and 8-bit
products may accumulate in 16 bits at twice the rate; that rate stands too. An unknown GPU has no peaks, and then
nothing is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

_MIB = 1 << 20


class Named(Protocol):
    """A device or an identity."""

    @property
    def gfx(self) -> str: ...
    @property
    def cu_num(self) -> int: ...
    @property
    def gpu_model(self) -> str: ...


class Peaks(NamedTuple):
    """Bounds of one device."""

    tflops: Mapping[str, float]
    """Tera-operations a second by dtype of the operands, on the fastest unit that takes them: fp32 may go as tf32."""
    bytes_per_s: float
    l2_bytes: int
    llc_bytes: int
    """The last cache before memory; the L2 but for AMD's Infinity Cache."""
    units: int
    """SMs or CUs of the whole part."""


def _peaks(
    units: int,
    gb_per_s: float,
    l2_mib: int,
    llc_mib: float = 0,
    *,
    fp16: float,
    bf16: float | None = None,
    fp8: float = 0.0,
    fp4: float = 0.0,
    int8: float = 0.0,
    fp32: float,
) -> Peaks:
    given = {"fp16": fp16, "bf16": fp16 if bf16 is None else bf16, "fp8": fp8, "fp4": fp4, "int8": int8, "fp32": fp32}
    tflops = {dtype: value for dtype, value in given.items() if value}
    return Peaks(tflops, gb_per_s * 1e9, l2_mib * _MIB, int(llc_mib or l2_mib) * _MIB, units)


_HOPPER = {"fp16": 989.5, "fp8": 1979.0, "int8": 1979.0, "fp32": 494.7}
_HOPPER_NVL = {"fp16": 835.5, "fp8": 1671.0, "int8": 1671.0, "fp32": 417.8}
_AMPERE = {"fp16": 312.0, "int8": 624.0, "fp32": 156.0}
_MI300X = {"fp16": 1307.4, "fp8": 2614.9, "int8": 2614.9, "fp32": 653.7}

_BY_MODEL: Mapping[str, Peaks] = {
    # NVIDIA data centre
    "V100": _peaks(80, 900, 6, fp16=125, bf16=0, fp32=15.7),
    "T4": _peaks(40, 320, 4, fp16=65, bf16=0, int8=130, fp32=8.1),
    "A100": _peaks(108, 2039, 40, **_AMPERE),
    "A100-SXM4-40GB": _peaks(108, 1555, 40, **_AMPERE),
    "A100-PCIE-40GB": _peaks(108, 1555, 40, **_AMPERE),
    "A800": _peaks(108, 2039, 40, **_AMPERE),
    "A30": _peaks(56, 933, 24, fp16=165, int8=330, fp32=82),
    "A10": _peaks(72, 600, 6, fp16=125, int8=250, fp32=62.5),
    "A10G": _peaks(80, 600, 6, fp16=140, int8=280, fp32=70),
    "A40": _peaks(84, 696, 6, fp16=149.7, int8=299.3, fp32=74.8),
    "L4": _peaks(58, 300, 48, fp16=121, fp8=242.5, int8=242.5, fp32=60.5),
    "L40": _peaks(142, 864, 96, fp16=362, fp8=724, int8=724, fp32=90.5),
    "L40S": _peaks(142, 864, 96, fp16=366, fp8=733, int8=733, fp32=183),
    "H100": _peaks(132, 3350, 50, **_HOPPER),
    "H100 PCIe": _peaks(114, 2039, 50, fp16=756.5, fp8=1513, int8=1513, fp32=378.3),
    "H100 NVL": _peaks(132, 3938, 60, **_HOPPER_NVL),
    "H800": _peaks(132, 3350, 50, **_HOPPER),
    "H200": _peaks(132, 4800, 60, **_HOPPER),
    "H200 NVL": _peaks(132, 4800, 60, **_HOPPER_NVL),
    "GH200": _peaks(132, 4900, 60, **_HOPPER),
    "H20": _peaks(78, 4000, 60, fp16=148, fp8=296, int8=296, fp32=74),
    "B200": _peaks(148, 8000, 126, fp16=2250, fp8=4500, fp4=9000, int8=4500, fp32=1125),
    "GB200": _peaks(152, 8000, 126, fp16=2500, fp8=5000, fp4=10000, int8=5000, fp32=1250),
    "B300": _peaks(148, 8000, 126, fp16=2250, fp8=4500, fp4=14000, fp32=1125),
    "GB300": _peaks(152, 8000, 126, fp16=2500, fp8=5000, fp4=15000, fp32=1250),
    # NVIDIA workstations and GeForce
    "RTX A6000": _peaks(84, 768, 6, fp16=154.8, int8=309.7, fp32=77.4),
    "RTX 6000 Ada": _peaks(142, 960, 96, fp16=364.2, fp8=728.5, int8=728.5, fp32=182.1),
    "RTX PRO 6000 Blackwell": _peaks(188, 1792, 128, fp16=1007, bf16=504, fp8=2015, fp4=2015, int8=1007, fp32=252),
    "RTX 3090": _peaks(82, 936, 6, fp16=142, bf16=71, int8=284, fp32=35.6),
    "RTX 4090": _peaks(128, 1008, 72, fp16=330.3, bf16=165.2, fp8=660.6, int8=660.6, fp32=82.6),
    "RTX 5090": _peaks(170, 1792, 96, fp16=419, bf16=209.5, fp8=838, fp4=1676, int8=838, fp32=104.8),
    # AMD
    "MI100": _peaks(120, 1229, 8, fp16=184.6, bf16=92.3, int8=184.6, fp32=46.1),
    "MI210": _peaks(104, 1638, 8, fp16=181, int8=181, fp32=45.3),
    "MI250": _peaks(110, 1638, 8, fp16=191.5, int8=191.5, fp32=47.9),
    "MI300A": _peaks(228, 5325, 4, 256, fp16=980.6, fp8=1961.2, int8=1961.2, fp32=490.3),
    "MI300X": _peaks(304, 5325, 4, 256, **_MI300X),
    "MI325X": _peaks(304, 6000, 4, 256, **_MI300X),
    "MI350X": _peaks(256, 8000, 4, 256, fp16=2306.9, fp8=4613.7, fp4=9227.5, int8=4613.7, fp32=144.2),
    "MI355X": _peaks(256, 8000, 4, 256, fp16=2516.6, fp8=5033.2, fp4=10066.3, int8=5033.2, fp32=157.3),
    "RX 7900 XTX": _peaks(96, 960, 6, 96, fp16=122.8, int8=122.8, fp32=61.4),
    "W7900": _peaks(96, 864, 6, 96, fp16=122.6, int8=122.6, fp32=61.3),
    "RX 9070 XT": _peaks(64, 645, 8, 64, fp16=194.6, fp8=389.3, int8=389.3, fp32=48.7),
    "R9700": _peaks(64, 645, 8, 64, fp16=191.4, fp8=382.7, int8=382.7, fp32=47.8),
}

_BY_ARCH: Mapping[str, str] = {"gfx908": "MI100", "gfx90a": "MI250", "gfx942": "MI325X", "gfx950": "MI355X"}
"""For GPUs that call themselves no more than "AMD Radeon Graphics": the largest part of the architecture."""


def peaks_of(device: Named) -> Peaks | None:
    """The bounds of a device; None for one that is not in the table.

    A part of a GPU (MIG, an AMD compute partition) gets its share of the arithmetic and the whole memory bandwidth.
    """
    name = _entry_of(device)
    if name is None:
        return None
    peaks = _BY_MODEL[name]
    share = min(1.0, device.cu_num / peaks.units) if device.cu_num else 1.0
    return peaks._replace(tflops={dtype: share * value for dtype, value in peaks.tflops.items()})


def last_level_cache_bytes(device: Named, l2_bytes: int = 0) -> int:
    """What a working set has to exceed to come from memory; 0: unknown.

    Args:
        device: whose cache.
        l2_bytes: as torch reports it; that is the last level but for AMD's Infinity Cache, which torch does not know.
    """
    is_amd = device.gfx.startswith("gfx")
    peaks = peaks_of(device)
    if peaks is None:
        return 0 if is_amd else l2_bytes  # a Radeon's L2 of 4 MiB may have 128 MiB behind it
    return max(l2_bytes, peaks.llc_bytes) if is_amd or not l2_bytes else l2_bytes


def _entry_of(device: Named) -> str | None:
    words = _words(device.gpu_model)
    # The entry with the most words that all appear, in order and whole: "A10" is no part of "A100".
    found = [name for name in _BY_MODEL if _contains(words, _words(name))]
    if found:
        return max(found, key=lambda name: len(_words(name)))
    return _BY_ARCH.get(device.gfx)


def _words(text: str) -> list[str]:
    words = text.lower().replace("-", " ").replace("/", " ").split()
    return ["mi250" if word == "mi250x" else word for word in words]


def _contains(words: list[str], part: list[str]) -> bool:
    return any(words[start : start + len(part)] == part for start in range(len(words) - len(part) + 1))
