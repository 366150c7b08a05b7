"""``python -m aiter_tuning.triton_autotune``."""

import sys

from aiter_tuning.triton_autotune.command_line import main

if __name__ == "__main__":
    sys.exit(main())
