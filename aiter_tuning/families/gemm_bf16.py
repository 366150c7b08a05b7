"""A linear layer in bf16 or fp16 on a GPU: C = A · Wᵀ + b, accumulated in fp32.

The library's own (``F.linear``: cuBLASLt, hipBLASLt) is what runs unasked. It wins most large products and loses where
its choice of tile, or of not splitting K, does not fit the shape: at the few rows of a decoding step above all. ::

    a (M, K)   weight (N, K)   bias (N) or None ──run──▶ c (M, N)
                                                  │ linear: the library
                                                  └ ops/kernels/gemm_bf16.py: Triton, five ways, tile by tile

Tiles come from a table by rows and vendor. Left out is what the device cannot hold (:func:`fits`, estimated low: what
is wrongly kept compiles and is refused cheaply) and what cannot win (:func:`is_worth_trying`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from aiter_tuning.keys import Key
from aiter_tuning.measure.compile_target import limits_of, target_of
from aiter_tuning.tuner.family import Candidate, Config, Family, Inputs, Shape, Tolerance, Work

if TYPE_CHECKING:
    from torch import Tensor

    from aiter_tuning.devices.device import Device

KINDS = ("linear", "tiled", "split_k", "persistent", "tma", "tma_persistent")
"""A kernel's place in here is its ``kernelId``: append only."""

_DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
_ITEM_BYTES = 2
_GROUP_M = 8
_MOST_WORKSPACE_BYTES = 128 << 20
_REFERENCE_COLUMNS = 8192
"""The reference widens this many rows of the weight at a time: a whole vocabulary in fp32 would be gigabytes."""


class Tile(NamedTuple):
    """What one program computes at a time, and with what."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


class Arch(NamedTuple):
    """What a tile has to fit into."""

    vendor: str
    """``cuda``, ``hip``, or ``none``: a CPU, under Triton's interpreter."""
    shared_bytes: int
    """Shared memory (LDS) that one program can have."""
    accumulators: int
    """fp32 sums that one thread can keep beside what else it needs in registers."""
    warp: int
    number: int = 0
    """The digits of an sm name; 0 elsewhere."""

    @property
    def has_tma(self) -> bool:
        return (self.vendor == "cuda" and self.number >= 90) or self.vendor == "none"

    @property
    def has_async_mma(self) -> bool:
        """Products read their operands from shared memory (wgmma, tcgen05), so that every stage needs a buffer."""
        return self.vendor == "cuda" and 90 <= self.number < 120


def arch_of(gfx: str, settings: Mapping[str, str] | None = None) -> Arch:
    """The limits of ``sm90``, ``gfx942``, …, or those that its driver stated; a name of another form is a CPU."""
    target = target_of(gfx)
    if target is None:
        return Arch("none", 1 << 40, 1 << 20, 32)
    # A newer arch has at least what the smallest of its vendor has.
    shared = limits_of(gfx, settings).shared_bytes or (99 << 10 if target.backend == "cuda" else 64 << 10)
    # MI cards have 64 lanes a wave, and as many accumulation registers again as ordinary ones.
    accumulators = 256 if target.warp_size == 64 else 128
    return Arch(target.backend, shared, accumulators, target.warp_size, int(target.arch) if gfx[:2] == "sm" else 0)


# block_n, block_k, num_warps, num_stages by block_m.
_TILES: dict[str, dict[int, tuple[tuple[int, int, int, int], ...]]] = {
    "cuda": {
        16: ((32, 128, 4, 4), (32, 256, 4, 3), (64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4), (128, 128, 4, 3)),
        32: ((32, 128, 4, 4), (32, 256, 4, 3), (64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4), (128, 128, 4, 3)),
        64: ((64, 64, 4, 4), (64, 128, 4, 3), (128, 64, 4, 4), (128, 128, 4, 3), (256, 64, 4, 3), (256, 64, 8, 4)),
        128: (
            *((64, 64, 4, 4), (128, 32, 4, 4), (128, 64, 4, 3), (128, 64, 4, 4), (128, 64, 8, 3), (128, 128, 8, 3)),
            *((256, 32, 8, 4), (256, 64, 8, 3), (256, 64, 8, 4)),
        ),
        256: ((128, 32, 8, 4), (128, 64, 8, 3), (128, 64, 8, 4)),
    },
    "hip": {
        16: ((32, 128, 4, 2), (32, 256, 4, 2), (64, 128, 4, 2), (64, 256, 4, 2), (128, 64, 4, 2), (128, 128, 4, 2)),
        32: ((32, 128, 4, 2), (32, 256, 4, 2), (64, 128, 4, 2), (128, 64, 4, 2), (128, 128, 4, 2)),
        64: ((64, 64, 4, 2), (64, 128, 4, 2), (128, 64, 4, 2), (128, 128, 4, 2), (256, 64, 4, 2)),
        128: ((64, 64, 4, 2), (128, 64, 4, 2), (128, 64, 8, 2), (128, 128, 8, 2), (256, 64, 8, 2), (256, 64, 8, 3)),
        256: ((128, 64, 8, 2), (256, 32, 8, 2), (256, 64, 8, 2), (256, 64, 8, 3)),
    },
    "none": {16: ((32, 32, 4, 2),)},
}


