"""Pictures of decisions: what was gained, how sure that is, and the turns that decided it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plotly.subplots import make_subplots

from aiter_tuning.measure.statistics import median
from aiter_tuning.quantities import mean_gain_pct, us_digits
from aiter_tuning.report.page.canvas import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    MOST_SHAPES,
    ORANGE,
    PINK,
    RED,
    SKY,
    Picture,
    empty_figure,
    left_out,
    plain,
    text_lines,
    verdict_words,
)
from aiter_tuning.report.page.run_files import RunFiles
from aiter_tuning.tables.evidence import Evidence, Timed

MOST_TURNS = 100
"""Shapes whose turns can be chosen."""

_BY_VERDICT = {
    "promoted": BLUE,
    "retained": GREY,
    "first_row": GREY,
    "ambiguous": ORANGE,
    "correctness_fix": RED,
    "incumbent_absent": PINK,
    "default_reclaimed": GREEN,
    "not_served": RED,
    "failed": DARK,
    "incomplete": SKY,
}
_BY_ROLE = {"winner": BLUE, "incumbent": ORANGE, "default": GREY}


_EDGE_PCT = -30.0
"""Who is further behind than this is drawn here: how far does not matter, and the others could not be told apart."""

_LEGEND_BELOW = {"orientation": "h", "yanchor": "top", "y": -0.14, "xanchor": "left", "x": 0}


def gains(files: RunFiles) -> Picture | None:
    """How much faster each row's kernel is than the default."""
    found = [(one, gain) for one in files.decisions if (gain := _gain_pct(one.record)) is not None]
    moved = sorted((item for item in found if item[1]), key=lambda item: item[1])
    if not moved:
        return None
    shown, even = moved[-MOST_SHAPES:], len(found) - len(moved)
    figure = empty_figure(len(shown), "less time than the default, %")
    for verdict in dict.fromkeys(one.record.verdict for one, _ in reversed(shown)):
        some = [(one, gain) for one, gain in shown if one.record.verdict == verdict]
        figure.add_bar(
            x=[gain for _, gain in some],
            y=[plain(one.label) for one, _ in some],
            orientation="h",
            name=verdict_words(verdict),
            marker_color=_BY_VERDICT.get(verdict, DARK),
            text=[f"{gain:.1f}" for _, gain in some],
            customdata=[_hover(one.record) for one, _ in some],
            hovertemplate="%{y}<br>%{customdata}<extra></extra>",
        )
    figure.update_yaxes(categoryorder="array", categoryarray=[plain(one.label) for one, _ in shown])
    mean = mean_gain_pct(gain for _, gain in found)
    caption = f"Over all {len(found)} shapes {mean:.1f} % less time than the default, on average."
    if even:
        caption += f" {even} whose row names the default are not drawn."
    return Picture("What was gained", caption + left_out(len(moved) - len(shown)), figure)


def margins(files: RunFiles) -> Picture | None:
    """How far each decision was from its bar."""
    found = [one for one in files.decisions if one.record.margin_pct is not None]
    if not found:
        return None
    found.sort(key=lambda one: one.record.margin_pct or 0.0)
    shown = found[-MOST_SHAPES:]
    labels = [plain(one.label) for one in shown]
    figure = empty_figure(len(shown), "ahead of what ran before, %")
    figure.add_scatter(
        x=[one.record.bar_pct for one in shown],
        y=labels,
        mode="markers",
        name="bar",
        marker={"symbol": "line-ns-open", "size": 12, "color": DARK},
        hovertemplate="bar %{x:.1f} %<extra></extra>",
    )
    for verdict in dict.fromkeys(one.record.verdict for one in reversed(shown)):
        some = [one for one in shown if one.record.verdict == verdict]
        figure.add_scatter(
            x=[max(_EDGE_PCT, one.record.margin_pct or 0.0) for one in some],
            y=[plain(one.label) for one in some],
            error_x={"array": [one.record.noise_pct or 0.0 for one in some], "thickness": 1, "width": 3},
            mode="markers",
            name=verdict_words(verdict),
            marker={"size": 9, "color": _BY_VERDICT.get(verdict, DARK)},
            customdata=[_hover(one.record) for one in some],
            hovertemplate="%{y}<br>%{customdata}<extra></extra>",
        )
    behind = sum((one.record.margin_pct or 0.0) < _EDGE_PCT for one in shown)
    again = [(one, lead) for one in shown if (lead := _lead_again_pct(one.record)) is not None]
    if again:
        figure.add_scatter(
            x=[max(_EDGE_PCT, lead) for _, lead in again],
            customdata=[lead for _, lead in again],
            y=[plain(one.label) for one, _ in again],
            mode="markers",
            name="in the second process",
            marker={"size": 9, "symbol": "circle-open", "color": ORANGE, "line": {"width": 2}},
            hovertemplate="%{y}<br>%{customdata:.1f} % in the second process<extra></extra>",
        )
    figure.update_yaxes(categoryorder="array", categoryarray=labels)
    caption = (
        "The best challenger's lead, with the noise floor of the comparison; a row changes where it reaches the bar "
        "in both processes. Below 0 nobody was faster."
    ) + (f" At the edge: {behind} further behind than {-_EDGE_PCT:g} %." if behind else "")
    return Picture("How sure that is", caption + left_out(len(found) - len(shown)), figure)


