import pytest

from aiter_tuning.devices.conditions import GpuProcess
from aiter_tuning.devices.identity import Identity
from aiter_tuning.devices.nvml import CannotTellError, NvmlSensor, driver_version, visible_gpus
from aiter_tuning.devices.visibility import Mask
from op_tests.devices.fake_nvml import FakeGpu, FakeNvml

NO_MASK = Mask("", None)


def mask(*words):
    return Mask("CUDA_VISIBLE_DEVICES", words)


def seen(nvml, mask, **environ):
    return [(facts.uuid[:12], word) for facts, word in visible_gpus(nvml, mask, environ)]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (None, [("GPU-00000000", "0"), ("GPU-00000001", "1"), ("GPU-00000002", "2"), ("GPU-00000003", "3")]),
        (("3", "1"), [("GPU-00000003", "3"), ("GPU-00000001", "1")]),
        (("0", "0"), [("GPU-00000000", "0"), ("GPU-00000000", "0")]),
        (("2", "9", "1"), [("GPU-00000002", "2")]),
        (("GPU-00000002-AAAA",), [("GPU-00000002", "GPU-00000002-AAAA")]),
        (("GPU-0000",), []),  # several begin so
        (("GPU-ffff", "1"), []),
    ],
)
def test_gpus_come_in_the_masks_order_each_with_its_word(words, expected):
    nvml = FakeNvml(*map(FakeGpu, range(4)))
    assert seen(nvml, Mask("CUDA_VISIBLE_DEVICES", words)) == expected
    assert nvml.open == 0


def test_facts_are_those_that_torch_would_tell():
    ((facts, _),) = visible_gpus(FakeNvml(FakeGpu(0)), NO_MASK, {})
    assert facts.identity == Identity("sm90", 132, "NVIDIA H200")
    assert (facts.pci, facts.memory_bytes, facts.l2_bytes) == ("0000:10:00.0", 141 << 30, 60 << 20)


@pytest.mark.parametrize(
    ("capability", "cores", "units"),
    [
        ((7, 0), 5120, 80),
        ((7, 5), 2560, 40),
        ((8, 0), 6912, 108),
        ((8, 6), 10752, 84),
        ((8, 9), 16384, 128),
        ((10, 0), 18944, 148),
        ((12, 0), 21760, 170),
    ],
)
def test_sms_are_counted_from_cores(capability, cores, units):
    ((facts, _),) = visible_gpus(FakeNvml(FakeGpu(0, capability=capability, cores=cores)), NO_MASK, {})
    assert facts.identity.cu_num == units


@pytest.mark.parametrize(("capability", "cores"), [((13, 0), 1280), ((9, 0), 1000)])
def test_of_an_unknown_architecture_torch_is_asked(capability, cores):
    with pytest.raises(CannotTellError):
        visible_gpus(FakeNvml(FakeGpu(0, capability=capability, cores=cores)), NO_MASK, {})


def test_where_cuda_may_count_in_another_order_torch_is_asked():
    nvml = FakeNvml(FakeGpu(0, model="NVIDIA A10", capability=(8, 6), cores=9216), FakeGpu(1))
    for words in (None, ("0",), ("GPU-00000001-aaaa", "0")):
        with pytest.raises(CannotTellError, match="fastest first"):
            visible_gpus(nvml, Mask("", words), {})
    assert [word for _, word in visible_gpus(nvml, NO_MASK, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})] == ["0", "1"]
    assert seen(nvml, mask("GPU-00000001-aaaa")) == [("GPU-00000001", "GPU-00000001-aaaa")]


def test_under_mps_torch_is_asked_how_many_sms_there_are(tmp_path):
    nvml, pipes = FakeNvml(FakeGpu(0)), {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert seen(nvml, NO_MASK, **pipes) == [("GPU-00000000", "0")]
    (tmp_path / "control").touch()
    for environ in (pipes, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}):
        with pytest.raises(CannotTellError, match="MPS"):
            visible_gpus(nvml, NO_MASK, environ)


def mig_host():
    whole = FakeGpu(0, model="NVIDIA A100-SXM4-40GB", capability=(8, 0), cores=6912)
    whole.mig = 1
    part = FakeGpu(1, model="NVIDIA A100-SXM4-40GB MIG 1g.5gb", uuid="MIG-1111", units=14)
    part.whole = whole
    return FakeNvml(whole, instances=[part])


def test_a_mig_instance_is_a_device_with_its_own_units():
    ((facts, word),) = visible_gpus(mig_host(), mask("MIG-1111"), {})
    assert (facts.uuid, word, facts.parent_uuid[:12]) == ("MIG-1111", "MIG-1111", "GPU-00000000")
    assert facts.identity == Identity("sm80", 14, "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    assert facts.pci == "0000:10:00.0"


@pytest.mark.parametrize("words", [None, ("0",), ("MIG-GPU-0000/1/0",), ("MIG-2222",)])
def test_which_instance_cuda_shows_is_asked_of_torch(words):
    with pytest.raises(CannotTellError):
        visible_gpus(mig_host(), Mask("", words), {})


def test_where_nvml_does_not_work_torch_is_asked():
    nvml = FakeNvml(FakeGpu(0))
    assert driver_version(nvml) == "580.95.05"
    nvml.broken = "Driver Not Loaded"
    with pytest.raises(CannotTellError, match="Driver Not Loaded"):
        visible_gpus(nvml, NO_MASK, {})
    assert driver_version(nvml) == ""


def test_a_reading_has_clocks_temperature_reasons_and_processes():
    gpu = FakeGpu(0)
    gpu.reasons, gpu.processes = 0x1 | 0x4 | 0x40, [(12, 1 << 30), (13, None)]
    nvml = FakeNvml(gpu)
    sensor = NvmlSensor(nvml)
    reading = sensor.read(gpu.uuid, "0000:10:00.0")
    assert reading == (1980, 3201, 45, ("power cap", "hardware thermal"), (GpuProcess(12, 1 << 30), GpuProcess(13, 0)))
    sensor.close()
    assert nvml.open == 0


def test_what_a_gpu_does_not_tell_is_none_and_the_rest_is_read():
    gpu = FakeGpu(0)
    gpu.temperature = None
    reading = NvmlSensor(FakeNvml(gpu)).read(gpu.uuid, "")
    assert reading.temperature_c is None
    assert reading.sm_mhz == 1980
    assert reading.throttle == ()


def test_the_new_name_of_throttle_reasons_is_used_where_the_driver_has_it():
    gpu = FakeGpu(0)
    nvml = FakeNvml(gpu)
    nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 0x8
    assert NvmlSensor(nvml).read(gpu.uuid, "").throttle == ("hardware slowdown",)

    def missing(handle):
        raise nvml.NVMLError("Function Not Found")

    gpu.reasons = 0x20
    nvml.nvmlDeviceGetCurrentClocksEventReasons = missing
    assert NvmlSensor(nvml).read(gpu.uuid, "").throttle == ("software thermal",)


def test_clocks_of_a_mig_instance_are_those_of_its_gpu_and_processes_its_own():
    nvml = mig_host()
    whole, part = nvml.gpus[0], nvml.instances[0]
    part.clocks, whole.processes, part.processes = {}, [(1, 1)], [(2, 2)]
    reading = NvmlSensor(nvml).read("MIG-1111", "0000:10:00.0")
    assert (reading.sm_mhz, reading.processes) == (1980, (GpuProcess(2, 2),))
