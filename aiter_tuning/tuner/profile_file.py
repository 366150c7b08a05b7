"""Every candidate's result in upstream's columns, appended to the file that ``-o2`` names.

A shape's rows are appended together when all its candidates have a result, also those that an earlier, interrupted run
measured; the file is never read back, and never de-duplicated. ``status`` and ``detail`` follow upstream's columns and
tell a hang from a refusal, which ``us`` alone (``inf``, ``-1``) does not.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path

from aiter_tuning.devices.device import Device
from aiter_tuning.keys import DEVICE_COLUMNS, Key
from aiter_tuning.measurement import Measurement
from aiter_tuning.tables.atomic import write_all
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.plan import ShapePlan
from aiter_tuning.tuner.publishing import WriteFailedError, rates

_RESULT_COLUMNS = ("kernelId", "splitK", "us", "kernelName", "tflops", "bw", "errRatio", "status", "detail")
_NEEDED = ("us", "kernelName", "status", "detail")
"""Without a status a failure would read as a row; a tuned table has none."""
_NULL = "Null"


class ProfileFile:
    """The file of ``-o2``; made at the first row, appended to where it exists."""

    def __init__(self, path: Path, key: Key, device: Device) -> None:
        """Opens nothing yet.

        Raises:
            UsageError: the file exists with a header that has no place for these results.
        """
        self._path = path
        self._key = key
        self._device = device
        self._columns = (*DEVICE_COLUMNS, *key.columns, *_RESULT_COLUMNS)
        header = self._header()
        self._exists = bool(header)
        if header:
            missing = [name for name in (*key.required, *_NEEDED) if name not in header]
            if missing:
                raise UsageError(
                    f"{path}:1: has no column {', '.join(missing)}, so results cannot be appended; name another file"
                )
            self._columns = tuple(header)

    def _header(self) -> list[str]:
        if not self._path.exists():
            return []
        try:
            with self._path.open(newline="", encoding="utf-8-sig") as file:
                return [name.strip() for name in next(csv.reader(file), [])]
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{self._path}: cannot be read as a CSV file, {error}; name another file") from error

    def append(self, plan: ShapePlan, measurements: Mapping[str, Measurement]) -> None:
        """Appends a shape's results in one write.

        Raises:
            WriteFailedError: the disk is full, or the file cannot be opened any more.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._exists:
            writer.writerow(self._columns)
        for candidate in plan.candidates:
            measurement = measurements[candidate.name]
            tflops, bw = rates(plan.work, measurement.us) if measurement.us > 0 else (0.0, 0.0)
            cells = {
                "gfx": self._device.gfx,
                "cu_num": self._device.cu_num,
                "gpu_model": self._device.gpu_model,
                **self._key.format(plan.shape),
                "kernelId": candidate.kernel_id,
                "splitK": candidate.split_k,
                "us": f"{round(measurement.us, 4):g}" if measurement.us < 0 else round(measurement.us, 4),
                "kernelName": candidate.name,
                "tflops": tflops,
                "bw": bw,
                "errRatio": round(measurement.err_ratio, 4),
                "status": str(measurement.status),
                "detail": measurement.detail,
            }
            writer.writerow([cells.get(column, _NULL) for column in self._columns])
        try:
            self._write(text.getvalue())
        except OSError as error:
            raise WriteFailedError(f"{self._path}: could not be written: {error.strerror or error}") from error
        self._exists = True

    def _write(self, text: str) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                text = "\n" + text
            write_all(descriptor, text.encode())
        except OSError:
            os.ftruncate(descriptor, size)  # a full disk leaves whole rows only
            raise
        finally:
            os.close(descriptor)
