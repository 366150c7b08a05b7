"""Pictures of measurements: all candidates, how near rows come to the device's limits, and where the time went."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from aiter_tuning.devices.peaks import peaks_of
from aiter_tuning.quantities import us_digits
from aiter_tuning.report.page.canvas import (
    BLUE,
    DARK,
    GREY,
    MOST_SHAPES,
    ORANGE,
    SKY,
    Picture,
    empty_figure,
    left_out,
    plain,
    short_device,
)
from aiter_tuning.report.page.run_files import RunFiles, Screened

MOST_POINTS = 20_000
"""Candidates in a picture."""

_BY_STAGE = {"screening": SKY, "finals": BLUE, "second process": ORANGE, "comparison": ORANGE}


class _Named(NamedTuple):
    gfx: str
    cu_num: int
    gpu_model: str


def candidates(files: RunFiles) -> Picture | None:
    """Every candidate against the best of its shape."""
    best: dict[str, float] = {}
    for one in files.candidates:
        if not one.censored:
            best[one.label] = min(best.get(one.label, math.inf), one.us)
    timed = [one for one in files.candidates if one.us < math.inf and best.get(one.label, math.inf) < math.inf]
    if not timed:
        return None
    changed = {one.label for one in files.decisions if one.record.verdict not in ("first_row", "retained")}
    labels = sorted(dict.fromkeys(one.label for one in timed), key=lambda label: label not in changed)
    shown = set(labels[:MOST_SHAPES])
    points = [one for one in timed if one.label in shown][:MOST_POINTS]
    figure = empty_figure(len(shown), "times the latency of the shape's fastest candidate, in the screening")
    for censored, name, symbol in ((False, "timed", "circle"), (True, "given up: slower than this", "triangle-right")):
        some = [one for one in points if one.censored is censored]
        figure.add_scatter(
            x=[one.us / best[one.label] for one in some],
            y=[plain(one.label) for one in some],
            mode="markers",
            name=name,
            marker={"size": 6, "symbol": symbol, "color": GREY if censored else BLUE, "opacity": 0.55},
            customdata=[f"{plain(one.name)}<br>{us_digits(one.us)} us" for one in some],
            hovertemplate="%{y}<br>%{customdata}, %{x:.2f} ×<extra></extra>",
        )
    named = {one.label: one.record.winner.name for one in files.decisions if one.record.winner is not None}
    chosen = [one for one in points if named.get(one.label) == one.name]
    figure.add_scatter(
        x=[one.us / best[one.label] for one in chosen],
        y=[plain(one.label) for one in chosen],
        mode="markers",
        name="what the row names",
        marker={"size": 10, "symbol": "circle-open", "color": ORANGE, "line": {"width": 2}},
        hoverinfo="skip",
    )
    figure.update_xaxes(type="log")
    figure.update_yaxes(categoryorder="array", categoryarray=[plain(one) for one in reversed(labels[:MOST_SHAPES])])
    left = left_out(len(labels) - len(shown), "shapes") + left_out(
        sum(one.label in shown for one in timed) - len(points), "candidates"
    )
    caption = f"{len(timed)} candidates were timed, each once; the best of a shape then again, in turns."
    return Picture("All candidates", caption + _failures(files.candidates) + left, figure)


def roofline(files: RunFiles) -> Picture | None:
    """How near each row comes to what the device can do."""
    rows = [row for row in files.rows if row.tflops > 0 and row.gb_per_s > 0]
    if not rows:
        return None
    intensity = [row.tflops * 1e3 / row.gb_per_s for row in rows]
    figure = empty_figure(0, "operations for each byte that has to be moved", height=460)
    limits = _limits(files)
    for peak, (bytes_per_s, dtypes) in limits.items():
        ridge = peak * 1e12 / bytes_per_s
        left, right = min(*intensity, ridge) / 2, max(*intensity, ridge) * 2
        figure.add_scatter(
            x=[left, ridge, right],
            y=[left * bytes_per_s / 1e12, peak, peak],
            mode="lines",
            name=f"{plain(files.device[2])}, {', '.join(dtypes)}",
            line={"color": DARK, "dash": "dot"},
            hovertemplate=f"{peak:g} TFLOP/s, {bytes_per_s / 1e12:g} TB/s<extra></extra>",
        )
    figure.add_scatter(
        x=intensity,
        y=[row.tflops for row in rows],
        mode="markers",
        name="row",
        marker={"size": 9, "color": BLUE},
        customdata=[
            f"{plain(row.label)}<br>{plain(row.kernel)}, {us_digits(row.us)} us"
            f"<br>{row.tflops:g} TFLOP/s, {row.gb_per_s:g} GB/s"
            for row in rows
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log", title_text="TFLOP/s")
    caption = "The kernel of each row, by the operations and bytes that the family counts for its shape."
    if limits:
        caption += " Dotted: the vendor's peaks, which nothing reaches."
    return Picture("How near to the device's limits", caption, figure)


def _limits(files: RunFiles) -> dict[float, tuple[float, list[str]]]:
    """Of the device: bytes a second and dtypes of the rows for each peak in TFLOP/s; nothing of an unknown device."""
    gfx, cu_num, gpu_model = files.device
    peaks = peaks_of(_Named(gfx, int(cu_num) if cu_num.isdigit() else 0, gpu_model))
    found: dict[float, tuple[float, list[str]]] = {}
    for dtype in files.dtypes if peaks is not None else ():
        assert peaks is not None
        if dtype in peaks.tflops:
            found.setdefault(peaks.tflops[dtype], (peaks.bytes_per_s, []))[1].append(dtype)
    return found


def timeline(files: RunFiles) -> Picture | None:
    """What each lane's device was at."""
    if not files.spans:
        return None
    devices = list(dict.fromkeys(span.device for span in files.spans))
    figure = empty_figure(2 * len(devices), "")
    for stage, colour in _BY_STAGE.items():
        some = [span for span in files.spans if span.stage == stage]
        if not some:
            continue
        figure.add_bar(
            base=[span.began for span in some],
            x=[(span.ended - span.began).total_seconds() * 1e3 for span in some],
            y=[plain(short_device(span.device)) for span in some],
            orientation="h",
            name=stage,
            marker={"color": colour, "line": {"width": 0.5, "color": "white"}},
            customdata=[f"{plain(span.label)}<br>{(span.ended - span.began).total_seconds():.1f} s" for span in some],
            hovertemplate=f"{stage} of %{{customdata}}<extra></extra>",
        )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(type="date")
    whole = max(span.ended for span in files.spans) - min(span.began for span in files.spans)
    shapes = len({span.label for span in files.spans})
    caption = f"{shapes} shapes in {whole.total_seconds():.0f} s, first candidate to last; gaps are starts and waiting."
    return Picture("Where the time went", caption, figure)


def _failures(found: Iterable[Screened]) -> str:
    counts = Counter(one.status for one in found if one.status != "ok")
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return f" Of the others: {told}." if told else ""
