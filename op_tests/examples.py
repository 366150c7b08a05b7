"""How many examples a property gets: some where they are the same every time, many where they are new (``--all``).

The first hundred of a repeated draw have said on Monday what they will say on Friday; the long search is for new ones.
"""

from hypothesis import settings

_SHARE = 3


def examples(many: int) -> int:
    """``many`` with ``tools/run_tests.py --all``, a third of them without."""
    return many // _SHARE if settings.default.derandomize else many
