"""The page: a heading, what it was made of, and the pictures; one file, plotly's script within, nothing fetched."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.io

from aiter_tuning.quantities import counted
from aiter_tuning.report.page.canvas import Picture
from aiter_tuning.report.page.decision_pictures import gains, margins, turns
from aiter_tuning.report.page.measurement_pictures import candidates, roofline, timeline
from aiter_tuning.report.page.run_files import RunFiles

_PICTURES = (gains, margins, turns, candidates, roofline, timeline)
"""The most telling first; each where there is something to draw."""
_MOST_CAUSES = 15
_SHOWN = 300

_STYLE = """
body { font-family: system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin: 2em 0 0.2em; } p { line-height: 1.4; margin: 0.3em 0; }
table { border-collapse: collapse; } td { padding: 0.15em 1em 0.15em 0; vertical-align: top; }
.few td:first-child { color: #666; white-space: nowrap; } .note { color: #666; }
"""


class Page(NamedTuple):
    """What is written."""

    html: str
    pictures: int


def page_of(files: RunFiles) -> Page:
    """The whole page."""
    title = f"{files.family or 'Tuned rows'} on {files.device[2] or files.device[0]}"
    drawn = [picture for draw in _PICTURES if (picture := draw(files)) is not None]
    body = [
        f"<h1>{_esc(title)}</h1>",
        _facts(files),
        *(_section(picture, first=number == 0) for number, picture in enumerate(drawn)),
        _causes(files),
        *(f'<p class="note">{_esc(text)}</p>' for text in files.warnings),
    ]
    text = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{_esc(title)}</title><style>{_STYLE}</style></head>\n<body>\n" + "\n".join(body) + "\n</body></html>\n"
    )
    return Page(text, len(drawn))


def _facts(files: RunFiles) -> str:
    verdicts = Counter(one.record.verdict.replace("_", " ") for one in files.decisions)
    statuses = Counter(one.status for one in files.candidates)
    newest = max((one.record for one in files.decisions), key=lambda record: record.ended, default=None)
    gfx, cu_num, gpu_model = files.device
    facts: list[tuple[str, str]] = [("table", str(files.table)), ("device", f"{gpu_model} ({gfx}, {cu_num} units)")]
    facts.append(("rows", counted(len(files.rows), "row") + (f"; {files.others} for others" if files.others else "")))
    if files.everywhere:
        facts.append(("all shapes", " ".join(f"{name}={value}" for name, value in files.everywhere.items())))
    if verdicts:
        facts.append(("decisions", _told(verdicts)))
    if files.record is not None:
        facts.append(("candidates", f"{_told(statuses)}, from {files.record.name}"))
    else:
        facts.append(("candidates", "no profile or checkpoint lies beside the table, so there is nothing to draw"))
    if newest is not None:
        facts.append(("versions", ", ".join(f"{name} {version}" for name, version in newest.versions.items())))
        facts += [("last decision", newest.ended), ("command", newest.command)]
    else:
        facts.append(("decisions", "no evidence lies beside the table"))
    lines = "".join(f"<tr><td>{_esc(name)}</td><td>{_esc(text)}</td></tr>" for name, text in facts if text)
    return f'<table class="few">{lines}</table>'


def _told(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _section(picture: Picture, *, first: bool) -> str:
    drawing: Any = plotly.io.to_html(
        picture.figure, full_html=False, include_plotlyjs=first, config={"displayModeBar": False, "responsive": True}
    )
    return f"<h2>{_esc(picture.title)}</h2><p>{_esc(picture.caption)}</p>{drawing}"


def _causes(files: RunFiles) -> str:
    """What candidates failed of, the most frequent first."""
    failed = [one for one in files.candidates if one.status != "ok"]
    if not failed:
        return ""
    causes = Counter((one.status, one.detail[:_SHOWN]) for one in failed).most_common()
    first = {(one.status, one.detail[:_SHOWN]): one for one in reversed(failed)}
    lines = [_cause(count, first[cause].label, first[cause].name, *cause) for cause, count in causes[:_MOST_CAUSES]]
    more = f"<p>{len(causes) - _MOST_CAUSES} causes more.</p>" if len(causes) > _MOST_CAUSES else ""
    return f"<h2>What failed</h2><table>{''.join(lines)}</table>{more}"


def _cause(count: int, label: str, name: str, status: str, detail: str) -> str:
    cells: Sequence[str] = (f"{count} ×", status, detail, f"{name}, {label}")
    return "<tr>" + "".join(f"<td>{_esc(cell)}</td>" for cell in cells) + "</tr>"


def _esc(text: str) -> str:
    return html.escape(text)
