"""``aiter-tune poison``: candidates that killed or hung a worker, shown and cleared."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from aiter_tuning.devices.identity import Identity
from aiter_tuning.quantities import counted
from aiter_tuning.tuner.arguments import UsageError
from aiter_tuning.tuner.poison import Poisoned
from aiter_tuning.tuner.poison_list import PoisonFile


def run(args: argparse.Namespace) -> int:
    """Lists what matches the filters, or takes it off the list.

    Raises:
        UsageError: to clear everything has to be said, and nothing beside it.
        OSError: the list cannot be read or written.
    """
    file = PoisonFile()
    filters = {
        name: value for name in ("family", "candidate", "fingerprint", "model") if (value := getattr(args, name))
    }
    if args.action == "clear" and not filters and not args.all:
        raise UsageError("clear what? Name a --family, --candidate, --fingerprint or --model, or clear --all")
    if args.all and (filters or args.action != "clear"):
        raise UsageError("--all is for clearing the whole list: clear --all, and nothing else")
    chosen = [record for record in file.read() if _matches(record, filters)]
    for warning in file.warnings:
        print(warning, file=sys.stderr)
    if args.action == "clear":
        file.clear(chosen)
    if args.json:
        print(json.dumps({"file": str(file.path), "records": [asdict(record) for record in chosen]}, indent=2))
    else:
        _print(chosen, args.action, str(file.path))
    return 0


def _matches(record: Poisoned, filters: dict[str, str]) -> bool:
    values = {
        "family": record.family,
        "candidate": record.candidate,
        "model": str(record.device.get("gpu_model", "")),
    }
    fingerprint = filters.get("fingerprint", "")
    return record.fingerprint.startswith(fingerprint) and all(
        values[name] == wanted for name, wanted in filters.items() if name != "fingerprint"
    )


def _print(records: Sequence[Poisoned], action: str, path: str) -> None:
    for record in records:
        device = record.device
        versions = ", ".join(f"{name} {version}" for name, version in record.versions.items() if version)
        shape = " ".join(f"{name}={value}" for name, value in record.shape.items())
        print(f"{record.when}  {record.family} {record.candidate} [{record.fingerprint}]  {shape}")
        print(f"    {record.status}: {record.detail}")
        on = Identity(str(device.get("gfx")), int(device.get("cu_num") or 0), str(device.get("gpu_model")))
        print(f"    on {on}; {versions}")
    records_text = counted(len(records), "record")
    print(f"{records_text} cleared: {path}" if action == "clear" else f"{records_text}: {path}")
