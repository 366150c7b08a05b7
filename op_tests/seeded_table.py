"""A tuned table with rows that ought not to be there, and the flow that mends it through the command line.

::

    tune ─▶ table, profile ─▶ seed: good as they are · slow, by the profile · wrong · of a kernel that is gone
         ─▶ tune --compare --update_improved ─▶ good untouched, the others replaced ─▶ three reruns: nothing changes

A GPU's table and a CPU's go through the same.
"""

import csv
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from aiter_tuning.devices.device import Device
from aiter_tuning.tables.evidence import EvidenceIndex, evidence_path, read_evidence
from aiter_tuning.tables.tuned import TunedCsv, TunedRow
from aiter_tuning.tuner import Candidate, Family
from aiter_tuning.tuner.publishing import rates

GONE = "of_another_release"
SLOWER_PCT = 10.0
"""At least so much slower is a row that is to be replaced."""
_WANTED_PCT = 20.0
"""Of several such candidates the one that is nearest to this: clearly slower, and not absurdly."""


class Ran(NamedTuple):
    """What a command left."""

    returncode: int
    out: str
    err: str


class Seed(StrEnum):
    """What a row of the table is."""

    good = "good"
    slow = "slow"
    wrong = "wrong"
    gone = "gone"


VERDICTS = {
    Seed.good: {"retained", "ambiguous"},
    Seed.slow: {"promoted", "default_reclaimed"},
    Seed.wrong: {"correctness_fix"},
    Seed.gone: {"promoted", "default_reclaimed"},
}


@dataclass(frozen=True)
class SeededTable:
    """The table as it was before it was mended."""

    path: Path
    family: Family
    seeds: dict[tuple[Any, ...], Seed]
    """By the fields of the shape."""
    rows: dict[tuple[Any, ...], TunedRow]
    lines: frozenset[bytes]
    """Of the good rows, byte for byte."""


def seed_table(table: Path, family: Family, wrong: Candidate, order: Sequence[Seed] = tuple(Seed)) -> SeededTable:
    """Makes rows of a tuned table bad ones, in turns.

    Args:
        table: as a run left it, with its profile beside it.
        family: that knows ``wrong``.
        wrong: launches, and computes something else.
        order: what the rows become, from the first one on and again.
    """
    file = TunedCsv(table, family.key)
    rows = file.rows()
    screened = _screened(table, family)
    seeds = {_values(row.shape): order[number % len(order)] for number, row in enumerate(rows)}
    good = [row for row in rows if seeds[_values(row.shape)] is Seed.good]
    before = table.read_bytes().splitlines(keepends=True)
    seeded = {}
    for row in rows:
        kind = seeds[_values(row.shape)]
        if kind is Seed.slow:
            name, us = slower(screened[_values(row.shape)], row.kernelName)
            seeded[_values(row.shape)] = _as(row, _candidate(family, row, name), us, family)
        elif kind is Seed.wrong:
            seeded[_values(row.shape)] = _as(row, wrong, row.us / 2, family)
        elif kind is Seed.gone:
            seeded[_values(row.shape)] = replace(row, kernelName=GONE, config={"kernel": GONE})
    file.update(seeded.values())
    kept = [line for line in table.read_bytes().splitlines(keepends=True) if line in before]
    assert len(kept) == len(good) + 1, "the header and the good rows, and no other line"
    found = {_values(row.shape): row for row in TunedCsv(table, family.key).rows()}
    return SeededTable(table, family, seeds, found, frozenset(kept))


def slower(us: dict[str, float], winner: str) -> tuple[str, float]:
    """A candidate that a profile shows to be slower than a winner by :data:`SLOWER_PCT` or more, and its latency."""
    ratios = {name: (one / us[winner] - 1) * 100 for name, one in us.items()}
    enough = {name: pct for name, pct in ratios.items() if pct >= SLOWER_PCT}
    assert enough, f"no candidate is {SLOWER_PCT} % slower than {winner}: {ratios}"
    name = min(enough, key=lambda one: (abs(enough[one] - _WANTED_PCT), one))
    return name, us[name]


