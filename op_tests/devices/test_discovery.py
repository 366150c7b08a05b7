from types import SimpleNamespace

import pytest

from aiter_tuning import NoDeviceError
from aiter_tuning.devices import gpu_lanes
from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.devices.device import load_kind
from aiter_tuning.devices.discovery import MixedModelsError, device_notes, discover, kind_of, require_one_model
from aiter_tuning.devices.gpu import reported_uuid
from aiter_tuning.devices.identity import facts_of
from aiter_tuning.devices.torch_facts import TorchBuild
from op_tests.devices.fake_nvml import FakeGpu, FakeNvml
from op_tests.devices.fake_torch import cuda_properties, cuda_uuid, hip_properties

MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A machine: what torch drives, what NVML and torch's child say, and the user's masks."""
    asked = []

    def make(kind="cuda", nvml=None, torch=(), driver=True, **masks):
        for name in MASKS:
            monkeypatch.delenv(name, raising=False)
        for name, value in masks.items():
            monkeypatch.setenv(name, value)

        def ask(kind, mask):
            asked.append((kind, mask))
            return tuple(facts_of(one, hip=kind == "hip", environ={}) for one in torch)

        files = (str(tmp_path),) if driver else ("/nowhere/nvidiactl",)
        monkeypatch.setattr(gpu_lanes, "_DRIVER_FILES", {"cuda": files, "hip": files})
        monkeypatch.setattr(gpu_lanes, "torch_build", lambda: TorchBuild("2.11.0", kind, "13.0"))
        monkeypatch.setattr(gpu_lanes, "nvml_module", lambda: nvml)
        monkeypatch.setattr(gpu_lanes, "ask_torch", ask)
        return asked

    return make


def eight():
    return FakeNvml(*map(FakeGpu, range(8)))


def masks_of(devices):
    return [device.settings["mask"] for device in devices]


def test_a_gpu_lane_has_what_tuner_worker_and_records_need(host):
    asked = host(nvml=FakeNvml(FakeGpu(0)))
    (lane,) = discover()
    assert (lane.name, lane.gfx, lane.cu_num, lane.gpu_model) == ("cuda0", "sm90", 132, "NVIDIA H200")
    assert (lane.torch_device, lane.uuid[:12], kind_of(lane)) == ("cuda:0", "GPU-00000000", "cuda")
    assert lane.settings == {
        "index": "0",
        "mask": "0",
        "pci": "0000:10:00.0",
        "memory_bytes": str(141 << 30),
        "l2_bytes": str(60 << 20),
        "llc_bytes": str(60 << 20),
        "driver": "580.95.05",
    }
    assert lane.memory_bytes > 0
    assert load_kind(lane.kind).exec_environment(lane) == {"CUDA_VISIBLE_DEVICES": "0"}
    assert asked == []  # NVML knew


def test_a_hip_lane_is_described_by_torch_and_masked_by_hips_variable_alone(host):
    asked = host("hip", torch=[hip_properties(0), hip_properties(1)], ROCR_VISIBLE_DEVICES="5,4")
    lanes = discover("hip")
    assert [(lane.name, lane.gfx, lane.cu_num) for lane in lanes] == [("hip0", "gfx942", 304), ("hip1", "gfx942", 304)]
    assert lanes[0].settings["llc_bytes"] == str(256 << 20)
    assert lanes[0].settings["l2_bytes"] == str(4 << 20)
    assert [load_kind(lane.kind).exec_environment(lane) for lane in lanes] == [
        {"HIP_VISIBLE_DEVICES": "0"},
        {"HIP_VISIBLE_DEVICES": "1"},
    ]
    assert lanes[0].torch_device == "cuda:0"
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("mask", "request_", "expected"),
    [
        (None, None, ["0", "1", "2", "3", "4", "5", "6", "7"]),
        ("3,1", None, ["3", "1"]),
        ("3,1", [1], ["1"]),
        ("3,1", ["0"], ["3"]),
        ("3,1", "1,0", ["1", "3"]),
        ("3,1", "cuda:1", ["1"]),
        ("3,1", ["GPU-00000003-aaaa"], ["3"]),
        (None, "gpu-00000006-AAAA-bbbb-cccc-0123456789ab", ["6"]),
        ("GPU-00000005-aaaa", "0", ["GPU-00000005-aaaa"]),
        ("7,GPU-00000005-aaaa", "cuda", ["7", "GPU-00000005-aaaa"]),
        (None, [0, 0], ["0", "0"]),
        ("2,2", "cuda", ["2", "2"]),
        ("2,2", ["GPU-00000002"], ["2"]),
        (None, " 1 , 2 ", ["1", "2"]),
    ],
)
def test_a_workers_mask_is_the_users_word_for_its_gpu(host, mask, request_, expected):
    host(nvml=eight(), **({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}))
    assert masks_of(discover(request_)) == expected


@pytest.mark.parametrize("nvml", [None, "mixed"])
def test_where_nvml_cannot_tell_torch_is_asked(host, nvml):
    mixed = FakeNvml(FakeGpu(0, model="NVIDIA A10", capability=(8, 6), cores=9216), FakeGpu(1))
    asked = host(
        nvml=mixed if nvml else None, torch=[cuda_properties(3), cuda_properties(1)], CUDA_VISIBLE_DEVICES="3,1"
    )
    lanes = discover("cuda")
    assert [(lane.uuid, lane.settings["mask"]) for lane in lanes] == [(cuda_uuid(3), "3"), (cuda_uuid(1), "1")]
    assert len(asked) == 1


def test_of_words_that_name_nothing_there_are_no_lanes_by_torch_either(host):
    host(torch=[cuda_properties(3)], CUDA_VISIBLE_DEVICES="3,3,9,3")
    assert masks_of(discover("cuda")) == ["3", "3"]


def test_a_mig_instance_is_called_by_its_mask_whatever_torch_calls_it(host):
    host(torch=[cuda_properties(4)], CUDA_VISIBLE_DEVICES="MIG-GPU-4/1/0")
    (lane,) = discover()
    assert (lane.uuid, lane.settings["mask"]) == ("MIG-gpu-4/1/0", "MIG-GPU-4/1/0")
    assert lane.settings["parent_uuid"] == cuda_uuid(4)


@pytest.mark.parametrize("uuid", [b"00000000000000ab", b"XX"])
@pytest.mark.parametrize(("mask", "words"), [(None, ["0", "1", "2"]), ("5,2,7", ["5", "2", "7"])])
def test_partitions_of_an_amd_card_are_devices_of_their_own_though_the_driver_gives_them_one_id(
    host, mask, words, uuid
):
    id_ = SimpleNamespace(bytes=list(uuid.ljust(16, b"\0")))
    partitions = [hip_properties(0, uuid=id_, multi_processor_count=38) for _ in range(2)]
    other = hip_properties(1)
    host("hip", torch=[*partitions, other], **({} if mask is None else {"HIP_VISIBLE_DEVICES": mask}))
    lanes = discover("hip")
    card = "PCI 0000:1b:00.0" if uuid == b"XX" else "GPU-00000000000000ab"
    assert [lane.uuid for lane in lanes] == [f"{card}/{words[0]}", f"{card}/{words[1]}", "GPU-000000000000abc1"]
    assert masks_of(lanes) == words
    assert not any("shared" in lane.settings for lane in lanes)
    told = "" if uuid == b"XX" else card
    assert [reported_uuid(told, lane.settings["pci"], lane) for lane in lanes[:2]] == [lane.uuid for lane in lanes[:2]]


def test_a_gpu_without_a_uuid_that_is_named_twice_is_shared_all_the_same(host):
    properties = hip_properties(uuid=SimpleNamespace(bytes=list(b"XX".ljust(16, b"\0"))))
    host("hip", torch=[properties])
    assert [lane.settings.get("shared") for lane in discover([0, 0])] == ["2", "2"]
    assert [lane.settings.get("shared") for lane in discover([0])] == [None]


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_a_mask_that_hides_everything_is_named(host, value):
    host(nvml=eight(), CUDA_VISIBLE_DEVICES=value)
    with pytest.raises(NoDeviceError, match=r"no visible GPU: CUDA_VISIBLE_DEVICES=.* hides every device"):
        discover("cuda")
    assert [lane.torch_device for lane in discover()] == ["cpu"]


def test_a_gpu_that_is_not_there_is_one_line_with_those_that_are(host):
    host(nvml=FakeNvml(FakeGpu(0), FakeGpu(1)), CUDA_VISIBLE_DEVICES="1")
    for name in ("1", "GPU-00000000", "MIG-1"):
        with pytest.raises(NoDeviceError) as caught:
            discover([name])
        assert str(caught.value) == (
            f"no visible GPU {name}: there is 0: NVIDIA H200 GPU-00000001-aaaa-bbbb-cccc-0123456789ab "
            f"(CUDA_VISIBLE_DEVICES=1)"
        )


def test_a_beginning_that_fits_several_gpus_is_refused(host):
    host(nvml=eight())
    with pytest.raises(NoDeviceError, match="more than one visible GPU GPU-0000"):
        discover(["GPU-0000"])


def test_a_torch_that_does_not_drive_the_kind_is_named(host):
    host("cuda", nvml=eight())
    with pytest.raises(NoDeviceError, match=r"torch 2.11.0 is built for CUDA 13.0; install a torch for ROCm"):
        discover("hip")
    host("cpu", nvml=eight())
    with pytest.raises(NoDeviceError, match=r"no visible GPU: torch 2.11.0 is built for the CPU only"):
        discover("cuda")


def test_without_a_driver_torch_is_not_even_asked(host):
    asked = host(torch=[cuda_properties()], driver=False)
    with pytest.raises(NoDeviceError, match="no NVIDIA driver is loaded here"):
        discover("cuda")
    assert discover() == cpu_lanes()
    assert asked == []


def test_a_driver_that_shows_nothing_is_no_device(host):
    host(nvml=FakeNvml())
    with pytest.raises(NoDeviceError, match=r"the driver shows none under no mask"):
        discover("cuda")
    assert discover() == cpu_lanes()


@pytest.mark.parametrize("request_", ["tpu", "cuda,1", [], [True], [-1], ["one"], [1.5]])
def test_a_request_that_means_nothing_is_a_value_error(host, request_):
    host(nvml=eight())
    with pytest.raises(ValueError, match="devices"):
        discover(request_)


def test_ready_devices_are_taken_as_they_are_and_not_mixed_with_names(host):
    host(nvml=eight())
    lanes = discover("cuda", 2)
    assert discover(lanes) == lanes
    assert discover(lanes, 1) == lanes[:1]
    with pytest.raises(ValueError, match="cannot be mixed"):
        discover([lanes[0], 1])


def test_mp_takes_the_first(host):
    host(nvml=eight())
    assert masks_of(discover("cuda", 2)) == ["0", "1"]
    assert masks_of(discover("5,4,3", 2)) == ["5", "4"]
    assert len(discover(None, 99)) == 8


def test_two_lanes_on_one_gpu_have_names_of_their_own_and_a_note(host):
    host(nvml=eight())
    lanes = discover("0,0,1")
    assert [lane.name for lane in lanes] == ["cuda0", "cuda0#2", "cuda1"]
    assert [lane.settings.get("shared") for lane in lanes] == ["2", "2", None]
    (note,) = device_notes(lanes)
    assert note.startswith("cuda0, cuda0#2 are lanes on one GPU (GPU-00000000")
    assert note.endswith("their times are not trustworthy")
    assert device_notes(lanes[1:]) == ()


def test_devices_that_differ_are_noted(host):
    host(nvml=FakeNvml(FakeGpu(0), FakeGpu(1, model="NVIDIA H100 80GB HBM3")), CUDA_DEVICE_ORDER="PCI_BUS_ID")
    (note,) = device_notes(discover("cuda"))
    assert "NVIDIA H200 (sm90), NVIDIA H100 80GB HBM3 (sm90)" in note


def test_a_run_for_one_model_refuses_a_mix_and_says_how_to_name_each(host):
    small = {"model": "NVIDIA A10", "capability": (8, 6), "cores": 72 * 128}
    host(
        nvml=FakeNvml(FakeGpu(0), FakeGpu(1, **small), FakeGpu(2), FakeGpu(3, **small)), CUDA_DEVICE_ORDER="PCI_BUS_ID"
    )
    with pytest.raises(MixedModelsError) as caught:
        require_one_model(discover("cuda"))
    assert str(caught.value) == (
        "the devices are of 2 models and a run tunes for one: --device 0,2 for NVIDIA H200 (sm90, 132 CUs); "
        "--device 1,3 for NVIDIA A10 (sm86, 72 CUs)"
    )
    for named in ("0,2", "1,3", "3"):
        require_one_model(discover(named))


def test_under_a_mask_a_mix_is_told_by_the_positions_that_device_takes(host):
    host(
        torch=[cuda_properties(3), cuda_properties(1, name="NVIDIA A10", minor=6, major=8)], CUDA_VISIBLE_DEVICES="3,1"
    )
    with pytest.raises(MixedModelsError, match=r"--device 0 for .*; --device 1 for NVIDIA A10"):
        require_one_model(discover("cuda"))


def test_instances_of_several_sizes_are_a_mix_and_lanes_of_a_cpu_never_are(host):
    host(torch=[cuda_properties(4), cuda_properties(4, multi_processor_count=16)], CUDA_VISIBLE_DEVICES="MIG-a,MIG-b")
    with pytest.raises(MixedModelsError, match=r"--device 0 .*132 CUs.*--device 1 .*16 CUs"):
        require_one_model(discover("cuda"))
    require_one_model(cpu_lanes(2))
    require_one_model(cpu_lanes(2, cores=(0, 1, 2, 3, 4)))
