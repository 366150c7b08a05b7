"""``python -m aiter_tuning``: the command line from a bare checkout."""

import sys

from aiter_tuning.cli import main

if __name__ == "__main__":
    sys.exit(main())
