import os
import sys
from dataclasses import replace

import pytest

from aiter_tuning.devices.cuda import CudaKind
from aiter_tuning.devices.device import Device, load_kind
from aiter_tuning.devices.gpu import SurpriseError
from aiter_tuning.devices.hip import HipKind
from op_tests.devices.fake_torch import cuda_properties, cuda_uuid, fake_torch, hip_properties

CUDA = Device(
    kind="aiter_tuning.devices.cuda:CudaKind",
    name="cuda3",
    uuid=cuda_uuid(),
    gfx="sm90",
    cu_num=132,
    gpu_model="NVIDIA H200",
    torch_device="cuda:0",
    settings={"mask": "3", "pci": "0000:1b:00.0"},
)
HIP = replace(
    CUDA,
    kind="aiter_tuning.devices.hip:HipKind",
    name="hip3",
    uuid="GPU-000000000000abc0",
    gfx="gfx942",
    cu_num=304,
    gpu_model="AMD Instinct MI300X",
)


@pytest.fixture
def worker(monkeypatch):
    """A worker's process: this torch, and the masks that it was started with."""

    def make(torch, **environ):
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            monkeypatch.setenv(name, environ.get(name, ""))  # so that what a kind sets is undone after the test
            if name not in environ:
                monkeypatch.delenv(name)
        monkeypatch.setitem(sys.modules, "torch", torch)

    return make


def test_the_kinds_say_when_they_have_to_be_bound():
    assert not CudaKind.bound_at_exec
    assert HipKind.bound_at_exec
    assert isinstance(load_kind(CUDA.kind), CudaKind)
    assert isinstance(load_kind(HIP.kind), HipKind)


def test_the_mask_is_there_before_cuda_initialises(worker, monkeypatch):
    torch, seen = fake_torch(cuda_properties()), []
    torch.cuda.init = lambda: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
    worker(torch, CUDA_VISIBLE_DEVICES="0,1,3")
    assert CudaKind().bind(CUDA) == CUDA.uuid
    assert seen == ["3"]


def test_on_hip_the_mask_is_set_before_torch_is_imported_and_rocrs_stays(worker):
    worker(fake_torch(hip_properties(), hip="6.4"), ROCR_VISIBLE_DEVICES="7,6,5,4")
    kind = HipKind()
    kind.prepare_process(HIP)
    assert os.environ["HIP_VISIBLE_DEVICES"] == "3"
    assert os.environ["ROCR_VISIBLE_DEVICES"] == "7,6,5,4"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    assert kind.bind(HIP) == HIP.uuid


def test_another_gpu_than_expected_is_reported_as_what_it_is(worker):
    worker(fake_torch(cuda_properties(5)))
    assert CudaKind().bind(CUDA) == cuda_uuid(5)  # the pool compares, and refuses


@pytest.mark.parametrize(
    "device",
    [
        replace(CUDA, uuid="MIG-00000000-aaaa-aaaa-aaaa-aaaaaaaaaaaa"),
        replace(CUDA, uuid="MIG-77", settings={"mask": "MIG-77", "parent_uuid": cuda_uuid()}),
    ],
)
def test_a_mig_instance_may_go_by_its_own_id_or_its_gpus(worker, device):
    worker(fake_torch(cuda_properties()))
    assert CudaKind().bind(device) == device.uuid


def test_a_torch_without_uuids_is_believed_by_pci_address(worker):
    properties = cuda_properties()
    del properties.uuid
    worker(fake_torch(properties))
    assert CudaKind().bind(CUDA) == CUDA.uuid
    assert CudaKind().bind(replace(CUDA, settings={"mask": "3", "pci": "0000:ff:00.0"})) == "PCI 0000:1b:00.0"


def test_a_runtime_that_started_before_its_mask_is_refused(worker):
    worker(fake_torch(cuda_properties(0), cuda_properties(1)))
    with pytest.raises(SurpriseError, match="torch sees 2 GPUs under CUDA_VISIBLE_DEVICES=3"):
        CudaKind().bind(CUDA)


def test_a_name_that_a_lookup_would_not_find_is_refused(worker):
    worker(fake_torch(cuda_properties(multi_processor_count=114)))
    with pytest.raises(SurpriseError, match=r"sm90, 114 CUs\), discovery called it NVIDIA H200 \(sm90, 132 CUs\)"):
        CudaKind().bind(CUDA)


def test_a_torch_for_the_other_vendor_is_refused(worker):
    worker(fake_torch(hip_properties(), hip="6.4"))
    with pytest.raises(SurpriseError, match="drives hip, not cuda"):
        CudaKind().bind(CUDA)


def test_the_probe_finds_a_wrong_product_and_waits_for_it(monkeypatch):
    import torch

    real = torch.Tensor.to
    wrong = {"by": 0.0}

    def to(self, target, *rest):
        return self + wrong["by"] if target == "cuda:0" else real(self, target, *rest)

    waits = []
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    CudaKind().probe()
    assert waits
    wrong["by"] = 0.5
    with pytest.raises(RuntimeError, match=r"of 384 elements of a 24x32 by 32x16 product are wrong"):
        CudaKind().probe()
