"""What all pictures have in common: room, colours, words, and what a reader needs beside them."""

from __future__ import annotations

import html
from typing import Any, NamedTuple

import plotly.graph_objects as go

MOST_SHAPES = 60
"""Lines of a picture that has one for each shape."""

# Okabe and Ito's colours, which everybody can tell apart.
BLUE, ORANGE, GREEN, RED, PINK, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
GREY, DARK = "#999999", "#333333"

_LINE_PX = 22
_FRAME_PX = 110


class Picture(NamedTuple):
    """One figure and what a reader needs to read it."""

    title: str
    caption: str
    figure: Any


def empty_figure(lines: int, title: str, *, height: int = 0) -> Any:
    """An empty picture with room for so many lines of text."""
    figure = go.Figure()
    figure.update_layout(
        template="plotly_white",
        height=height or max(220, _FRAME_PX + _LINE_PX * lines),
        margin={"l": 10, "r": 20, "t": 30, "b": 50},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "left", "x": 0},
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(title_text=title)
    figure.update_yaxes(automargin=True, ticksuffix="  ")
    return figure


def text_lines(text: str, width: int = 90) -> list[str]:
    """A sentence in lines that fit a box."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".lstrip()
    return [plain(one) for one in (*lines, line) if one]


def left_out(count: int, what: str = "shapes") -> str:
    return f" {count} {what} more are not drawn." if count > 0 else ""


def verdict_words(verdict: str) -> str:
    return verdict.replace("_", " ")


def short_device(device: str) -> str:
    """A UUID as far as a person needs it."""
    return device if len(device) <= 16 else f"{device[:12]}…"


def plain(text: str) -> str:
    """Names as plotly shows them: it takes what looks like markup for that."""
    return html.escape(text, quote=False)
