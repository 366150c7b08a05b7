"""The bf16 linear layer: every kind of candidate is right (under Triton's interpreter), pruned by what fits, named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.devices.device import Device
from aiter_tuning.families import family_names, find_family
from aiter_tuning.families.gemm_bf16 import KINDS, GemmBf16, Tile, arch_of, fits, is_worth_trying, shared_bytes
from aiter_tuning.tables.shapes import read_shapes

FAMILY = GemmBf16()
ROOT = Path(__file__).resolve().parents[2]
IMPORT_PATH = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
CU_NUMS = {
    "sm80": 108,
    "sm86": 84,
    "sm90": 132,
    "sm100": 148,
    "sm120": 188,
    "gfx942": 304,
    "gfx950": 256,
    "gfx1100": 96,
}


def gpu(gfx: str) -> Device:
    return Device("fake:Fake", "gpu0", "GPU-0", gfx, CU_NUMS.get(gfx, 2), "a GPU", "cuda:0")


def shape(m: int, n: int, k: int, dtype: str = "bf16", bias: bool = False) -> dict[str, object]:
    return {"M": m, "N": n, "K": k, "dtype": dtype, "bias": bias}


def names(gfx: str, *size: int) -> list[str]:
    return [candidate.name for candidate in FAMILY.candidates(shape(*size), gpu(gfx))]


def kinds(gfx: str, *size: int) -> set[str]:
    return {candidate.config["kernel"] for candidate in FAMILY.candidates(shape(*size), gpu(gfx))}


# Whether kernels are right. The interpreter has to be chosen before Triton's decorators run, so: in another process.

CHECK = """
import sys, torch
from aiter_tuning.devices.device import Device
from aiter_tuning.families.gemm_bf16 import GemmBf16

family, lane, seen = GemmBf16(), Device("fake:Fake", "cpu0", "cpu:0", "x86-64-v4", 3, "a processor"), set()
tolerance = family.tolerance
for size in [(1, 32, 128), (33, 40, 136), (5, 17, 131)]:
    for dtype in ("bf16", "fp16"):
        for bias in (False, True):
            shape = dict(zip("MNK", size)) | {"dtype": dtype, "bias": bias}
            inputs = family.inputs(shape, "cpu", 0)
            wanted = family.reference(inputs)
            for candidate in family.candidates(shape, lane):
                seen.add(candidate.config["kernel"])
                other = candidate.config | {"block_n": 16, "group_m": 2, "programs": 2}
                for config in (candidate.config, other)[bias:]:
                    got = family.run(inputs, config)
                    assert got.dtype == wanted.dtype and got.shape == wanted.shape and got.is_contiguous()
                    off = (got.float() - wanted.float()).abs()
                    wrong = (off > tolerance.atol + tolerance.rtol * wanted.float().abs()).float().mean().item()
                    if wrong > tolerance.err_ratio or not off.max().item() <= tolerance.max_abs_delta:
                        print(shape, config, "wrong", wrong, "worst", off.max().item())
inputs, untouched = family.inputs(shape, "cpu", 0), family.inputs(shape, "cpu", 0)
assert all(torch.equal(inputs[name], untouched[name]) for name in inputs)
a, weight = torch.randn(20, 144, dtype=torch.float16), torch.randn(24, 160, dtype=torch.float16)
wide = {"a": a[:, :128], "weight": weight[:, :128], "bias": None}
for candidate in family.candidates({"M": 20, "N": 24, "K": 128, "dtype": "fp16", "bias": False}, lane):
    got, wanted = family.run(wide, candidate.config).float(), family.reference(wide).float()
    if not torch.allclose(got, wanted, rtol=1e-2, atol=1e-1):
        print(candidate.name, "wrong where rows are further apart than they are long")
