"""``aiter-tune families``: what can be tuned."""

from __future__ import annotations

import argparse
import json
import sys

from aiter_tuning.families import family_names, find_family


def run(args: argparse.Namespace) -> int:
    """Prints each family with the fields of its shapes; one that cannot be loaded does not hide the others."""
    rows = [_describe(name) for name in family_names()]
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:{width}}  {row['devices']:8}  {row['key']}")
        if row["about"]:
            print(f"{'':{width}}            {row['about']}")
    return 0


def _describe(name: str) -> dict[str, str]:
    try:
        family = find_family(name)
    except Exception as error:
        return {"name": name, "devices": "", "key": f"cannot be loaded: {type(error).__name__}: {error}", "about": ""}
    module_doc = sys.modules[type(family).__module__].__doc__
    about = vars(type(family))["__doc__"] or module_doc  # not inherited from Family
    key = ", ".join(f.name if f.required else f"{f.name}={f.default}" for f in family.key.fields)
    about_lines = (about or "").strip().splitlines()
    return {
        "name": name,
        "devices": ",".join(family.devices),
        "key": key,
        "about": about_lines[0] if about_lines else "",
    }
