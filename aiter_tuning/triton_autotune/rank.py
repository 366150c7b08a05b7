"""Which process of a job this is."""

from __future__ import annotations

import logging
import os
import sys

logger = logging.getLogger(__name__)


def current_rank() -> int:
    """The process group's rank, else ``RANK``, else ``SLURM_PROCID``, else 0 with a warning."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    for name in ("RANK", "SLURM_PROCID"):
        value = os.environ.get(name, "")
        if value.isdecimal():
            return int(value)
    logger.warning("no process group, RANK or SLURM_PROCID: this process counts as rank 0")
    return 0