def shared_bytes(kind: str, tile: Tile, arch: Arch) -> int:
    """Shared memory that a kernel needs at least, as Triton 3.6 and 3.9 lay it out."""
    stage = (tile.block_m + tile.block_n) * tile.block_k * _ITEM_BYTES
    async_mma = arch.has_async_mma and tile.block_m >= 64
    needed = stage * max(1, tile.num_stages if async_mma else tile.num_stages - 1)
    # A tile that is stored while the next one's loads are in flight needs room of its own.
    return needed + (4 << 10 if arch.vendor == "cuda" and kind.endswith("persistent") else 0)


def fits(kind: str, tile: Tile, arch: Arch) -> bool:
    """Whether the device may be able to hold it: shared memory, and sums in registers."""
    sums = tile.block_m * tile.block_n // (tile.num_warps * arch.warp)
    return shared_bytes(kind, tile, arch) <= arch.shared_bytes and sums <= arch.accumulators


def is_worth_trying(tile: Tile, shape: Shape, arch: Arch, cu_num: int) -> bool:
    """Whether a tile can win: it is not mostly padding, and not so small that a larger one serves the L2 better."""
    if arch.vendor == "none":
        return True
    rows = max(16, 1 << (shape["M"] - 1).bit_length())
    if not min(64, rows) <= tile.block_m <= rows:
        return False
    if tile.block_k == 32 and arch.has_async_mma:  # half of what one of its instructions would like to be fed
        return False
    small = tile.block_m * tile.block_n < 128 * 128
    return not (small and tile.block_m >= 64 and _tiles(tile, shape) > 8 * cu_num)


class GemmBf16(Family):
    name = "gemm_bf16"
    devices = ("cuda", "hip")
    key = Key(M=int, N=int, K=int, dtype="bf16", bias=False)
    # Outputs are of order 1; bf16 rounds to 2^-9 of a value. A dropped slice of K, row or bias is far outside.
    tolerance = Tolerance(rtol=1e-2, atol=1e-2, err_ratio=0.01, max_abs_delta=0.25)
    precompiles = True

    def inputs(self, shape: Shape, device: str, seed: int) -> Inputs:
        import torch

        dtype = getattr(torch, _DTYPES[shape["dtype"]])
        generator = torch.Generator(device).manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator, device=device, dtype=dtype)

        m, n, k = shape["M"], shape["N"], shape["K"]
        a, weight = normal(m, k), normal(n, k).mul_(k**-0.5)
        return {"a": a, "weight": weight, "bias": normal(n) if shape["bias"] else None}

    def reference(self, inputs: Inputs) -> Tensor:
        """In fp32, without TF32 unless somebody switched that on in this process."""
        import torch

        a, weight, bias = inputs["a"], inputs["weight"], inputs["bias"]
        wide, columns = a.float(), []
        for first in range(0, weight.shape[0], _REFERENCE_COLUMNS):
            part = slice(first, first + _REFERENCE_COLUMNS)
            product = torch.mm(wide, weight[part].float().t())
            columns.append((product if bias is None else product + bias[part].float()).to(a.dtype))
        return torch.cat(columns, dim=1)

    def default(self, shape: Shape, device: Device) -> Candidate:
        return Candidate("linear", {"kernel": "linear"}, kernel_id=KINDS.index("linear"))

    def candidates(self, shape: Shape, device: Device) -> Sequence[Candidate]:
        if shape["dtype"] not in _DTYPES:
            raise ValueError(f"gemm_bf16 computes {' and '.join(_DTYPES)}, not {shape['dtype']}")
        arch = arch_of(device.gfx, device.settings)
        found = [self.default(shape, device)]
        for block_m, others in _TILES[arch.vendor].items():
            for other in others:
                tile = Tile(block_m, *other)
                if is_worth_trying(tile, shape, arch, device.cu_num):
                    for kind, extra in _ways(tile, shape, arch, device.cu_num):
                        if fits(kind, tile, arch):
                            found += [
                                _candidate(kind, tile, {**extra, **options})
                                for options in _vendor_options(kind, tile, device.gfx, arch)
                            ]
        return found

    def run(self, inputs: Inputs, config: Config) -> Tensor:
        a, weight, bias = inputs["a"], inputs["weight"], inputs["bias"]
        if config["kernel"] == "linear":
            import torch

            return torch.nn.functional.linear(a, weight, bias)
        from aiter_tuning.ops.kernels import gemm_bf16

        return gemm_bf16.launch(a, weight, bias, config)

    def resolve(self, name: str, config: Config, shape: Shape, device: Device) -> Config | None:
        """A row's config says all that a launch needs: whether the tile is still tried here makes no difference."""
        if not config or config.get("kernel") == "linear":
            return super().resolve(name, config, shape, device)
        return config if name == _name_of(config) else None

    def serve(self, inputs: Inputs) -> Tensor:
        from aiter_tuning import ops

        result: Tensor = ops.gemm_bf16(inputs["a"], inputs["weight"], inputs["bias"])
        return result

    def work(self, shape: Shape) -> Work:
        m, n, k = shape["M"], shape["N"], shape["K"]
        bias = n if shape["bias"] else 0
        return Work(
            flops=2.0 * m * n * k + m * bias,
            bytes=float(_ITEM_BYTES * (m * k + n * k + m * n + bias)),
            workspace_bytes=float(min(4 * m * n * _SPLITS[-1], _MOST_WORKSPACE_BYTES)),  # partial sums
        )