print("seen", *sorted(seen))
"""


def skip_if_interpreter_is_broken(output: str) -> None:
    """Triton 3.6 turns one-element arrays into loop bounds as numpy 2.4 no longer allows."""
    if "only 0-dimensional arrays can be converted" in output:
        pytest.skip("this Triton's interpreter does not work with this numpy")


def test_every_kind_of_candidate_is_right_on_whole_and_ragged_shapes():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": IMPORT_PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, env=environment)
    skip_if_interpreter_is_broken(done.stderr)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"seen {' '.join(sorted(KINDS))}"]


def test_on_the_cpu_it_runs_under_the_interpreter_only_and_rows_carry_the_processors_name(tmp_path):
    (tmp_path / "shapes.csv").write_text("M,N,K,dtype\n8,32,128,bf16\n")
    command = [sys.executable, "-m", "aiter_tuning", "tune", "gemm_bf16", "-i", "shapes.csv", "-o", "tuned.csv"]
    command += ["--device", "cpu", "--warmup", "0", "--iters", "2"]
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    environment.pop("TRITON_INTERPRET", None)
    refused = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert refused.returncode == 2
    assert "gemm_bf16 runs on cuda, hip only" in refused.stderr
    interpreted = environment | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=interpreted, cwd=tmp_path)
    skip_if_interpreter_is_broken(done.stdout)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["candidates"] == {"ok": len(KINDS)}, done.stdout
    header, row = (tmp_path / "tuned.csv").read_text().splitlines()
    gfx = dict(zip(header.split(","), row.split(","), strict=False))["gfx"]
    assert not gfx.startswith(("sm", "gfx"))


COMPILE = """
import sys
from aiter_tuning.devices.device import Device
from aiter_tuning.families.gemm_bf16 import GemmBf16, KINDS, Tile, arch_of, fits, shared_bytes
from aiter_tuning.measure.compile_target import limits_of, target_of
from aiter_tuning.measure.dry_run import DryRunner
from aiter_tuning.tuner.plan import plan_shape
from aiter_tuning.tuner.tasks import FamilyTasks

family, gfx = GemmBf16(), sys.argv[1]
device = Device("fake:Fake", "gpu0", "GPU-0", gfx, 132, "a GPU", "cuda:0")
tasks = FamilyTasks(family, "aiter_tuning.families.gemm_bf16:GemmBf16", seed=0, kwargs={})
chosen = {}
for m in (1, 16, 4096):  # of 1, Triton makes a constant
    plan = plan_shape(family, {"M": m, "N": 4096, "K": 4096, "dtype": "bf16", "bias": True}, device)
    for candidate in plan.candidates:
        if candidate.name != "linear":
            sort = (candidate.config["kernel"], candidate.config["block_m"] >= 64, m == 1)
            chosen.setdefault(sort, (plan, candidate))
with DryRunner(target_of(gfx), limits_of(gfx)) as runner:
    for (kind, *_), (plan, candidate) in chosen.items():
        done = runner.run(tasks.group(plan, [candidate]).tasks[0])
        if done.outcome != "compiled":
            print(candidate.name, done.outcome, done.detail)
            continue
        tile = Tile(**{name: candidate.config[name] for name in Tile._fields})
        if shared_bytes(kind, tile, arch_of(gfx)) > done.kernels[0].shared_bytes:
            print(candidate.name, "needs", done.kernels[0].shared_bytes, "was thought to need more")
print("compiled", *sorted({kind for kind, *_ in chosen}))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("gfx", "expected"),
    [
        ("sm80", {"tiled", "split_k", "persistent"}),
        ("sm90", {"tiled", "split_k", "tma", "tma_persistent"}),
        ("sm100", {"tiled", "split_k", "tma", "tma_persistent"}),
        ("gfx942", {"tiled", "split_k", "persistent"}),
        ("gfx950", {"tiled", "split_k", "persistent"}),
    ],
)
def test_compilers_accept_every_kind_and_need_no_less_than_estimated(gfx, expected, tmp_path):
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-W", "ignore", "-c", COMPILE, gfx]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"compiled {' '.join(sorted(expected))}"]


# What is tried.


