"""Which device a lookup asks for: the one that the tuner names, found without torch and without a context."""

import subprocess
import sys

from aiter_tuning.devices.cpu import cpu_lanes
from aiter_tuning.devices.identity import Identity
from aiter_tuning.serving.here import identity_here


def test_an_operator_for_cpus_asks_for_the_lane_that_a_run_tunes_on():
    (lane,) = cpu_lanes(1)
    assert identity_here(("cpu",)) == (lane.gfx, lane.cu_num, lane.gpu_model)
    assert identity_here(("cuda", "hip"), "cpu") == identity_here(("cpu",))


def test_an_identity_is_taken_as_it_is():
    here = Identity("sm90", 132, "NVIDIA H200")
    assert identity_here(("cuda",), here) is here


def test_a_whole_lookup_loads_neither_torch_nor_pandas(tmp_path):
    code = (
        "import sys\n"
        "from aiter_tuning import lookup, is_tuned\n"
        "assert lookup('gemm_cpu', tuned=sys.argv[1], M=1, N=64, K=64) is None\n"
        "assert not is_tuned('gemm_bf16', M=1, N=64, K=64, gfx='sm90', cu_num=132, gpu_model='NVIDIA H200')\n"
        "print(sorted({'torch', 'triton', 'pandas', 'numpy', 'scipy', 'rich'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "none.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
