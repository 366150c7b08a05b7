"""The findings for a person, and for a program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from aiter_tuning.report.doctor.facts import Facts, Finding, Verdict
from aiter_tuning.report.doctor.findings import worst
from aiter_tuning.report.doctor.noise import resolution

_CONCLUSIONS = {
    Verdict.ok: "nothing here stands in the way of tuning",
    Verdict.warning: "what is measured here can be believed; see the warnings",
    Verdict.bad: "tuning here would mislead or fail; put right what is bad",
}


def print_findings(findings: Sequence[Finding], out: TextIO) -> None:
    """A line for each finding, its advice under it, and what they come to."""
    topics = max((len(finding.topic) for finding in findings), default=0)
    for finding in findings:
        out.write(f"{finding.verdict:7}  {finding.topic:{topics}}  {finding.found}\n")
        if finding.advice and finding.verdict is not Verdict.ok:
            out.write(f"{'':7}  {'':{topics}}  → {finding.advice}\n")
    out.write(f"\n{worst(findings)}: {_CONCLUSIONS[worst(findings)]}\n")


def findings_json(facts: Facts, findings: Sequence[Finding]) -> str:
    """Findings, with the numbers that a program would compare over time."""
    trial = facts.trial
    noise = {}
    for one in trial.noise if trial is not None else ():
        seen = resolution(one.pairs)
        noise[one.name] = {
            "timer": one.timer,
            "flags": list(one.flags),
            "pairs_us": [list(pair) for pair in one.pairs],
            **({} if seen is None else seen._asdict()),
        }
    return json.dumps(
        {
            "verdict": worst(findings),
            "kind": facts.kind,
            "devices": [device.uuid for device in facts.devices],
            "packages": dict(facts.packages),
            "driver": facts.driver,
            "start_s": None if trial is None else {"import": _number(trial.import_s), "bind": _number(trial.bind_s)},
            "noise": noise,
            "findings": [finding._asdict() for finding in findings],
        },
        indent=2,
    )


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return round(value, 3) if value == value else None
