"""A group's tasks as bytes: by reference where a worker can import them, by value where it cannot."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle


def dumps(value: Any) -> bytes:
    """Pickles ``value``; functions and classes of ``__main__``, lambdas and closures travel by value.

    Raises:
        Exception: whatever pickling raised.
    """
    # The plain pickler is five times as fast. It refers to functions by module and name, which is right for all but
    # the script's own: those a worker, which never runs the script, could not find.
    if not cloudpickle.list_registry_pickle_by_value():
        try:
            pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception:
            pass
        else:
            if b"__main__" not in pickled:
                return pickled
    by_value: bytes = cloudpickle.dumps(value)
    return by_value
