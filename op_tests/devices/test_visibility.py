import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiter_tuning.devices.visibility import (
    CUDA_MASK,
    HIDE_ALL,
    HIP_MASK,
    ROCR_MASK,
    Mask,
    compose,
    distinct,
    mask_variable,
    outer_mask,
    parse_mask,
)

GPUS = [f"GPU-{number:04x}{number:04x}" for number in range(8)]


def runtime(text, devices):
    """What a runtime shows of ``devices`` under a mask, by the vendors' rules: stops at what names nothing."""
    if text is None:
        return list(devices)
    seen = []
    for word in text.split(","):
        if word.isdigit() and int(word) < len(devices):
            device = devices[int(word)]
        elif word in devices:
            device = word
        else:
            break
        if device in seen:
            return []  # CUDA, of a mask that repeats itself
        seen.append(device)
    return seen


words = st.one_of(st.integers(0, 7).map(str), st.sampled_from(GPUS))
masks = st.one_of(st.none(), st.lists(words, max_size=8, unique=True).map(",".join))


@given(masks, masks)
def test_a_worker_sees_exactly_the_device_at_its_position_whatever_masks_lie_below(outer, below):
    devices = runtime(below, GPUS)  # below HIP: ROCR's mask, or a container's
    visible = runtime(outer, devices)
    understood = None if outer is None else parse_mask(outer)
    for position, device in enumerate(visible):
        mask = compose(understood, position)
        assert isinstance(mask, str)
        assert runtime(mask, devices) == [device]


@given(st.lists(words, min_size=1, max_size=6))
def test_a_repeated_word_is_one_device_to_a_runtime_and_two_lanes_here(repeated):
    outer = parse_mask(",".join(repeated + repeated[:1]))
    assert len(outer) == len(repeated) + 1
    assert compose(outer, 0) == compose(outer, len(repeated))
    assert len(set(distinct(outer))) == len(distinct(outer))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", ("0",)),
        ("3,1", ("3", "1")),
        ("0,0", ("0", "0")),
        ("", ()),
        (" ", ()),
        ("-1", ()),
        ("0,-1,2", ("0",)),
        ("NoDevFiles", ()),
        ("void", ()),
        (" 3 , 1 ", ("3", "1")),
        ("03,+1", ("3", "1")),
        ("00", ("0",)),
        ("1,", ("1",)),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",)),
        ("MIG-3f2a,MIG-GPU-8932f937/1/0", ("MIG-3f2a", "MIG-GPU-8932f937/1/0")),
        ("GPU-8932,1", ("GPU-8932", "1")),
        ("none,1", ()),
        ("١", ()),
    ],
)
def test_a_mask_is_read_up_to_the_first_word_that_names_no_device(text, expected):
    assert parse_mask(text) == expected


@pytest.mark.parametrize(
    ("kind", "environ", "expected"),
    [
        ("cuda", {}, Mask("", None)),
        ("cuda", {CUDA_MASK: "2"}, Mask(CUDA_MASK, ("2",))),
        ("cuda", {HIP_MASK: "2", ROCR_MASK: "1"}, Mask("", None)),
        ("hip", {}, Mask("", None)),
        ("hip", {HIP_MASK: "3,1"}, Mask(HIP_MASK, ("3", "1"))),
        ("hip", {CUDA_MASK: "3,1"}, Mask(CUDA_MASK, ("3", "1"))),
        ("hip", {HIP_MASK: "1", CUDA_MASK: "3"}, Mask(HIP_MASK, ("1",))),
        ("hip", {ROCR_MASK: "3,1"}, Mask("", None)),
        ("hip", {ROCR_MASK: "3,1", HIP_MASK: "1"}, Mask(HIP_MASK, ("1",))),
        ("hip", {HIP_MASK: ""}, Mask(HIP_MASK, ())),
        ("cuda", {CUDA_MASK: ""}, Mask(CUDA_MASK, ())),
        ("hip", {HIP_MASK: "", CUDA_MASK: "0"}, Mask(HIP_MASK, ())),
    ],
)
def test_the_outer_mask_is_the_one_that_the_runtime_goes_by(kind, environ, expected):
    assert outer_mask(kind, environ) == expected


def test_only_hips_own_variable_is_set_for_hip():
    assert mask_variable("hip") == HIP_MASK
    assert mask_variable("cuda") == CUDA_MASK


@pytest.mark.parametrize("kind", ["cuda", "hip"])
def test_a_process_that_must_see_no_device_sees_none(kind):
    assert outer_mask(kind, HIDE_ALL).words == ()
    assert "" not in HIDE_ALL.values()  # HIP goes by CUDA's variable, or none, where its own is empty


def test_a_mask_is_named_in_messages():
    assert str(Mask(CUDA_MASK, ("3", "1"))) == "CUDA_VISIBLE_DEVICES=3,1"
    assert str(Mask("", None)) == "no mask"