@pytest.mark.parametrize(
    ("kind", "tile", "gfx", "kb"),
    [
        # What Triton's compiler really allocated for bf16 (metadata.shared), in KB, rounded down.
        ("tiled", Tile(128, 256, 64, 8, 3), "sm90", 144),
        ("tiled", Tile(128, 128, 64, 4, 4), "sm90", 128),
        ("split_k", Tile(16, 64, 128, 4, 4), "sm90", 60),
        ("tma", Tile(128, 256, 64, 8, 4), "sm90", 192),
        ("tiled", Tile(32, 64, 128, 4, 3), "sm90", 48),
        ("tiled", Tile(128, 256, 64, 8, 3), "sm80", 96),
        ("tiled", Tile(128, 128, 32, 4, 4), "sm80", 48),
        ("tiled", Tile(128, 256, 64, 8, 3), "sm100", 144),
        ("tiled", Tile(128, 256, 64, 8, 2), "gfx942", 48),
        ("tiled", Tile(256, 256, 64, 8, 2), "gfx942", 64),
    ],
)
def test_shared_memory_is_estimated_as_the_compiler_allocates_it(kind, tile, gfx, kb):
    assert shared_bytes(kind, tile, arch_of(gfx)) >> 10 == kb


@pytest.mark.parametrize(
    ("kind", "tile", "gfx", "kb"),
    [
        ("persistent", Tile(128, 128, 64, 4, 3), "sm90", 104),
        ("persistent", Tile(64, 256, 64, 4, 3), "sm80", 85),
        ("persistent", Tile(128, 256, 64, 8, 3), "sm90", 176),
        ("tma_persistent", Tile(128, 128, 64, 8, 4), "sm90", 160),
        ("persistent", Tile(128, 128, 32, 8, 4), "sm80", 80),
        ("tiled", Tile(256, 256, 64, 8, 2), "gfx950", 131),
        ("persistent", Tile(128, 256, 64, 8, 3), "sm100", 160),
    ],
)
def test_an_estimate_that_is_not_exact_is_low_so_that_nothing_possible_is_left_out(kind, tile, gfx, kb):
    assert shared_bytes(kind, tile, arch_of(gfx)) >> 10 < kb


@pytest.mark.parametrize(
    ("tile", "gfx", "expected"),
    [
        pytest.param(Tile(128, 256, 64, 8, 4), "sm90", True, id="192 KB of 227"),
        pytest.param(Tile(128, 256, 64, 8, 5), "sm90", False, id="240 KB of 227"),
        pytest.param(Tile(128, 256, 64, 8, 4), "sm80", True, id="144 KB of 163, one stage in registers"),
        pytest.param(Tile(128, 256, 64, 8, 5), "sm80", False, id="192 KB of 163"),
        pytest.param(Tile(128, 256, 64, 8, 4), "sm130", False, id="144 KB where nobody knows the limit"),
        pytest.param(Tile(128, 256, 64, 8, 4), "sm86", False, id="144 KB of 99"),
        pytest.param(Tile(128, 256, 64, 4, 3), "sm90", False, id="256 sums a thread leave no register"),
        pytest.param(Tile(128, 256, 64, 8, 3), "sm90", True, id="128 sums a thread"),
        pytest.param(Tile(256, 256, 64, 8, 3), "gfx942", False, id="128 KB of an MI300's 64"),
        pytest.param(Tile(256, 256, 64, 8, 3), "gfx950", True, id="128 KB of an MI350's 160"),
        pytest.param(Tile(256, 256, 32, 8, 2), "gfx942", True, id="128 sums a lane of a 64-lane wave"),
        pytest.param(Tile(256, 256, 32, 8, 2), "gfx1100", False, id="256 sums a lane of a 32-lane wave"),
    ],
)
def test_a_tile_is_left_out_where_the_device_cannot_hold_it(tile, gfx, expected):
    assert fits("tiled", tile, arch_of(gfx)) is expected


