"""One of several NCCL ranks, a GPU each: agrees, then is made to differ."""

import os
import sys

import torch
import torch.distributed as dist

from aiter_tuning.triton_autotune import RanksDisagreeError, install, verify_choices
from op_tests.gpu import autotuned_gemm

if __name__ == "__main__":
    store, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=size)
    policy = {"mode": "pinned", "modules": [autotuned_gemm.__name__], "verify_strict": True}
    install(policy)
    autotuned_gemm.multiply(autotuned_gemm.gemm, 64, 64, 64)
    said = [verify_choices(), verify_choices()]
    install(policy | {"chaos": True})
    autotuned_gemm.multiply(autotuned_gemm.gemm, 64, 64, 64)
    try:
        said.append(verify_choices())
    except RanksDisagreeError:
        said.append("raised")
    print(said, flush=True)
    dist.destroy_process_group()
