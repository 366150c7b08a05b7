"""The CPU linear layer: every candidate is right, named once and for all, and described by JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.devices.device import Device
from aiter_tuning.families import find_family
from aiter_tuning.families.gemm_cpu import GemmCpu

FAMILY = GemmCpu()
SMALL = [
    {"M": m, "N": n, "K": k, "dtype": dtype, "bias": bias}
    for m, n, k in [(1, 64, 96), (2, 48, 32), (24, 96, 64), (3, 35, 21)]
    for dtype in ("fp32", "bf16")
    for bias in (False, True)
]


def lane(cores: int) -> Device:
    return Device("fake:Fake", "cpu0", "cpu:0", "x86-64-v4", cores, "a processor")


def label(shape: dict[str, object]) -> str:
    return FAMILY.key.label(shape)


def names(shape: dict[str, object], cores: int = 2) -> list[str]:
    return [candidate.name for candidate in FAMILY.candidates(shape, lane(cores))]


@pytest.fixture
def threads_restored():
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def all_candidates() -> list[object]:
    return [
        pytest.param(shape, candidate, id=f"{label(shape)} {candidate.name}")
        for shape in SMALL
        for candidate in FAMILY.candidates(shape, lane(4))
    ]


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize(("shape", "candidate"), all_candidates())
def test_every_candidate_gives_the_reference_result(shape, candidate):
    import torch

    inputs = FAMILY.inputs(shape, "cpu", 0)
    wanted = FAMILY.reference(inputs)
    config = json.loads(json.dumps(candidate.config))
    try:
        result = FAMILY.run(FAMILY.prepare(inputs, config), config)
    except NotImplementedError as reason:
        if not candidate.name.startswith(("onednn", "mkl")):
            raise
        pytest.skip(str(reason))  # this processor or torch lacks it
    assert result.shape == wanted.shape
    assert result.dtype == wanted.dtype
    assert result.is_contiguous(), "a layout that the next layer has to pay for"
    wrong = ~torch.isclose(result, wanted, rtol=FAMILY.tolerance.rtol, atol=FAMILY.tolerance.atol)
    assert wrong.float().mean().item() <= FAMILY.tolerance.err_ratio
    assert (result - wanted).abs().max().item() <= FAMILY.tolerance.max_abs_delta


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("shape", SMALL[:4], ids=label)
def test_preparing_and_running_leave_shared_inputs_as_they_were(shape):
    import torch

    inputs, untouched = FAMILY.inputs(shape, "cpu", 0), FAMILY.inputs(shape, "cpu", 0)
    for candidate in FAMILY.candidates(shape, lane(2)):
        FAMILY.run(FAMILY.prepare(inputs, candidate.config), candidate.config)
    assert list(inputs) == list(untouched)
    for name, value in inputs.items():
        assert value is untouched[name] is None or torch.equal(value, untouched[name]), name


@pytest.mark.usefixtures("threads_restored")
def test_a_thread_count_is_set_before_the_first_call():
    import torch

    inputs = FAMILY.inputs(SMALL[0], "cpu", 0)
    torch.set_num_threads(2)
    FAMILY.prepare(inputs, {"kernel": "linear", "threads": 1})
    assert torch.get_num_threads() == 1


def test_inputs_follow_the_seed():
    import torch

    first, again, other = (FAMILY.inputs(SMALL[0], "cpu", seed) for seed in (1, 1, 2))
    assert torch.equal(first["weight"], again["weight"])
    assert not torch.equal(first["weight"], other["weight"])


def test_a_wrong_bias_does_not_pass_as_right():
    import torch

    inputs = FAMILY.inputs({"M": 4, "N": 64, "K": 64, "dtype": "bf16", "bias": True}, "cpu", 0)
    wanted = FAMILY.reference(inputs)
    without = FAMILY.run({**inputs, "bias": None}, {"kernel": "linear"})
    assert (~torch.isclose(without, wanted, rtol=1e-2, atol=1e-2)).float().mean() > FAMILY.tolerance.err_ratio


SHAPES = st.fixed_dictionaries(
    {
        "M": st.integers(1, 4096),
        "N": st.integers(1, 60000),
        "K": st.integers(1, 16384),
        "dtype": st.sampled_from(["fp32", "bf16"]),
        "bias": st.booleans(),
    }
)


@given(SHAPES, st.integers(1, 256))
def test_names_are_unique_and_configs_survive_json(shape, cores):
    candidates = FAMILY.candidates(shape, lane(cores))
    assert len({candidate.name for candidate in candidates}) == len(candidates)
    assert len({json.dumps(candidate.config, sort_keys=True) for candidate in candidates}) == len(candidates)
    assert 5 <= len(candidates) <= 18
    for candidate in candidates:
        assert json.loads(json.dumps(candidate.config)) == candidate.config
        assert 1 <= candidate.config.get("threads", 1) <= cores
        parts = candidate.config.get("parts", 1)
        assert shape["N" if candidate.config["kernel"] == "split_n" else "K"] % parts == 0


@given(SHAPES, st.integers(1, 256))
def test_the_default_is_among_the_candidates(shape, cores):
    assert FAMILY.default(shape, lane(cores)) in FAMILY.candidates(shape, lane(cores))


def test_the_names_in_published_tables_stay_what_they_are():
    assert names({"M": 1, "N": 768, "K": 768, "dtype": "fp32", "bias": False}) == [
        "linear",
        "weight_transposed",
        "weight_first",
        "onednn",
        "onednn_packed",
        "split_n2",
        "split_n4",
        "split_k2",
        "split_k4",
        "mkl_packed",
        "vector",
        "linear_t1",
        "onednn_packed_t1",
    ]
    assert names({"M": 64, "N": 768, "K": 768, "dtype": "bf16", "bias": True}, cores=1) == [
        "linear",
        "weight_transposed",
        "weight_first",
        "onednn",
        "onednn_packed",
        "split_n2",
        "split_k2",
    ]


def test_fewer_threads_are_tried_only_where_the_lane_has_more():
    shape = {"M": 64, "N": 768, "K": 768, "dtype": "bf16", "bias": False}
    assert [name for name in names(shape, 1) if "_t" in name and name[-1].isdigit()] == []
    assert {name for name in names(shape, 16) if name.startswith("linear_t")} == {"linear_t1", "linear_t4", "linear_t8"}


def test_a_dtype_that_it_cannot_compute_is_refused_before_anything_is_measured():
    with pytest.raises(ValueError, match="fp32 and bf16, not fp8"):
        FAMILY.candidates({"M": 1, "N": 64, "K": 64, "dtype": "fp8", "bias": False}, lane(2))


def test_work_counts_each_tensor_once():
    work = FAMILY.work({"M": 2, "N": 3, "K": 5, "dtype": "bf16", "bias": True})
    assert work.flops == 2 * 2 * 3 * 5 + 2 * 3
    assert work.bytes == 2 * (2 * 5 + 3 * 5 + 2 * 3 + 3)


def test_the_registry_finds_it_by_name():
    assert isinstance(find_family("gemm_cpu"), GemmCpu)


def test_listing_candidates_loads_no_torch():
    code = (
        "import sys\n"
        "from aiter_tuning.devices.device import Device\n"
        "from aiter_tuning.families import find_family\n"
        "shape = {'M': 1, 'N': 64, 'K': 64, 'dtype': 'fp32', 'bias': False}\n"
        "device = Device('fake:Fake', 'cpu0', 'cpu:0', 'x86-64-v4', 2, 'a processor')\n"
        "family = find_family('gemm_cpu')\n"
        "assert family.candidates(shape, device) and family.work(shape).flops\n"
        "print(sorted({'torch', 'numpy', 'pandas', 'triton'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
