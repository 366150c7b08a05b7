"""What the host means for tuning: who else uses its cores, how much of them is ours, what is in the environment."""

from __future__ import annotations

from collections.abc import Mapping

from aiter_tuning.devices.host_load import HostLoad, crowding
from aiter_tuning.devices.visibility import CUDA_MASK, HIP_MASK, ROCR_MASK
from aiter_tuning.report.doctor.facts import Facts, Finding, Verdict

_LITTLE_MEMORY = 2 << 30
_FEW_FILES = 256

_MISLEADING = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "HIP_LAUNCH_BLOCKING": "every launch waits for its kernel",
    "AMD_SERIALIZE_KERNEL": "kernels wait for each other",
    "TRITON_INTERPRET": "kernels run in Python, one block after the other",
    "TORCH_USE_CUDA_DSA": "kernels check for errors of their own",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "every allocation goes to the driver",
    "COMPUTE_SANITIZER_INJECTION64_PATH": "a sanitizer watches every access",
}
_COSTLY = {
    "TRITON_ALWAYS_COMPILE": "nothing that was compiled is used again",
    "CUDA_INJECTION64_PATH": "a profiler watches; times come from another timer",
    "NVTX_INJECTION64_PATH": "a profiler watches; times come from another timer",
    "LD_PRELOAD": "a library is loaded into every worker",
    "TRITON_DEBUG": "kernels are compiled with checks",
}
MASKS = (CUDA_MASK, HIP_MASK, ROCR_MASK)
WATCHED = (*_MISLEADING, *_COSTLY, *MASKS, "CUDA_DEVICE_ORDER", "TRITON_CACHE_DIR", "TRITON_HOME")
"""Variables that the findings look at."""

_OFF = ("", "0", "false", "off", "no")


def host_findings(facts: Facts) -> list[Finding]:
    """Load, cores, memory, environment."""
    on_gpu = facts.kind in ("cuda", "hip")
    findings = []
    if facts.load is not None:
        findings.append(load_finding(facts.load, on_gpu=on_gpu))
    findings += _core_findings(facts, on_gpu=on_gpu)
    if 0 <= facts.available_bytes < _LITTLE_MEMORY:
        findings.append(
            Finding(
                "memory",
                Verdict.warning,
                f"{facts.available_bytes >> 20} MiB are available",
                "each worker and its standby hold torch; free some, or tune fewer lanes at a time (--mp)",
            )
        )
    if 0 <= facts.open_files < _FEW_FILES:
        findings.append(
            Finding(
                "open files", Verdict.warning, f"a process may have {facts.open_files} files open", "raise `ulimit -n`"
            )
        )
    return [*findings, *environment_findings(facts.environ)]


def load_finding(load: HostLoad, *, on_gpu: bool) -> Finding:
    """Whether others keep the cores busy."""
    found, crowd = f"{load.busy_cores:.1f} of {load.cores} cores are busy", crowding(load, on_gpu=on_gpu)
    if not crowd:
        return Finding("host load", Verdict.ok, found)
    if load.processes:
        found += ": " + ", ".join(f"{one.name} ({one.pid}) {one.cores:.1f}" for one in load.processes)
    what = "launches come late" if on_gpu else "lanes measure what they leave over"
    verdict = Verdict.bad if crowd == "crowded" else Verdict.warning
    return Finding("host load", verdict, found, f"{what}: wait until they have ended, or keep them off these cores")


def _core_findings(facts: Facts, *, on_gpu: bool) -> list[Finding]:
    findings = []
    lane_cores = sum(len(device.cores) for device in facts.devices)
    quota, needed = facts.quota_cores, 2.0 if on_gpu else float(max(1, lane_cores))
    if quota is not None and quota < needed:
        findings.append(
            Finding(
                "cores",
                Verdict.warning if on_gpu else Verdict.bad,
                f"this container may use {quota:.2g} cores' time, and {needed:g} are needed",
                "work is stopped in the midst of a measurement once the share is used up: raise the CPU quota",
            )
        )
    slow = sorted(facts.governors - {"performance"})
    if slow and not on_gpu:
        findings.append(
            Finding(
                "governor",
                Verdict.warning,
                f"cores run under the governor {', '.join(slow)}",
                "clocks follow the load: `cpupower frequency-set -g performance` keeps them up",
            )
        )
    return findings


def environment_findings(environ: Mapping[str, str]) -> list[Finding]:
    """Variables under which times mean something else."""
    findings = []
    for names, verdict in ((_MISLEADING, Verdict.bad), (_COSTLY, Verdict.warning)):
        for name, effect in names.items():
            if environ.get(name, "").strip().lower() not in _OFF:
                findings.append(Finding("environment", verdict, f"{name}={environ[name]}: {effect}", f"unset {name}"))
    masks = [f"{name}={environ[name]}" for name in MASKS if name in environ]
    if HIP_MASK in environ and environ.get(CUDA_MASK, environ[HIP_MASK]) != environ[HIP_MASK]:
        findings.append(
            Finding("visibility", Verdict.warning, " ".join(masks), f"HIP reads {HIP_MASK} only: unset {CUDA_MASK}")
        )
    elif masks:
        findings.append(Finding("visibility", Verdict.ok, " ".join(masks)))
    return findings
