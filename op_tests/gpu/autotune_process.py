"""A process that launches the autotuned GEMM under a policy, when told to, and says what it chose and computed.

It imports and makes its context at once, says ``ready`` and waits for a line on its input, so that many can be
started together and then measured one at a time.
"""

import hashlib
import json
import sys
import time

import torch

from aiter_tuning.triton_autotune import choice_log, install
from op_tests.gpu import autotuned_gemm


def main(policy):
    torch.zeros(1, device="cuda")
    install(policy)
    print("ready", flush=True)
    sys.stdin.readline()
    results = []
    for shape in autotuned_gemm.SHAPES:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        _, _, c = autotuned_gemm.multiply(autotuned_gemm.gemm, *shape)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        bits = hashlib.sha256(c.cpu().numpy().tobytes()).hexdigest()
        results.append({"config": str(autotuned_gemm.gemm.best_config), "bits": bits, "first_call_ms": seconds * 1e3})
    print(json.dumps({"results": results, "choices": choice_log()}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
