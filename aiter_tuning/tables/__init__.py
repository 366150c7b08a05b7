"""Files: shapes, tuned tables, checkpoints, and the locks and atomic writes that keep them whole.

::

    csv_reader   bytes ──► named cells, or one clear line about what is wrong and where (csv_header: the first line)
      ├─ shapes       a file of shapes ──► distinct shapes of a family
      ├─ tuned        a tuned table: find a row, merge rows (tuned_reader, tuned_row: what its lines are)
      │    ├─ preference   which of several rows with one key counts
      │    ├─ merging      several tables as one; merge_file writes them as one
      │    └─ checking, difference   what is wrong with tables, what changed between two
      ├─ evidence     why a row is there
      └─ checkpoint   one row per event of a run, appended; read again by the run that resumes
    atomic, lock      how a file is replaced, and by whom

Nothing here imports torch, and pandas only inside ``read_csv``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiter_tuning.lazy_names import lazy_names

if TYPE_CHECKING:
    from aiter_tuning.tables.checkpoint import Checkpoint, RunFingerprint
    from aiter_tuning.tables.csv_reader import CsvError, read_csv
    from aiter_tuning.tables.lock import FileLock
    from aiter_tuning.tables.tuned import TunedCsv, TunedRow

_HOMES = {
    "Checkpoint": "checkpoint",
    "CsvError": "csv_reader",
    "FileLock": "lock",
    "RunFingerprint": "checkpoint",
    "TunedCsv": "tuned",
    "TunedRow": "tuned",
    "read_csv": "csv_reader",
}

__all__ = ["Checkpoint", "CsvError", "FileLock", "RunFingerprint", "TunedCsv", "TunedRow", "read_csv"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