def test_what_a_driver_says_of_its_shared_memory_wins_over_the_table():
    tile = Tile(128, 256, 64, 8, 4)
    assert fits("tiled", tile, arch_of("sm90"))
    assert not fits("tiled", tile, arch_of("sm90", {"shared_bytes": "100000"}))


@pytest.mark.parametrize(
    ("tile", "rows", "gfx", "expected"),
    [
        pytest.param(Tile(16, 64, 128, 4, 4), 1, "sm90", True, id="the least rows there are"),
        pytest.param(Tile(32, 64, 128, 4, 4), 16, "sm90", False, id="half of it padding"),
        pytest.param(Tile(128, 128, 64, 4, 3), 65, "sm90", True, id="rounded up to 128"),
        pytest.param(Tile(32, 64, 128, 4, 4), 64, "sm90", False, id="larger tiles read the weight less often"),
        pytest.param(Tile(64, 64, 64, 4, 4), 512, "sm90", True, id="512 small tiles for 132 units"),
        pytest.param(Tile(64, 64, 64, 4, 4), 4096, "sm90", False, id="4,096 small tiles for 132 units"),
        pytest.param(Tile(128, 128, 32, 4, 4), 4096, "sm80", True, id="short steps suit mma"),
        pytest.param(Tile(128, 128, 32, 4, 4), 4096, "sm90", False, id="short steps starve wgmma"),
    ],
)
def test_a_tile_is_left_out_where_it_cannot_win(tile, rows, gfx, expected):
    assert is_worth_trying(tile, shape(rows, 4096, 4096), arch_of(gfx), CU_NUMS[gfx]) is expected


@pytest.mark.parametrize(
    ("gfx", "size", "expected"),
    [
        pytest.param("sm90", (1, 4096, 4096), {"linear", "tiled", "split_k", "tma"}, id="few tiles: K is split"),
        pytest.param("sm90", (4096, 4096, 4096), {"linear", "tiled", "tma", "tma_persistent"}, id="many: persistent"),
        pytest.param("sm90", (4096, 4096, 4100), {"linear", "tiled", "persistent"}, id="rows that no TMA can start at"),
        pytest.param("sm80", (4096, 4096, 4096), {"linear", "tiled", "persistent"}, id="no TMA before sm90"),
        pytest.param("gfx942", (8192, 8192, 8192), {"linear", "tiled", "persistent"}, id="none on HIP"),
        pytest.param("sm90", (64, 256, 64), {"linear", "tiled", "tma"}, id="too short to split"),
        pytest.param("x86-64-v4", (8, 32, 128), set(KINDS), id="the interpreter is there to try them all"),
    ],
)
def test_kernels_are_tried_where_they_can_win(gfx, size, expected):
    assert kinds(gfx, *size) == expected


def test_k_is_split_so_far_that_the_device_is_filled_and_no_further():
    split = [c for c in FAMILY.candidates(shape(16, 4096, 4096), gpu("sm90")) if c.config["kernel"] == "split_k"]
    assert split
    for candidate in split:
        config = candidate.config
        programs = 4096 // config["block_n"] * config["split_k"]
        assert 132 // 2 < programs <= 3 * 132
        assert candidate.split_k == config["split_k"]
        assert 4096 // config["block_k"] >= 2 * config["split_k"]


def test_compiler_options_of_mi_cards_go_to_mi_cards_only():
    def options(gfx: str) -> set[str]:
        wanted = {"waves_per_eu", "matrix_instr_nonkdim", "kpack"}
        return {key for c in FAMILY.candidates(shape(512, 4096, 4096), gpu(gfx)) for key in c.config} & wanted

    assert options("gfx942") == {"waves_per_eu", "matrix_instr_nonkdim", "kpack"}
    assert options("gfx950") == {"waves_per_eu", "matrix_instr_nonkdim"}
    assert options("gfx1100") == options("sm90") == options("sm100") == set()


