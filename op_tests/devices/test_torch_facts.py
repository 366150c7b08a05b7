import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiter_tuning.devices import torch_facts
from aiter_tuning.devices.device import NoDeviceError
from aiter_tuning.devices.identity import facts_of
from aiter_tuning.devices.torch_facts import (
    ask_torch,
    describe_devices,
    parse_answer,
    parse_version_file,
    torch_build,
)
from aiter_tuning.devices.visibility import Mask
from op_tests.devices.fake_torch import cuda_properties, fake_torch, hip_properties

NO_MASK = Mask("", None)


@pytest.mark.parametrize(
    ("cuda", "hip", "kind", "text"),
    [
        ("'13.0'", "None", "cuda", "torch 2.11.0 is built for CUDA 13.0"),
        ("None", "'6.4.43482'", "hip", "torch 2.11.0 is built for ROCm 6.4.43482"),
        ("None", "None", "cpu", "torch 2.11.0 is built for the CPU only"),
    ],
)
def test_what_torch_was_built_for_stands_in_its_files(cuda, hip, kind, text):
    build = parse_version_file(
        f"from typing import Optional\n__all__ = []\n__version__ = '2.11.0'\ndebug = False\n"
        f"cuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
    )
    assert build.kind == kind
    assert str(build) == text


def test_a_missing_torch_drives_nothing(monkeypatch):
    monkeypatch.setattr(torch_facts.importlib.util, "find_spec", lambda name: None)
    assert torch_build().kind == "cpu"
    assert str(torch_build()) == "torch is not installed"


def test_asking_what_torch_was_built_for_imports_nothing():
    code = (
        "import sys; from aiter_tuning.devices.torch_facts import torch_build; b = torch_build();"
        "assert 'torch' not in sys.modules; print(b.version)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    import torch

    assert told == torch.__version__


def test_the_childs_answer_arrives_whole():
    for torch, hip in (
        (fake_torch(cuda_properties(0), cuda_properties(1)), False),
        (fake_torch(hip_properties(0), hip="6.4"), True),
    ):
        expected = [
            facts_of(torch.cuda.get_device_properties(index), hip=hip, environ=os.environ)
            for index in range(torch.cuda.device_count())
        ]
        assert list(parse_answer(json.dumps(describe_devices(torch)))) == expected


def test_why_torch_sees_nothing_is_told():
    with pytest.raises(NoDeviceError, match="torch says: No HIP GPUs are available"):
        parse_answer(json.dumps(describe_devices(fake_torch(error="No HIP\nGPUs are available", hip="6.4"))))
    assert parse_answer(json.dumps(describe_devices(fake_torch()))) == ()


def test_what_counts_is_what_the_runtime_shows_and_not_what_torch_makes_of_the_mask_before():
    torch, started = fake_torch(hip_properties(0), hip_properties(1), hip="7.0"), []
    torch.cuda.init = lambda: started.append(1)
    torch.cuda.device_count = lambda: 2 if started else 1
    assert len(parse_answer(json.dumps(describe_devices(torch)))) == 2


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Puts a module called torch before the real one, for children too."""

    def install(source):
        (tmp_path / "torch.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        torch_facts._answer.cache_clear()

    yield install
    torch_facts._answer.cache_clear()


FAKE = """
import os, sys
sys.path.insert(0, {root!r})
from op_tests.devices.fake_torch import cuda_properties, fake_torch
words = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3").split(",")
fake = fake_torch(*[cuda_properties(int(word)) for word in words])
version, cuda = fake.version, fake.cuda
print("a word from somebody's sitecustomize")
open({count!r}, "a").write(".")
"""


def test_a_child_is_asked_once_for_each_mask(installed, tmp_path):
    count = tmp_path / "count"
    installed(FAKE.format(root=str(Path(__file__).parents[2]), count=str(count)))
    assert len(ask_torch("cuda", NO_MASK)) == 4
    assert [facts.uuid[:12] for facts in ask_torch("cuda", Mask("CUDA_VISIBLE_DEVICES", ("3", "1", "3")))] == [
        "GPU-00000003",
        "GPU-00000001",
    ]
    assert len(ask_torch("cuda", NO_MASK)) == 4
    assert count.read_text() == ".."


def test_a_child_that_dies_is_one_clear_line(installed):
    installed("import os, sys\nprint('half an', file=sys.stderr)\nprint('answer', file=sys.stderr)\nos._exit(3)")
    with pytest.raises(NoDeviceError, match=r"no visible GPU: asking torch ended with code 3: answer$"):
        ask_torch("cuda", NO_MASK)


def test_a_child_that_hangs_is_ended(installed, monkeypatch):
    installed("import time\ntime.sleep(60)")
    monkeypatch.setattr(torch_facts, "CHILD_TIMEOUT_S", 0.5)
    with pytest.raises(NoDeviceError, match=r"did not say what it sees within 0.5 s"):
        ask_torch("cuda", NO_MASK)
