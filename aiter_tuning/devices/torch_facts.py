"""What torch knows, without torch in this process.

The parent of a run never imports torch, let alone creates a context. What torch was built for stands in its
``version.py``; what devices it sees is asked of a short-lived child, which prints one line of JSON.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.devices.device import NoDeviceError
from aiter_tuning.devices.identity import GpuFacts, Identity, facts_of
from aiter_tuning.devices.visibility import Mask, distinct, mask_variable

CHILD_TIMEOUT_S = 120.0
_MARK = "aiter_tuning devices: "
_CHILD = "from aiter_tuning.devices.torch_facts import main; main()"
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])


class TorchBuild(NamedTuple):
    """What the installed torch can drive."""

    version: str
    """Empty: torch is not installed."""
    kind: str
    """``cuda``, ``hip`` or ``cpu``."""
    toolkit: str = ""
    """Version of CUDA or ROCm."""

    def __str__(self) -> str:
        if not self.version:
            return "torch is not installed"
        built_for = {"cuda": f"CUDA {self.toolkit}", "hip": f"ROCm {self.toolkit}"}.get(self.kind, "the CPU only")
        return f"torch {self.version} is built for {built_for}"


def torch_build() -> TorchBuild:
    """What torch was built for; read from its files, not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return TorchBuild("", "cpu")
    try:
        return parse_version_file(Path(spec.origin).with_name("version.py").read_text())
    except (OSError, SyntaxError):
        return TorchBuild("of unknown version", "cpu")


def parse_version_file(text: str) -> TorchBuild:
    """The build that a torch's ``version.py`` describes."""
    values: dict[str, Any] = {}
    for node in ast.parse(text).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Constant):
            values.update((target.id, value.value) for target in targets if isinstance(target, ast.Name))
    version = str(values.get("__version__", "of unknown version"))
    for kind in ("hip", "cuda"):
        if values.get(kind):
            return TorchBuild(version, kind, str(values[kind]))
    return TorchBuild(version, "cpu")


def ask_torch(kind: str, mask: Mask) -> tuple[GpuFacts, ...]:
    """The devices that torch sees under the mask, in its order; asked once for each mask.

    Raises:
        NoDeviceError: torch could not say; with its reason.
    """
    # The child gets the mask as it was understood here: CUDA would show nothing for a repeated word.
    changes = {} if mask.words is None else {mask_variable(kind): ",".join(distinct(mask.words))}
    return _answer(tuple(sorted({**os.environ, **changes}.items())), tuple(sys.path))


@functools.lru_cache(maxsize=8)
def _answer(environ: tuple[tuple[str, str], ...], path: tuple[str, ...]) -> tuple[GpuFacts, ...]:
    where = os.pathsep.join((*filter(None, path), _PACKAGE_ROOT))
    try:
        child = subprocess.run(
            [sys.executable, "-c", _CHILD],
            env={**dict(environ), "PYTHONPATH": where},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CHILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise NoDeviceError(f"no visible GPU: torch did not say what it sees within {CHILD_TIMEOUT_S:g} s") from None
    lines = [line for line in child.stdout.splitlines() if line.startswith(_MARK)]
    if child.returncode or not lines:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        raise NoDeviceError(f"no visible GPU: asking torch ended with code {child.returncode}: {last}")
    return parse_answer(lines[-1].removeprefix(_MARK))


def parse_answer(text: str) -> tuple[GpuFacts, ...]:
    """The facts in a child's answer.

    Raises:
        NoDeviceError: torch sees nothing and says why.
    """
    answer = json.loads(text)
    if answer["error"]:
        raise NoDeviceError(f"no visible GPU: torch says: {answer['error']}")
    return tuple(GpuFacts(**{**facts, "identity": Identity(*facts["identity"])}) for facts in answer["devices"])


def describe_devices(torch: Any) -> dict[str, Any]:
    """The child's answer: every device that this torch sees, or why it sees none."""
    hip = torch.version.hip is not None
    try:
        # Says what is wrong, where something is. Before, torch counts by the mask itself, and looks a UUID of HIP's up
        # among serial numbers of boards (pytorch/pytorch#172962); afterwards it goes by what the runtime shows.
        torch.cuda.init()
        devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    except (AssertionError, RuntimeError) as error:  # a torch without CUDA asserts
        return {"devices": [], "error": " ".join(str(error).split())}
    return {"devices": [facts_of(one, hip=hip, environ=os.environ)._asdict() for one in devices], "error": ""}


def main() -> None:
    """The child."""
    import torch

    sys.stdout.write(f"\n{_MARK}{json.dumps(describe_devices(torch))}\n")
