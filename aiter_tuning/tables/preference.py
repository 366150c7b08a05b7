"""Which of several rows with one key counts: the one rule for reading, merging and serving.

1. A row without a measured latency never counts (it does not get here).
2. Latencies are compared only where they can be: between rows of one *environment*, that is device model, timer and
   fingerprint of the run, which the evidence beside a table names. The fastest row of an environment counts there.
3. Of several environments the one of the newest verified row counts; the other rows are reported as conflicts.
4. A verified row, one that evidence explains, counts more than one that nothing explains: a conflict too.
5. Without any evidence the fastest row counts, and the clash is reported.

Equal rows follow the order in which they came. The rule looks at all rows of a key at once: what comes out depends
neither on their order nor on how files are cut into shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from aiter_tuning.tables.evidence_record import Evidence
from aiter_tuning.tables.tuned_row import TunedRow


class Contender(NamedTuple):
    """A measured row, and the record that explains it."""

    row: TunedRow
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Lost:
    """Why one row does not count."""

    reason: str
    """Follows the place of the row that counts, for a person."""
    conflict: bool
    """Whether somebody should look at it: two answers that no comparison decided."""


@dataclass(frozen=True)
class Preference:
    """What the rule says about the rows of one key."""

    winner: int
    """Which contender counts."""
    lost: Mapping[int, Lost]
    """Every other one."""


def environment_of(evidence: Evidence) -> tuple[str, ...]:
    """What two latencies must have in common to be compared; the key says for which device they are.

    A record without the run's fingerprint is told by the versions that it names.
    """
    run = evidence.fingerprints.get("run")
    told = (run,) if run else tuple(f"{name}={value}" for name, value in sorted(evidence.versions.items()))
    return (str(evidence.key.get("gpu_model", "")), evidence.timer, *told)


def moment_of(evidence: Evidence) -> datetime:
    """When a decision was made; a time without a zone is taken for UTC."""
    moment = datetime.fromisoformat(evidence.ended)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def prefer(contenders: Sequence[Contender]) -> Preference:
    """Decides between the measured rows of one key, at least one."""
    verified = [i for i, one in enumerate(contenders) if one.evidence is not None]
    field = verified or list(range(len(contenders)))
    environments = [None if one.evidence is None else environment_of(one.evidence) for one in contenders]
    counts = environments[max(verified, key=lambda i: (_moment(contenders[i]), -i))] if verified else None
    winner = min((i for i in field if environments[i] == counts), key=lambda i: (contenders[i].row.us, i))
    return Preference(
        winner,
        {
            i: _lost(contenders[winner], contenders[i], environments[i] == counts)
            for i in range(len(contenders))
            if i != winner
        },
    )


def _moment(contender: Contender) -> datetime:
    assert contender.evidence is not None
    return moment_of(contender.evidence)


def _lost(winner: Contender, loser: Contender, same_environment: bool) -> Lost:
    won, lost = winner.row, loser.row
    figures = f"{lost.us:g} us against {won.us:g} us"
    if (won.kernelName, won.config, won.us) == (lost.kernelName, lost.config, lost.us):
        return Lost("the same kernel and latency", conflict=False)
    if winner.evidence is None:
        slower = "slower" if lost.us > won.us else "as fast"
        return Lost(f"{slower} ({figures}); no evidence says whether they can be compared", conflict=True)
    if loser.evidence is None:
        return Lost(f"without evidence, which the other row has ({figures})", conflict=True)
    if same_environment:
        return Lost(f"slower in the same environment ({figures})", conflict=False)
    return Lost(
        f"measured in another environment, the newest of which counts ({figures}; "
        f"{loser.evidence.ended} against {winner.evidence.ended})",
        conflict=True,
    )