_SPLITS = (2, 4, 8, 16)


def _ways(tile: Tile, shape: Shape, arch: Arch, cu_num: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Kernels that can win with a tile, and what they need to know beside it."""
    tiles = _tiles(tile, shape)
    yield "tiled", {}
    for split in _splits(tile, shape, tiles, cu_num, every=arch.vendor == "none"):
        yield "split_k", {"split_k": split}
    # A row has to start at a multiple of 16 bytes.
    tma = arch.has_tma and shape["K"] % 8 == 0
    if tma:
        yield "tma", {}
    if arch.vendor == "none" or tiles > cu_num:  # otherwise each program has one tile anyway
        if not tma or arch.vendor == "none":
            yield "persistent", {"programs": cu_num}
        if tma:
            yield "tma_persistent", {"programs": cu_num}


def _splits(tile: Tile, shape: Shape, tiles: int, cu_num: int, *, every: bool) -> list[int]:
    """Slices of K that fill a device which the tiles alone leave idle, at least two steps each."""
    steps = -(-shape["K"] // tile.block_k)
    return [
        split
        for split in _SPLITS
        if split * 2 <= steps
        and (split == 2 if every else cu_num // 2 < tiles * split <= 3 * cu_num and tiles < cu_num)
    ]


def _vendor_options(kind: str, tile: Tile, gfx: str, arch: Arch) -> list[dict[str, int]]:
    """Compiler options that only one vendor has: MI cards' waves, matrix instructions and packing of K."""
    if arch.vendor != "hip" or not gfx.startswith("gfx9"):
        return [{}]
    large = tile.block_m >= 64 and tile.block_n >= 64 and kind != "split_k"  # which waits for memory, not for products
    pack = {"kpack": 2} if gfx.startswith("gfx94") else {}  # gfx950 has no use for it and says so
    choices = ((0, 16), (2, 16), (0, 32)) if large else ((0, 16), (2, 16))
    return [{"waves_per_eu": waves, "matrix_instr_nonkdim": size, **pack} for waves, size in choices]


def _tiles(tile: Tile, shape: Shape) -> int:
    m, n = int(shape["M"]), int(shape["N"])
    return -(-m // tile.block_m) * -(-n // tile.block_n)


def _candidate(kind: str, tile: Tile, extra: dict[str, int]) -> Candidate:
    split = extra.get("split_k", 0)
    config: dict[str, Any] = {"kernel": kind, **tile._asdict(), "group_m": _GROUP_M, **extra}
    return Candidate(_named(kind, tile, extra), config, kernel_id=KINDS.index(kind), split_k=split)


def _named(kind: str, tile: Tile, extra: Mapping[str, int]) -> str:
    split = extra.get("split_k", "")
    name = f"{kind}{split}_{tile.block_m}x{tile.block_n}x{tile.block_k}_w{tile.num_warps}_s{tile.num_stages}"
    for option, letter in (("waves_per_eu", "e"), ("matrix_instr_nonkdim", "i"), ("kpack", "p")):
        if option in extra:
            name += f"_{letter}{extra[option]}"
    return name


def _name_of(config: Config) -> str | None:
    """The name of the candidate with this config; None if it lacks what a launch needs."""
    kind = config.get("kernel")
    needs = {"split_k": ("split_k",), "persistent": ("programs",), "tma_persistent": ("programs",)}
    needed = (*Tile._fields, "group_m", *needs.get(str(kind), ()))
    if kind not in KINDS or any(type(config.get(entry)) is not int for entry in needed):
        return None
    return _named(kind, Tile(*(config[side] for side in Tile._fields)), config)
