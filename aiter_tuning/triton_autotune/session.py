"""One policy in force: its tables, what it has chosen so far, and what it has written down.

A session lives from the ``install`` of a policy to the next one. It knows nothing of how Triton is patched.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.agreement import Agreement
from aiter_tuning.triton_autotune.arch import arch_tag
from aiter_tuning.triton_autotune.choices import ChoiceLog, Place
from aiter_tuning.triton_autotune.config_json import config_signature
from aiter_tuning.triton_autotune.deny import allowed
from aiter_tuning.triton_autotune.environment import triton_version
from aiter_tuning.triton_autotune.identity import (
    ANY_KEY,
    Fingerprint,
    fingerprint,
    kernel_module,
    kernel_name,
    qualified_name,
    tag_of,
    tuning_key,
)
from aiter_tuning.triton_autotune.policy import AutotunePolicy
from aiter_tuning.triton_autotune.recording import Recorder
from aiter_tuning.triton_autotune.selection import Choice, chaos_choice, choose
from aiter_tuning.triton_autotune.table import OverlayTable, load_overlay

logger = logging.getLogger(__name__)


class Role(enum.Enum):
    """What a policy means for one kernel."""

    outside = "outside"
    """Not in scope: nothing happens to it."""
    invariant = "invariant"
    """In scope, but all its configs give the same bits: Triton goes on timing it."""
    observed = "observed"
    """Triton times it, and we note what it found."""
    pinned = "pinned"
    """Never timed."""

    @property
    def state(self) -> str:
        """The word that is logged."""
        return {Role.pinned: "PINNED", Role.invariant: "TIMED"}.get(self, "UNPINNED")


class Kernel(NamedTuple):
    """What is known of a kernel's identity."""

    qualified: str
    names: tuple[str, ...]
    """What a table may call it, the most exact first."""
    fingerprint: Fingerprint
    tag: str


def identify(autotuner: Any) -> Kernel:
    """Reads the kernel's source once; costs some 100 µs, so it is asked at a kernel's first launch only."""
    qualified, print_ = qualified_name(autotuner), fingerprint(autotuner)
    tag = tag_of(print_)
    return Kernel(qualified, (f"{qualified}#{tag}", qualified, kernel_name(autotuner)), print_, tag)


class Session:
    """State of one installed policy; thread-safe."""

    def __init__(self, policy: AutotunePolicy) -> None:
        self.policy = policy
        self.log = ChoiceLog()
        self.agreement = Agreement(self.log)
        self.recorder = Recorder(policy.record_path) if policy.mode == "record" and policy.record_path else None
        self._tables: dict[str, OverlayTable] = {}
        self._enumerated: set[str] = set()
        self._lock = threading.RLock()

    def role(self, autotuner: Any) -> Role:
        """What the policy means for this kernel."""
        policy = self.policy
        if not policy.in_scope(kernel_module(autotuner)):
            return Role.outside
        if policy.is_invariant(qualified_name(autotuner)):
            return Role.invariant if policy.mode == "pinned" else Role.outside
        return Role.pinned if policy.mode == "pinned" else Role.observed

    def arch(self) -> str:
        """The architecture to choose for."""
        return self.policy.arch or arch_tag()

    def table(self, arch: str) -> OverlayTable:
        """The tables for an architecture, read when they are first needed."""
        with self._lock:
            if arch not in self._tables:
                self._tables[arch] = load_overlay(arch, self.policy.table_path)
            return self._tables[arch]

    def enumerate(self, autotuner: Any, role: Role) -> None:
        """Says once for each kernel with several configs what becomes of it, if that was asked for."""
        count = len(autotuner.configs)
        if not self.policy.enumerate_autotuners or count <= 1:
            return
        qualified = qualified_name(autotuner)
        with self._lock:
            if qualified in self._enumerated:
                return
            self._enumerated.add(qualified)
        logger.warning("[autotune] %s %s (%d configs)", role.state, qualified, count)

    def without_denied(self, kernel: Kernel, candidates: Sequence[Any], arch: str) -> list[Any]:
        """The candidates that no deny rule covers.

        Raises:
            RuntimeError: there are none.
        """
        rules = self.table(arch).deny_rules
        left = allowed(rules, kernel.names, arch, triton_version(), candidates) if rules else list(candidates)
        if not left:
            raise RuntimeError(f"No valid configs for {kernel.qualified} on {arch}: pruned or denied, all of them")
        return left

    def pin(
        self, autotuner: Any, kernel: Kernel, candidates: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Choice:
        """The config of a launch; nothing is noted yet."""
        arch = self.arch()
        left = self.without_denied(kernel, candidates, arch)
        if self.policy.chaos:
            return Choice(chaos_choice(autotuner, left, args, kwargs), "chaos")
        return choose(
            autotuner,
            left,
            args,
            kwargs,
            table=self.table(arch),
            on_miss=self.policy.on_miss,
            block_sizes=self.policy.block_sizes,
            on_stale=self.policy.on_stale,
            arch=arch,
        )

    def note_pinned(self, place: Place, choice: Choice) -> None:
        """A pinned launch has succeeded."""
        detail = f";{choice.detail}" if choice.detail else ""
        self.log.put(place, f"{config_signature(choice.config)};pinned{detail}", choice.source)

    def note_single(self, place: Place, config: Any, role: Role) -> None:
        """A kernel with one config was launched."""
        how = "pinned" if role is Role.pinned else "timed"
        self.log.put(place, f"{config_signature(config)};{how}", "single")

    def note_timed(
        self, place: Place, winner: Any, times: Mapping[Any, Any] | None, print_: Fingerprint, from_disk: bool = False
    ) -> None:
        """Triton has chosen."""
        if self.recorder is not None:
            with self._lock:
                self.recorder.add(place, winner, times, print_, from_disk)
        self.log.put(place, f"{config_signature(winner)};timed", "timed")

    def place(self, autotuner: Any, kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Place:
        """Which choice a launch is."""
        return Place(self.arch(), kernel.qualified, kernel.tag, tuning_key(autotuner, args, kwargs))

    def single_place(self, kernel: Kernel) -> Place:
        """Which choice a kernel with one config is."""
        return Place(self.arch(), kernel.qualified, kernel.tag, ANY_KEY)

    def sources(self) -> dict[str, dict[str, int]]:
        """For each kernel, how many choices came from where."""
        return self.log.counts()

    def flush(self) -> None:
        """Puts what was recorded on file."""
        if self.recorder is not None:
            with self._lock:
                self.recorder.flush()
