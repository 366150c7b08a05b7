"""What launching costs while the whole host is at work, beside a lane that is alone.

::

    alone    one lane:   launches launches launches …
    loaded   one lane:   launches launches launches …        a figure counts if all of this went on all the while
             the others: candidates of W1
             spare cores: compiling binaries that nobody has
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiter_tuning import Pool
from aiter_tuning.devices.device import Device
from aiter_tuning.measure.plan import MeasurePlan
from aiter_tuning.measurement import Measurement
from aiter_tuning.pool.compile_book import State
from aiter_tuning.pool.precompiler import Precompiler
from aiter_tuning.pool.watcher import Clocks, LaneView, RunEnd, Watcher
from aiter_tuning.status import Status
from aiter_tuning.task import Group
from aiter_tuning.tuner.family_reference import load_family
from aiter_tuning.tuner.tasks import RunCandidate
from gpu_bench.launches import Launches
from gpu_bench.recovery import group_of
from gpu_bench.table import show
from gpu_bench.whole_process import TOOL

SHAPE = (64, 1024, 1024)
LONGEST_S = 45.0
COMPILING_S = 12.0
"""So long the spare cores are to have something to do."""
COMPILE_S = 0.4
"""About what one binary takes one core."""
MOST_BINARIES = 4096
PLAN = MeasurePlan(warmup=2, iters=100)


class CountingPool(Pool):
    """Tells how far the compile processes of its run are."""

    compiler: Precompiler | None = None

    def precompiler(self, groups: Sequence[Group]) -> Precompiler:
        self.compiler = super().precompiler(groups)
        return self.compiler


class Figures(Watcher):
    """Has launches timed again and again on the lane that took the first group."""

    def __init__(
        self, repeats: int, again: Callable[[], Group], is_loaded: Callable[[], bool], stop: Callable[[], None]
    ) -> None:
        self._repeats = repeats
        self._again = again
        self._is_loaded = is_loaded
        self._stop = stop
        self._until = time.monotonic() + LONGEST_S
        self._own = {0}
        self._loaded_before = False
        self.results: list[tuple[Measurement, bool]] = []
        """Each with whether the load was there before and after it."""
        self.notes: list[str] = []

    def follow_up(self, group: int, results: Sequence[Measurement], number: int, *, idle: bool) -> Group | None:
        if group not in self._own:
            return None
        loaded = self._is_loaded()
        self.results.append((results[0], loaded and self._loaded_before))
        self._loaded_before = loaded
        enough = sum(counts for _, counts in self.results) >= self._repeats
        if enough or results[0].status is not Status.ok or time.monotonic() > self._until:
            self._stop()
            return None
        self._own.add(number)
        return self._again()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def tick(self, lanes: Sequence[LaneView]) -> None:
        if time.monotonic() > self._until + LONGEST_S:  # nothing comes back from the lane
            self._stop()


def measure_jitter(devices: Sequence[Device], repeats: int) -> dict[str, Any]:
    family: Any = load_family(f"{TOOL}:W1")
    config = family.default({}, None).config
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, lanes, binaries in (
            ("alone", devices[:1], 0),
            (f"{len(devices)} lanes, compiling", devices, binaries_to_compile(len(os.sched_getaffinity(0)))),
        ):
            place = Path(folder) / str(len(figures))
            place.mkdir()
            with cache_in(place / "cache"):
                figures[name] = _condition(lanes, config, binaries, repeats, place)
    columns = ("", "counted", "launch us: median", "99 %", "99.9 %", "most", "kernel us: median", "spread %", "timer")
    fields = ("counted", "launch_us", "launch_99_us", "launch_999_us", "launch_most_us", "kernel_us")
    fields += ("kernel_spread_pct", "timer")
    show(columns, [(name, *(row[field] for field in fields)) for name, row in figures.items()])
    alone, loaded = figures.values()
    for field, what in (("launch_us", "a launch"), ("launch_99_us", "99 % of launches"), ("kernel_us", "the kernel")):
        ratio = loaded[field] / alone[field]
        figures[f"{field}_ratio"] = ratio
        print(f"{what}: {ratio:.3f} of what it takes alone")
    print(
        f"{loaded['compiled']} of {loaded['to_compile']} binaries were compiled ahead; counted: measurements "
        "before and after which every lane was at work and compile processes had something to do;\n"
        "spread: between the 10th and the 90th percentile of the kernel's latency over measurements"
    )
    return figures


def binaries_to_compile(cores: int) -> int:
    return min(MOST_BINARIES, max(1, int(cores * COMPILING_S / COMPILE_S)))


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """A compile cache of its own, for workers and compile processes."""
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_CACHE_DIR"]
        else:
            os.environ["TRITON_CACHE_DIR"] = before


def load_of(binaries: int, lanes: int) -> list[Group]:
    """Groups whose candidates all need binaries of their own; one at least for each lane."""
    if not binaries:
        return []
    family: Any = load_family(f"{TOOL}:W1")
    configs = [dict(candidate.config) for candidate in family.candidates({}, None)]
    # The order in which tiles are worked off is compiled in, and costs nothing to vary.
    varied = ({**config, "group_m": group_m} for group_m in itertools.count(1) for config in configs)
    functions = [RunCandidate(f"{TOOL}:W1", config) for config in itertools.islice(varied, binaries)]
    share = max(1, len(functions) // max(1, lanes))
    return [group_of(functions[first : first + share], SHAPE) for first in range(0, len(functions), share)]


def _condition(
    devices: Sequence[Device], config: Mapping[str, Any], binaries: int, repeats: int, folder: Path
) -> dict[str, Any]:
    files = (str(folder / f"{number}.json") for number in itertools.count())
    used: list[str] = []

    def launches() -> Group:
        used.append(next(files))
        return group_of([Launches(config, used[-1])], SHAPE)

    load = load_of(binaries, len(devices))
    states: Counter[State] = Counter()
    with CountingPool(devices, preload=("torch", "triton"), standbys=bool(load)) as pool:

        def is_loaded() -> bool:
            nonlocal states
            if not load or pool.compiler is None:
                return not load
            states = pool.compiler.counts()
            return states[State.compiling] > 0 and all(lane.state == "busy" for lane in pool.lanes)

        watcher = Figures(repeats, launches, is_loaded, pool.request_stop)
        groups = [launches(), *load]
        groups = [Group(one.tasks, one.positions, label=one.label, cost=-place) for place, one in enumerate(groups)]
        clocks = Clocks(candidate_s=60.0, compile_s=60.0)
        outcome = pool.run(
            groups, PLAN, clocks, on_fault="continue", watcher=watcher, precompile=bool(load), quiet_start=True
        )
        if outcome.end not in (RunEnd.done, RunEnd.interrupted):
            raise SystemExit(f"the run ended with {outcome}: {'; '.join(watcher.notes)}")
    for note in watcher.notes:
        print(f"note: {note}")
    launched = [json.loads(Path(file).read_text()) if Path(file).exists() else [] for file in used]
    told = account(watcher.results, launched)
    return {**told, "lanes": len(devices), "to_compile": binaries, "compiled": states[State.compiled]}


def account(results: Sequence[tuple[Measurement, bool]], launches: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Percentiles over the measurements that count.

    Raises:
        SystemExit: one failed, or none counts.
    """
    failed = [result for result, _ in results if result.status is not Status.ok]
    if failed:
        raise SystemExit(f"launches could not be timed: {failed[0].status} ({failed[0].detail})")
    counting = [(result, taken) for (result, counts), taken in zip(results, launches, strict=False) if counts]
    if not counting:
        raise SystemExit(f"of {len(results)} measurements none was made under the load that was to be measured")
    taken = sorted(us for _, one in counting for us in one)
    kernel = sorted(result.us for result, _ in counting)
    return {
        "counted": len(counting),
        "measurements": len(results),
        "launches": len(taken),
        "launch_us": statistics.median(taken),
        "launch_99_us": percentile(taken, 0.99),
        "launch_999_us": percentile(taken, 0.999),
        "launch_most_us": taken[-1],
        "kernel_us": statistics.median(kernel),
        "kernel_spread_pct": (percentile(kernel, 0.9) - percentile(kernel, 0.1)) / statistics.median(kernel) * 100,
        "timer": counting[0][0].timer,
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Of values in order, the one that ``share`` of them do not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