def check_mended(seeded: SeededTable, ran: Ran) -> None:
    """What ``tune --compare --update_improved --json`` has to have done."""
    assert ran.returncode == 0, ran.err
    told = {tuple(shape["shape"].values()): shape for shape in json.loads(ran.out)["shapes"]}
    verdicts = {values: (str(kind), told[values]["verdict"]) for values, kind in seeded.seeds.items()}
    unexpected = {
        values: {**told[values], "seed": str(kind)}
        for values, kind in seeded.seeds.items()
        if told[values]["verdict"] not in VERDICTS[kind] or told[values]["published"] is (kind is Seed.good)
    }
    assert not unexpected, f"{json.dumps(list(unexpected.values()), indent=1)}\n{verdicts}\n{ran.err}"
    lines = seeded.path.read_bytes().splitlines(keepends=True)
    assert seeded.lines <= set(lines), "good rows are untouched, byte for byte"
    assert len(lines) == 1 + len(seeded.seeds), "one row for each shape"
    index = EvidenceIndex(read_evidence(evidence_path(seeded.path)))
    for row in TunedCsv(seeded.path, seeded.family.key).rows():
        values, was = _values(row.shape), seeded.rows[_values(row.shape)]
        if seeded.seeds[values] is not Seed.good:
            assert row.kernelName != was.kernelName, f"{was} is still there"
            record = index.newest_for(row)
            assert record is not None and record.published and record.winner is not None
            assert record.winner.config == row.config and record.served["after"]["us"] > 0
    kinds = Counter(seeded.seeds.values())
    if kinds[Seed.gone]:
        many = f"{kinds[Seed.gone]} rows name kernels" if kinds[Seed.gone] > 1 else "1 row names a kernel"
        (warning,) = [line for line in ran.err.splitlines() if "does not know" in line]
        assert many in warning and GONE in warning


def check_unchanged(table: Path, before: bytes, ran: Ran) -> None:
    """What a rerun at once has to have done: nothing."""
    assert ran.returncode == 0, ran.err
    changed = [shape for shape in json.loads(ran.out)["shapes"] if shape["proposed"] or shape["published"]]
    assert not changed, f"{json.dumps(changed, indent=1)}\n{ran.err}"
    assert table.read_bytes() == before, "the table is as it was, byte for byte"


def mend(
    run: Callable[..., Ran],
    family: Family,
    wrong: Candidate,
    table: Path,
    *,
    tune: Sequence[str],
    compare: Sequence[str],
    reruns: int = 3,
) -> None:
    """The whole flow.

    Args:
        run: a command of ``aiter-tune``, by its words.
        family: the one that ``compare`` names.
        wrong: of this family.
        table: that both write.
        tune: words of the command that makes it.
        compare: the same of the comparison, without its flags.
        reruns: how often it is run again, at once.
    """
    ran = run(*tune)
    assert ran.returncode == 0, ran.err
    seeded = seed_table(table, family, wrong)
    words = (*compare, "--compare", "--update_improved", "--json")
    check_mended(seeded, run(*words))
    mended = table.read_bytes()
    for _ in range(reruns):
        check_unchanged(table, mended, run(*words))


def _screened(table: Path, family: Family) -> dict[tuple[Any, ...], dict[str, float]]:
    """Latencies of the screening by shape and candidate that is right; of hopeless ones, a lower bound of theirs."""
    (profile,) = table.parent.glob(f"{table.stem}.profile.*.csv")
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    with profile.open(newline="") as file:
        for cells in csv.DictReader(file):
            if (cells["event"], cells["phase"], cells["status"]) == ("finished", "screen", "ok"):
                shape = family.key.parse({name: cells[name] for name in family.key.columns})
                found.setdefault(_values(shape), {})[cells["candidate"]] = float(cells["us"])
    return found


def _candidate(family: Family, row: TunedRow, name: str) -> Candidate:
    device = Device("", "", "", row.gfx, row.cu_num, row.gpu_model)
    known = {one.name: one for one in family.candidates(dict(row.shape), device)}
    assert name in known, f"{family.name} offers no {name} for {dict(row.shape)} on {row.gfx}/{row.cu_num}"
    return known[name]


def _as(row: TunedRow, candidate: Candidate, us: float, family: Family) -> TunedRow:
    """The row of another candidate."""
    tflops, bw = rates(family.work(dict(row.shape)), us)
    return replace(
        row,
        kernelId=candidate.kernel_id,
        splitK=candidate.split_k,
        us=us,
        kernelName=candidate.name,
        tflops=tflops,
        bw=bw,
        config=dict(candidate.config),
    )


def _values(shape: Any) -> tuple[Any, ...]:
    return tuple(shape.values())
