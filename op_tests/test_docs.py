"""What the pages in docs/ list is what the program has: a table of names there and the names here are one set."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path

import pytest

from aiter_tuning.cli.parser import _build
from aiter_tuning.keys import DEVICE_COLUMNS
from aiter_tuning.report.summary import summary_json
from aiter_tuning.status import Status
from aiter_tuning.tables.checkpoint_row import RECORD_COLUMNS
from aiter_tuning.tables.checkpoint_row import RESULT_COLUMNS as CHECKPOINT_RESULT
from aiter_tuning.tables.evidence_record import Evidence
from aiter_tuning.tables.findings import Code
from aiter_tuning.tables.tuned_row import RESULT
from aiter_tuning.triton_autotune.command_line import _parser
from aiter_tuning.triton_autotune.policy import AutotunePolicy
from aiter_tuning.tuner.outcome import Verdict
from op_tests.report.test_summary import SUMMARY

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / name for name in ("README.md", "CHANGELOG.md"))])


RUN = json.loads(summary_json(SUMMARY))


def listed(page: str, title: str) -> set[str]:
    """The names in the first column of the table below a title row."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    start = lines.index(title) + 2
    end = next(number for number, line in enumerate([*lines, ""]) if number >= start and not line.startswith("|"))
    return {name for line in lines[start:end] for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def fields_of(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


@pytest.mark.parametrize(
    ("page", "title", "names"),
    [
        ("tables.md", "| of a tuned table | |", {*DEVICE_COLUMNS, *RESULT}),
        ("tables.md", "| of a checkpoint or profile | |", {"event", *CHECKPOINT_RESULT, *RECORD_COLUMNS}),
        ("tables.md", "| kind | what it means |", set(Code)),
        ("evidence.md", "| field | holds |", {"schema", *fields_of(Evidence)}),
        ("choosing.md", "| verdict | what happened | row |", set(Verdict)),
        ("architecture.md", "| status | meaning | us |", set(Status)),
        ("json.md", "| field of the run | holds |", set(RUN)),
        ("json.md", "| field of a shape | holds |", set(RUN["shapes"][0])),
        ("triton_autotune.md", "| field | default | meaning |", fields_of(AutotunePolicy)),
    ],
)
def test_a_table_of_names_lists_all_that_there_are_and_no_other(page, title, names):
    assert listed(page, title) == names


def test_every_flag_that_a_page_names_is_one():
    parser, _ = _build()
    known = {flag for grammar in (parser, _parser("autotune")) for flag in flags_of(grammar)}
    tools = "".join(path.read_text() for path in (ROOT / "tools").rglob("*.py"))
    named = {flag for page in PAGES for flag in re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", page.read_text())}
    assert {flag for flag in named - known if f'"{flag}"' not in tools} == set()


def flags_of(grammar: argparse.ArgumentParser) -> set[str]:
    """Those of all its commands, too."""
    flags = {flag for action in grammar._actions for flag in action.option_strings}
    for action in grammar._actions:
        if isinstance(action, argparse._SubParsersAction):
            flags.update(*map(flags_of, action.choices.values()))
    return flags


def test_links_between_pages_lead_to_files():
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
