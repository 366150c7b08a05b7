"""A config as JSON, whatever its arguments are.

Kernels take dtypes, tuples, constexprs and functions as meta-parameters. What JSON has no word for becomes an object
with one key that starts with ``$``; plain values stay as they are, so that files for plain configs look as they
always did::

    128            128
    (1, 2)         {"$tuple": [1, 2]}
    tl.float16     {"$dtype": "fp16"}
    torch.float16  {"$torch.dtype": "torch.float16"}
    constexpr(4)   {"$constexpr": 4}
    gelu           {"$object": "my_kernels.gelu"}
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def config_data(config: Any) -> dict[str, Any]:
    """The six fields that identify a config, as live values; hooks are not part of it."""
    return {
        "kwargs": dict(config.kwargs),
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "num_ctas": getattr(config, "num_ctas", 1),
        "maxnreg": getattr(config, "maxnreg", None),
        "ir_override": getattr(config, "ir_override", None),
    }


def config_record(config: Any) -> dict[str, Any]:
    """:func:`config_data` with every value in a form that JSON keeps."""
    return {name: encode(value) for name, value in config_data(config).items()}


def config_signature(config: Any) -> str:
    """One line of JSON with sorted keys, equal for equal configs; ``none`` for None."""
    return "none" if config is None else compact(config_record(config))


def compact(value: Any) -> str:
    """JSON without blanks, keys sorted."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def with_defaults(entry: Mapping[str, Any]) -> dict[str, Any]:
    """A table's entry with the fields that older files leave out."""
    return {"num_ctas": 1, "maxnreg": None, "ir_override": None, **entry}


def matches(entry: Mapping[str, Any], config: Any) -> bool:
    """Whether a stored entry stands for this live config. Older files hold tuples as lists."""
    stored = compact(with_defaults(entry))
    record = config_record(config)
    return stored == compact(record) or stored == compact(_untagged_tuples(record))


def encode(value: Any) -> Any:
    """A value that JSON keeps. Never fails; two equal values give equal results in every process."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, tuple):
        return {"$tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(item) for key, item in value.items()}
        return {"$mapping": sorted(([encode(key), encode(item)] for key, item in value.items()), key=compact)}
    return _encode_object(value)


def _encode_object(value: Any) -> dict[str, Any]:
    cls = type(value)
    if cls.__name__ == "constexpr" and hasattr(value, "value"):
        return {"$constexpr": encode(value.value)}
    if cls.__name__ == "dtype":
        module = cls.__module__.partition(".")[0]
        return {"$dtype" if module == "triton" else f"${module}.dtype": str(value)}
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(name, str):
        return {"$object": f"{getattr(value, '__module__', None) or ''}.{name}"}
    try:
        text = repr(value)
    except Exception as error:  # a broken __repr__ must not cost a recording
        text = f"<unprintable: {type(error).__name__}>"
    return {"$object": f"{cls.__module__}.{cls.__qualname__}", "repr": _ADDRESS.sub("", text)}


def _untagged_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == ["$tuple"]:
            return [_untagged_tuples(item) for item in value["$tuple"]]
        return {key: _untagged_tuples(item) for key, item in value.items()}
    return [_untagged_tuples(item) for item in value] if isinstance(value, list) else value
