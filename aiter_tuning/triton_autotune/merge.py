"""Many recordings, one table: by majority, or by the times that lie behind the votes.

A vote throws the times away: a config that won by a hair and one that is twice as fast count the same. By regret, each
config is judged by how much slower than the best it was, over all recordings; the margin over the runner-up is set
against the noise, and where it is smaller the choice is marked as a near tie.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiter_tuning.triton_autotune.identity import ANY_KEY, Fingerprint
from aiter_tuning.triton_autotune.recording import Recording, Times, read_winners

Key = tuple[str, str, str]
"""(arch, kernel, tuning key)"""
Votes = dict[Key, Counter[str]]
"""How many recordings have which config, as JSON text."""
Tables = dict[str, dict[str, dict[str, Any]]]
"""``{arch: {kernel: {tuning key: config}}}``"""


class Verdict(NamedTuple):
    """What the times say about one kernel and key."""

    config: str
    """JSON text of the config with the least regret."""
    regret: float
    """Its time ÷ the best time, geometric mean over recordings: 1.0 if it was the fastest in each."""
    worst_regret: float
    margin_pct: float
    """How much slower the runner-up is; infinite without one."""
    noise_pct: float
    """What differences of this size mean nothing: within a recording (percentiles) and between recordings."""
    recordings: int

    @property
    def near_tie(self) -> bool:
        """Whether another run might well choose another config."""
        return self.margin_pct <= self.noise_pct


def count_votes(paths: Iterable[str | os.PathLike[str]]) -> Votes:
    """One vote of each file for its config of each (arch, kernel, key).

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is no recording; the text names it.
    """
    votes: Votes = {}
    for path in sorted(os.fspath(path) for path in paths):
        for arch, kernels in read_winners(path).items():
            for kernel, entries in kernels.items():
                for key, config in entries.items():
                    votes.setdefault((arch, kernel, key), Counter())[json.dumps(config, sort_keys=True)] += 1
    return votes


def merge_votes(votes: Mapping[Key, Counter[str]]) -> Tables:
    """The config with most votes; of equals, the first by its JSON text."""
    return _tables({key: min(counts, key=lambda text: (-counts[text], text)) for key, counts in votes.items()})


def disagreements(votes: Mapping[Key, Counter[str]]) -> dict[Key, Counter[str]]:
    """Those with more than one config."""
    return {key: counts for key, counts in votes.items() if len(counts) > 1}


def merge_records(paths: Iterable[str | os.PathLike[str]]) -> Tables:
    """:func:`merge_votes` of the files."""
    return merge_votes(count_votes(paths))


def disagreement_report(paths: Iterable[str | os.PathLike[str]]) -> dict[Key, Counter[str]]:
    """:func:`disagreements` of the files."""
    return disagreements(count_votes(paths))


def judge(tunings: Sequence[Mapping[str, Times]]) -> Verdict | None:
    """Which config the times of one kernel and key speak for; None if no config ran in every recording.

    Args:
        tunings: for each recording, times by config; infinite or missing: did not run there.
    """
    common = [config for config in tunings[0] if all(math.isfinite(_median(t, config)) for t in tunings)]
    if not common:
        return None
    best = [min(time for c in t if math.isfinite(time := _median(t, c))) for t in tunings]
    regrets = {
        config: [_ratio(_median(t, config), least) for t, least in zip(tunings, best, strict=True)] for config in common
    }
    means = {config: statistics.geometric_mean(values) for config, values in regrets.items()}
    order = sorted(common, key=lambda config: (means[config], config))
    winner, rival = order[0], order[1] if len(order) > 1 else None
    margin, noise = math.inf, 0.0
    if rival is not None:
        ratios = [_ratio(_median(t, rival), _median(t, winner)) for t in tunings]
        margin = (statistics.geometric_mean(ratios) - 1) * 100
        within = statistics.median(max(_spread(t[winner]), _spread(t[rival])) for t in tunings)
        between = statistics.stdev(ratios) if len(ratios) > 1 else 0.0
        noise = max(within, between) * 100
    return Verdict(winner, means[winner], max(regrets[winner]), margin, noise, len(tunings))


def judge_all(recordings: Sequence[Recording], arch: str) -> dict[tuple[str, str], Verdict]:
    """:func:`judge` for every kernel and key that has times."""
    verdicts = {}
    for key, times in _times_by_key(recordings, arch).items():
        verdict = judge(times)
        if verdict is not None:
            verdicts[key] = verdict
    return verdicts


def any_key_configs(recordings: Sequence[Recording], arch: str) -> dict[str, str]:
    """For each kernel the config whose worst regret over all keys is the least: what ``*`` may stand for."""
    by_kernel: dict[str, list[Mapping[str, Times]]] = {}
    for (kernel, _), times in _times_by_key(recordings, arch).items():
        by_kernel.setdefault(kernel, []).extend(times)
    safest = {kernel: _safest(tunings) for kernel, tunings in by_kernel.items()}
    return {kernel: config for kernel, config in safest.items() if config is not None}


def _safest(tunings: Sequence[Mapping[str, Times]]) -> str | None:
    """Of the configs that were timed in all tunings, the one whose worst regret is the least; of equals, the first."""
    common = [config for config in tunings[0] if all(math.isfinite(_median(times, config)) for times in tunings)]
    if not common:
        return None
    best = [min(time for c in times if math.isfinite(time := _median(times, c))) for times in tunings]

    def worst_regret(config: str) -> float:
        return max(_ratio(_median(times, config), least) for times, least in zip(tunings, best, strict=True))

    return min(common, key=lambda config: (worst_regret(config), config))


def provenance(recordings: Sequence[Recording], arch: str, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The ``provenance`` section of a merged table: what all recordings agree on, less the fields they differ in."""
    machines = [recording.environment for recording in recordings if recording.environment]
    shared = {
        name: value
        for name, value in (machines[0].items() if machines else ())
        if all(machine.get(name) == value for machine in machines)
    }
    prints: dict[str, set[Fingerprint]] = {}
    for recording in recordings:
        for (held, kernel, _), tuning in recording.tunings.items():
            if held == arch:
                prints.setdefault(kernel, set()).add(tuning.fingerprint)
    kernels = {}
    for kernel, found in prints.items():
        if len(found) == 1:
            kernels[kernel] = next(iter(found))._asdict()
    return {"environment": shared, "kernels": kernels, "evidence": evidence}


def _times_by_key(recordings: Sequence[Recording], arch: str) -> dict[tuple[str, str], list[Mapping[str, Times]]]:
    times: dict[tuple[str, str], list[Mapping[str, Times]]] = {}
    for recording in recordings:
        for (held, kernel, key), tuning in recording.tunings.items():
            if held == arch and key != ANY_KEY and tuning.times:
                times.setdefault((kernel, key), []).append(tuning.times)
    return times


def _tables(configs: Mapping[Key, str]) -> Tables:
    tables: Tables = {}
    for (arch, kernel, key), text in configs.items():
        tables.setdefault(arch, {}).setdefault(kernel, {})[key] = json.loads(text)
    return tables


def _median(times: Mapping[str, Times], config: str) -> float:
    return times[config][0] if times.get(config) else math.inf


def _ratio(time: float, base: float) -> float:
    return time / base if base > 0 else 1.0 if time <= base else math.inf


def _spread(times: Times) -> float:
    """Half the distance between the percentiles, as a share of the median."""
    if len(times) < 3 or not times[0] > 0:
        return 0.0
    return max(0.0, times[2] - times[1]) / 2 / times[0]
