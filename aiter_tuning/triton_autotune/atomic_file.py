"""Replacing a file so that every reader, and every crash, sees the old one or the new one, whole."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Replaces the file by ``value`` as JSON: indent 1, sorted keys, UTF-8, a newline at the end.

    Raises:
        OSError: it could not be written; the file is as it was and nothing is left beside it.
    """
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
