"""The cheapest config, by arithmetic: the smallest tile, the fewest stages, the fewest warps, the earliest declared."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

_OTHER_TILES = re.compile(r"B[A-Z]\d?|BLK\w*|TILE\w*|\w+_BLOCK\w*|\w+_TILE\w*")
"""What tiles are called by those who do not write BLOCK: BM, BN, BK, BT, BV, BS, TILE_M, Q_BLOCK."""


def tile_volume(kwargs: dict[str, Any]) -> int:
    """Product of the tile sizes among a config's arguments.

    Arguments that start with ``BLOCK`` are the tiles; only where there is none, the other customary names are. A
    ``BLOCK…`` flag counts as 0 or 1, which existing tables rely on.
    """
    blocks = [value for name, value in kwargs.items() if name.startswith("BLOCK") and isinstance(value, int)]
    if not any(name.startswith("BLOCK") for name in kwargs):
        blocks = [
            value
            for name, value in kwargs.items()
            if _OTHER_TILES.fullmatch(name) and isinstance(value, int) and not isinstance(value, bool)
        ]
    return math.prod(blocks)


def estimate_config_cost(config: Any) -> tuple[int, int]:
    """(tile volume × stages, warps): what ``min_cost`` orders by. Missing stages or warps count as 1."""
    return tile_volume(config.kwargs) * (config.num_stages or 1), config.num_warps or 1


def cheapest_first(configs: Iterable[Any]) -> list[Any]:
    """The configs in order of cost; equal ones stay in the order of their declaration."""
    return sorted(configs, key=estimate_config_cost)


def cheapest(configs: Iterable[Any]) -> Any:
    """The first of :func:`cheapest_first`."""
    return min(configs, key=estimate_config_cost)
