"""Installing a policy in this process, and asking what it did.

One policy is in force at a time, and it can be taken back: ``uninstall`` leaves Triton as it was found.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from aiter_tuning.triton_autotune.choices import digest_of, write_choices
from aiter_tuning.triton_autotune.hooks import Hooks
from aiter_tuning.triton_autotune.policy import AutotunePolicy, active_policy, coerce_policy, set_active_policy
from aiter_tuning.triton_autotune.recording import check_writable
from aiter_tuning.triton_autotune.selection import reset_warnings, warn_if_mamba_env_ignored
from aiter_tuning.triton_autotune.session import Session

logger = logging.getLogger(__name__)

_lock = threading.RLock()
_hooks = Hooks()
_session: Session | None = None
_at_exit_registered = False
_sigterm_before: Any = None
_sigterm_installed = False

PolicyLike = AutotunePolicy | Mapping[str, Any] | None


def install(policy: PolicyLike = None, *, deterministic: bool = False) -> None:
    """Puts a policy in force for this process; None: the default one. An equal policy changes nothing.

    Autotuners made before count as well. No device is touched: tables are read at the first pinned launch. Install
    before other threads launch kernels.

    Args:
        policy: a policy, or a mapping of its fields.
        deterministic: pins where the policy leaves its mode open, as torch's deterministic flag does.

    Raises:
        ImportError: Triton is there and cannot be patched.
        PermissionError: nothing can be written under ``record_path``.
        TypeError, ValueError: the policy means nothing. The policy before it stays in force in all these cases.
    """
    global _session
    wanted = (coerce_policy(policy) or AutotunePolicy()).resolve(deterministic=deterministic)
    with _lock:
        if wanted.intercepts:
            _hooks.prepare()
        if _session is not None and wanted == active_policy():
            return
        if wanted.mode == "record" and wanted.record_path is not None:
            check_writable(wanted.record_path)
        if _session is not None:
            _session.flush()
        reset_warnings()
        _session = Session(wanted)
        set_active_policy(wanted)
        warn_if_mamba_env_ignored(wanted)
        if wanted.intercepts:
            _hooks.start(_session)
        else:
            _hooks.stop()
        _flush_at_the_end(wanted.mode == "record")


def uninstall() -> None:
    """Takes the policy back: Triton's class and every autotuner are as they were, what was recorded is on file."""
    global _session
    with _lock:
        if _session is not None:
            _session.flush()
        _hooks.stop()
        _session = None
        set_active_policy(None)
        reset_warnings()
        _flush_at_the_end(False)


@contextlib.contextmanager
def use_policy(policy: PolicyLike = None, *, deterministic: bool = False) -> Iterator[AutotunePolicy]:
    """``with use_policy(...):`` or ``@use_policy(...)``: a policy for a while, then the one before it.

    For the whole process, not for a thread. The policy before starts anew: its log is empty, and it chooses again
    (the same, since a choice is a function).
    """
    before = active_policy()
    install(policy, deterministic=deterministic)
    now = active_policy()
    assert now is not None
    try:
        yield now
    finally:
        if before is None:
            uninstall()
        else:
            install(before)


def choice_log() -> dict[str, str]:
    """``arch|kernel|tuning key`` → ``config;pinned`` or ``config;timed``, of everything chosen under the policy."""
    return _session.log.choices() if _session is not None else {}


def choice_digest() -> str:
    """32 hex digits, equal for equal choice logs."""
    return digest_of(choice_log())


def choice_sources() -> dict[str, dict[str, int]]:
    """For each kernel, how many choices came from where: ``table``, ``table*``, ``min_cost``, ``timed``, …"""
    return _session.sources() if _session is not None else {}


def write_choice_log(path: str | os.PathLike[str]) -> None:
    """Puts the choice log on file, for ``aiter-tune autotune diff`` and ``coverage``."""
    sources = _session.log.sources() if _session is not None else {}
    write_choices(path, choice_log(), sources)


def verify_choices(group: Any = None) -> bool:
    """Whether the members of a process group chose alike since the last check; all of them have to call it.

    True without a process group. On disagreement the group's first rank warns.

    Raises:
        RanksDisagreeError: they disagree and the policy is ``verify_strict``; on every member.
    """
    session = _session
    if session is None:
        return True
    return session.agreement.verify(group, session.policy.verify_strict)


def maybe_verify_choices(iteration: int, group: Any = None) -> bool | None:
    """:func:`verify_choices` if the policy wants it at this step (step 0 counts); None if it does not."""
    policy = active_policy()
    if policy is None or policy.verify_every <= 0 or iteration % policy.verify_every != 0:
        return None
    return verify_choices(group)


def _flush_at_the_end(recording: bool) -> None:
    global _at_exit_registered
    if recording and not _at_exit_registered:
        _at_exit_registered = True
        atexit.register(_flush)
    _catch_sigterm(recording)


def _flush() -> None:
    if _session is not None:
        _session.flush()


def _catch_sigterm(wanted: bool) -> None:
    """While recording, SIGTERM writes what there is first, and then does what it did before."""
    global _sigterm_before, _sigterm_installed
    if wanted == _sigterm_installed or threading.current_thread() is not threading.main_thread():
        return
    if wanted:
        before = signal.getsignal(signal.SIGTERM)
        if before is None or before is signal.SIG_IGN:  # set outside Python, or not to end us: leave it
            return
        _sigterm_before = before
        signal.signal(signal.SIGTERM, _on_sigterm)
    elif signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _sigterm_before)
    _sigterm_installed = wanted


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    _flush()
    if callable(_sigterm_before):
        _sigterm_before(number, frame)
        return
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
