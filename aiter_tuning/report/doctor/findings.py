"""From facts to findings: what is well, what is not, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from aiter_tuning.report.doctor.facts import Facts, Finding, LockTrial, Place, Verdict
from aiter_tuning.report.doctor.gpu_findings import gpu_findings
from aiter_tuning.report.doctor.host_findings import host_findings
from aiter_tuning.report.doctor.noise import trial_findings

NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "afs", "9p", "fuse")
OUTPUT, COMPILE_CACHE, SHARED_MEMORY, TEMPORARY, STATE = (
    "output",
    "compile cache",
    "shared memory",
    "temporary files",
    "state",
)
"""What the places are called."""

_LITTLE = {OUTPUT: 100 << 20, COMPILE_CACHE: 1 << 30, SHARED_MEMORY: 64 << 20, TEMPORARY: 256 << 20, STATE: 1 << 20}
"""Free bytes below which a run may not come to its end."""
_NONE_LEFT = 1 << 20


def findings_of(facts: Facts) -> tuple[Finding, ...]:
    """Everything that was looked at, in the order in which a person would ask."""
    findings = [*_device(facts), *_packages(facts)]
    for gpu in facts.gpus:
        findings += gpu_findings(gpu)
    findings += host_findings(facts)
    for place in facts.places:
        findings.append(place_finding(place))
    if facts.locks is not None:
        findings.append(lock_finding(facts.locks))
    if facts.trial is not None:
        findings += trial_findings(facts.trial)
    return tuple(findings)


def worst(findings: Sequence[Finding]) -> Verdict:
    """The verdict on the machine."""
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in (Verdict.bad, Verdict.warning) if verdict in verdicts), Verdict.ok)


def _device(facts: Facts) -> list[Finding]:
    if not facts.devices:
        return [Finding("device", Verdict.bad, facts.device_problem or "there is none", "see docs/devices.md")]
    first = facts.devices[0]
    unit = "cores" if facts.kind == "cpu" else "CUs"
    count = f"{len(facts.devices)} × " if len(facts.devices) > 1 else ""
    found = f"{count}{first.gpu_model} ({first.gfx}, {first.cu_num} {unit})"
    if facts.kind != "cpu":
        found += f", driver {facts.driver or 'unknown'}"
    findings = []
    if facts.kind == "cpu" and facts.torch_kind != "cpu":
        findings.append(
            Finding(
                "device",
                Verdict.warning,
                f"{found}; no GPU, though {facts.torch_build}: {facts.device_problem or 'the CPU was asked for'}",
                "families of GPUs cannot be tuned here; see docs/devices.md if there should be one",
            )
        )
    else:
        findings.append(Finding("device", Verdict.ok, found))
    return findings + [
        Finding("device", Verdict.warning, note, "name the devices to use with --device") for note in facts.device_notes
    ]


def _packages(facts: Facts) -> list[Finding]:
    versions = ", ".join(f"{name} {version}" for name, version in facts.packages.items() if version)
    findings = []
    if not facts.packages.get("torch"):
        findings.append(
            Finding("versions", Verdict.bad, "torch is not installed", "workers need it: pip install torch")
        )
    wanted = {
        "cuda": (
            ("triton", "families of Triton kernels cannot be tuned"),
            ("nvidia-ml-py", "clocks, throttling and processes of others go unnoticed"),
            ("cupti-python", "kernels are timed by events around graphs, which tell less (docs/timing.md)"),
        ),
        "hip": (
            ("triton", "families of Triton kernels cannot be tuned"),
            ("amdsmi", "clocks, throttling and processes of others go unnoticed"),
        ),
    }.get(facts.kind, ())
    for package, effect in wanted:
        if not facts.packages.get(package):
            advice = (
                "install the release that fits your driver" if package != "nvidia-ml-py" else f"pip install {package}"
            )
            findings.append(Finding("versions", Verdict.warning, f"{package} is not installed: {effect}", advice))
    return [Finding("versions", Verdict.ok, versions or "none"), *findings]


def place_finding(place: Place) -> Finding:
    """Whether a run can write there."""
    found = f"{place.path}"
    told = [place.file_system] if place.file_system else []
    if place.free_bytes >= 0:
        told.append(f"{_size(place.free_bytes)} free")
    if told:
        found += f" ({', '.join(told)})"
    if place.problem:
        return Finding(place.name, Verdict.bad, f"{found}: {place.problem}", _where_else(place.name))
    if 0 <= place.free_bytes < _LITTLE.get(place.name, 0):
        verdict = Verdict.bad if place.free_bytes < _NONE_LEFT else Verdict.warning
        return Finding(place.name, verdict, found, f"make room; {_where_else(place.name)}")
    if place.name == COMPILE_CACHE and place.file_system.startswith(NETWORK_FILE_SYSTEMS):
        return Finding(
            place.name, Verdict.warning, found, f"over a network every kernel loads late; {_where_else(place.name)}"
        )
    return Finding(place.name, Verdict.ok, found)


def _where_else(name: str) -> str:
    return {
        COMPILE_CACHE: "TRITON_CACHE_DIR names another directory",
        TEMPORARY: "TMPDIR names another directory",
        STATE: "AITER_TUNING_HOME names another directory",
        SHARED_MEMORY: "give the container more (`docker run --shm-size`)",
    }.get(name, "write to another directory (--directory looks at it)")


def lock_finding(locks: LockTrial) -> Finding:
    """Whether two runs may share a tuned CSV there."""
    alone = "let one run at a time write there, or keep tuned CSVs on another file system"
    if locks.problem:
        return Finding("file locks", Verdict.warning, f"{locks.path}: could not be tried: {locks.problem}", alone)
    if not locks.excludes:
        return Finding("file locks", Verdict.bad, f"{locks.path}: two processes had one lock at a time", alone)
    if not locks.hands_over:
        return Finding("file locks", Verdict.bad, f"{locks.path}: a lock that was given back stayed locked", alone)
    if not locks.links:
        return Finding(
            "file locks",
            Verdict.warning,
            f"{locks.path}: locks work, hard links do not",
            "two runs that begin at the same moment may lose the first rows of one's checkpoint",
        )
    return Finding("file locks", Verdict.ok, f"{locks.path}: they work between two processes")


def _size(size: int) -> str:
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if size >> shift:
            return f"{size / (1 << shift):.1f} {unit}"
    return f"{size >> 10} KiB"


def compile_cache_path(environ: Mapping[str, str]) -> str:
    """Where Triton keeps what it compiled, by its own rule."""
    if cache := environ.get("TRITON_CACHE_DIR"):
        return cache
    return os.path.join(environ.get("TRITON_HOME") or os.path.expanduser("~"), ".triton", "cache")