def turns(files: RunFiles) -> Picture | None:
    """The latencies that decided, block by block, of a shape to choose."""
    found = [one for one in files.decisions if _timed(one.record)]
    if not found:
        return None
    found.sort(key=lambda one: (one.record.verdict in ("first_row", "retained"), -(one.record.margin_pct or 0.0)))
    shown = found[:MOST_TURNS]
    figure = make_subplots(
        1, 2, shared_yaxes=True, column_widths=[0.65, 0.35], subplot_titles=("finals", "second process")
    )
    owners: list[int] = []
    for number, one in enumerate(shown):
        for column, name, role, samples in _series(one.record):
            figure.add_scatter(
                x=list(range(1, len(samples) + 1)),
                y=samples,
                mode="lines+markers",
                name=f"{role}: {plain(name)}",
                showlegend=column == 1,
                marker_color=_BY_ROLE[role],
                visible=number == 0,
                row=1,
                col=column,
                hovertemplate="block %{x}: %{y:.4g} us<extra>%{fullData.name}</extra>",
            )
            owners.append(number)
    buttons = [
        {
            "label": f"{plain(one.label)} · {verdict_words(one.record.verdict)}",
            "method": "update",
            "args": [{"visible": [owner == number for owner in owners]}],
        }
        for number, one in enumerate(shown)
    ]
    menu = {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.22, "yanchor": "top", "showactive": True}
    figure.update_layout(
        template="plotly_white",
        updatemenus=[menu],
        height=460,
        margin={"l": 10, "r": 20, "t": 110},
        legend=_LEGEND_BELOW,
    )
    figure.update_xaxes(title_text="block")
    figure.update_yaxes(title_text="us", col=1)
    caption = (
        "One point is one turn: within a block all are timed one after another, so that what disturbs one disturbs "
        "all. Choose a shape above the picture."
    )
    return Picture("The turns that decided", caption + left_out(len(found) - len(shown)), figure)


def _gain_pct(record: Evidence) -> float | None:
    """How much less time the winner takes than the default; None: one of them has no latency."""
    if record.winner is None or record.default is None or not record.winner.us or not record.default.us:
        return None
    return 100 * (1 - record.winner.us / record.default.us)


def _timed(record: Evidence) -> bool:
    return any(True for _ in _series(record))


def _series(record: Evidence) -> Iterable[tuple[int, str, str, Sequence[float | None]]]:
    """The samples that decided: column of the picture, candidate, its role, microseconds for each block."""
    sides: tuple[tuple[str, Timed | None], ...] = (
        ("winner", record.winner),
        ("incumbent", record.incumbent),
        ("default", record.default),
    )
    told: set[str] = set()
    for role, side in sides:
        if side is not None and side.name not in told and any(side.samples_us):
            told.add(side.name)
            yield 1, side.name, role, side.samples_us
    for role, name, samples in _again(record):
        yield 2, name, role, samples


def _again(record: Evidence) -> Iterable[tuple[str, str, Sequence[float | None]]]:
    """What was timed in another process: role, name, samples."""
    for role, place in (("incumbent", "before"), ("winner", "after")):
        side = (record.confirmed or record.served).get(place)
        if isinstance(side, dict) and isinstance(side.get("samples_us"), list) and any(side["samples_us"]):
            yield role, str(side.get("name", "")), side["samples_us"]


def _lead_again_pct(record: Evidence) -> float | None:
    """The winner's lead in the second process, from its turns; None: there was none."""
    sides = {role: samples for role, _, samples in _again(record)}
    pairs = zip(sides.get("incumbent", ()), sides.get("winner", ()), strict=False)
    leads = [100 * (1 - after / before) for before, after in pairs if before and after]
    return median(leads) if leads else None


def _hover(record: Evidence) -> str:
    """Who won against whom, and why."""
    lines = [verdict_words(record.verdict)]
    for role, side in (("winner", record.winner), ("incumbent", record.incumbent), ("default", record.default)):
        if side is not None:
            us = "not timed" if side.us is None else f"{us_digits(side.us)} us"
            lines.append(f"{role}: {plain(side.name)}, {us}")
    return "<br>".join([*lines, *text_lines(record.reason)])
