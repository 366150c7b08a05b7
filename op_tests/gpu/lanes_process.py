"""A parent like any other, with nothing but lanes on all GPUs that it may see: tells where they are, as JSON.

``lanes_process.py KIND FOLDER``
"""

import json
import sys

from aiter_tuning import Pool
from op_tests.contexts import WhereLanesAre
from op_tests.lane_candidates import doubled
from op_tests.lane_scenarios import Operator

if __name__ == "__main__":
    with Pool(sys.argv[1]) as pool:
        print("@" + json.dumps(WhereLanesAre.found_out(pool, Operator(), doubled, sys.argv[2])._asdict()), flush=True)
