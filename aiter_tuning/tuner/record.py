"""Opening the record of a run: this run's checkpoint, an interrupted one's, or a finished one's for ``--retry``."""

from __future__ import annotations

from aiter_tuning.keys import Key
from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint, checkpoints_beside
from aiter_tuning.tuner.arguments import TuneArguments, UsageError
from aiter_tuning.tuner.reporter import Reporter

_LINES_WITHOUT_ROWS = 2
"""The header, and the row that names the run."""


def has_record(arguments: TuneArguments) -> bool:
    """Whether an earlier run left something that may have to be continued."""
    path = arguments.checkpoint_file
    return bool(arguments.retry) or (path.parent.is_dir() and bool(checkpoints_beside(path)))


def resume_notes(arguments: TuneArguments) -> list[str]:
    """Says which measurements a run would not make again."""
    path = arguments.checkpoint_file
    if arguments.fresh or not path.parent.is_dir():
        return []
    return [f"{found}: what it has on record is not measured again" for found in checkpoints_beside(path)]


def open_record(arguments: TuneArguments, key: Key, fingerprint: RunFingerprint, reporter: Reporter) -> Checkpoint:
    """The checkpoint of this run; what had to be set aside or dropped for it is told to the reporter.

    Raises:
        UsageError: it cannot be made.
    """
    try:
        checkpoint = Checkpoint.open(
            arguments.tune_file,
            key,
            fingerprint,
            path=arguments.checkpoint_file if arguments.compare else arguments.checkpoint,
            fresh=arguments.fresh,
            with_profile=not (arguments.fresh or arguments.retune),
        )
    except OSError as error:
        path = arguments.checkpoint_file
        raise UsageError(f"{path}: the checkpoint cannot be opened, {error.strerror or error}") from error
    if checkpoint.set_aside is not None:
        reporter.note(_set_aside_text(checkpoint))
    if checkpoint.dropped_tail is not None:
        reporter.note(f"{checkpoint.path}: dropped its unterminated last line {checkpoint.dropped_tail[:60]!r}")
    for warning in checkpoint.warnings:
        reporter.note(warning)
    if checkpoint.path != arguments.checkpoint_file:
        reporter.note(f"this run keeps {checkpoint.path}, beside those of other runs of the same output")
    return checkpoint


def put_away(checkpoint: Checkpoint, *, is_over: bool) -> str:
    """Where the record of a run is found once it has ended: it has become a profile if the run ``is_over``.

    Empty where there is nothing on record.
    """
    if discard_if_empty(checkpoint):
        return ""
    return str(checkpoint.complete() if is_over else checkpoint.path)


def discard_if_empty(checkpoint: Checkpoint) -> bool:
    """Removes a checkpoint without any row of a candidate: a run that had nothing to do leaves nothing behind."""
    try:
        with checkpoint.path.open("rb") as file:
            lines = sum(1 for _, _ in zip(file, range(_LINES_WITHOUT_ROWS + 1), strict=False))
    except FileNotFoundError:  # completed: it has become a profile
        return False
    if lines > _LINES_WITHOUT_ROWS:
        return False
    checkpoint.path.unlink()
    return True


def _set_aside_text(checkpoint: Checkpoint) -> str:
    aside = checkpoint.set_aside
    assert aside is not None
    if not aside.differing:
        return f"starting anew; the earlier checkpoint is now {aside.path}"
    changes = "; ".join(f"{name}: {old or 'none'} -> {new or 'none'}" for name, (old, new) in aside.differing.items())
    return f"starting anew: the earlier checkpoint, now {aside.path}, was measured under other conditions ({changes})"