SIZES = st.fixed_dictionaries(
    {
        "M": st.integers(1, 20000),
        "N": st.integers(1, 200000),
        "K": st.integers(1, 40000),
        "dtype": st.sampled_from(["bf16", "fp16"]),
        "bias": st.booleans(),
    }
)


@given(SIZES, st.sampled_from([*CU_NUMS, "x86-64-v3"]))
def test_names_are_unique_and_configs_survive_json(size, gfx):
    candidates = FAMILY.candidates(size, gpu(gfx))
    assert candidates[0] == FAMILY.default(size, gpu(gfx))
    assert 3 <= len(candidates) <= 150
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    assert len({json.dumps(candidate.config, sort_keys=True) for candidate in candidates}) == len(candidates)
    for candidate in candidates:
        assert json.loads(json.dumps(candidate.config)) == candidate.config
        assert KINDS[candidate.kernel_id] == candidate.config["kernel"]
        assert candidate.split_k == candidate.config.get("split_k", 0)
        assert candidate.name.startswith(candidate.config["kernel"])


def test_the_names_and_ids_in_published_tables_stay_what_they_are():
    assert KINDS == ("linear", "tiled", "split_k", "persistent", "tma", "tma_persistent")
    assert names("sm90", 1, 4096, 4096)[:6] == [
        "linear",
        "tiled_16x32x128_w4_s4",
        "split_k2_16x32x128_w4_s4",
        "tma_16x32x128_w4_s4",
        "tiled_16x32x256_w4_s3",
        "split_k2_16x32x256_w4_s3",
    ]
    assert "tma_persistent_128x256x64_w8_s3" in names("sm90", 4096, 4096, 4096)
    assert "tiled_128x128x64_w8_s2_e2_i16_p2" in names("gfx942", 4096, 4096, 4096)


def test_a_dtype_that_it_cannot_compute_is_refused_before_anything_is_measured():
    with pytest.raises(ValueError, match="bf16 and fp16, not fp32"):
        FAMILY.candidates(shape(1, 64, 64, "fp32"), gpu("sm90"))


def test_work_counts_each_tensor_once():
    work = FAMILY.work(shape(2, 3, 5, bias=True))
    assert work.flops == 2 * 2 * 3 * 5 + 2 * 3
    assert work.bytes == 2 * (2 * 5 + 3 * 5 + 2 * 3 + 3)


def test_the_reference_of_a_weight_with_many_rows_is_that_of_its_parts():
    import torch

    inputs = FAMILY.inputs(shape(3, 8192 + 40, 16, bias=True), "cpu", 1)
    whole = torch.nn.functional.linear(*(inputs[name].float() for name in ("a", "weight", "bias")))
    torch.testing.assert_close(FAMILY.reference(inputs).float(), whole, rtol=1e-2, atol=1e-3)


def test_the_registry_finds_it_and_takes_its_kernels_for_no_family():
    assert isinstance(find_family("gemm_bf16"), GemmBf16)
    assert "kernels" not in family_names()


def test_listing_candidates_loads_neither_torch_nor_triton():
    code = (
        "import sys\n"
        "from aiter_tuning.devices.device import Device\n"
        "from aiter_tuning.families import find_family\n"
        "from aiter_tuning.tuner.fingerprint import candidate_fingerprints\n"
        "shape = {'M': 1, 'N': 64, 'K': 64, 'dtype': 'bf16', 'bias': False}\n"
        "device = Device('fake:Fake', 'gpu0', 'GPU-0', 'sm90', 132, 'a GPU')\n"
        "family = find_family('gemm_bf16')\n"
        "candidates = family.candidates(shape, device)\n"
        "assert candidate_fingerprints(family, candidates) and family.work(shape).flops\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'triton'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*gemm_bf16_untuned.csv")), ids=lambda p: p.name)
def test_shipped_shapes_are_read_and_have_candidates(path):
    file = read_shapes(path, FAMILY.key)
    assert file.shapes and not file.duplicates and not file.warnings
    for size in file.shapes:
        assert len(FAMILY.candidates(size, gpu("sm90"))) > 5
