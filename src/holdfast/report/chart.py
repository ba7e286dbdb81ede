"""A line chart as a value; written as HTML (plotly), PNG or SVG (matplotlib, the ``plot`` extra) by the file name."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid

SUFFIXES = (".html", ".png", ".svg")
MARKED = 30
"""Lines of more points than this are drawn without marks."""
_COLOURS = ("#2f81f7", "#d1690e", "#2da44e", "#9263e0", "#cf4d9a", "#7d8590")
"""Each readable on white and on black."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x")


@dataclass(frozen=True, slots=True)
class Series:
    """One line. ``None`` in ``y`` is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture: lines over common axes, with vertical marks where something changes."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    marks: Sequence[tuple[float, str]] = ()
    log_x: bool = False
    log_y: bool = False


def check_plot_path(path: Path) -> Path:
    """The path, if a chart can be written there; to be called before the work, so that nobody waits in vain."""
    if path.suffix not in SUFFIXES:
        raise Invalid(f"--plot {path}: must end in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise Invalid(f"--plot {path}: no such folder {path.parent}")
    if path.suffix != ".html":
        try:
            import matplotlib  # noqa: F401 - only whether it is there
        except ImportError:
            raise Invalid(f"--plot {path}: PNG and SVG need matplotlib: pip install 'holdfast[plot]'") from None
    return path


def write_charts(charts: Sequence[Chart], path: Path) -> None:
    """Write these charts, one below the other, into one file, put in place atomically."""
    check_plot_path(path)
    temporary = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        (_write_html if path.suffix == ".html" else _write_image)(charts, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_html(charts: Sequence[Chart], path: Path) -> None:
    """A page that fetches nothing: each chart with its values as a table, light or dark as the reader's system is."""
    parts = files("holdfast.report") / "assets"
    filled = {
        "title": html.escape(charts[0].title if charts else "Holdfast"),
        "style": (parts / "plot.css").read_text(encoding="utf-8"),
        "script": (parts / "plot.js").read_text(encoding="utf-8"),
        "plots": "".join(f"{_figure(chart, first=number == 0)}{_table(chart)}" for number, chart in enumerate(charts)),
    }
    template = (parts / "plot.html").read_text(encoding="utf-8")
    path.write_text(re.sub("@@([a-z]+)@@", lambda place: filled[place[1]], template), encoding="utf-8")


def _figure(chart: Chart, first: bool) -> str:
    import plotly.graph_objects as go

    figure = go.Figure()
    for number, line in enumerate(chart.series):
        # Curves often lie on one another: each has a dash and a mark of its own, so that all can be seen.
        dash = "dash" if line.dashed else _DASHES[number % len(_DASHES)]
        style = {"dash": dash, "color": _COLOURS[number % len(_COLOURS)], "width": 2}
        mark = {"symbol": _SYMBOLS[number % len(_SYMBOLS)], "size": 7}
        mode = "lines+markers" if len(line.x) <= MARKED else "lines"
        figure.add_scatter(x=list(line.x), y=list(line.y), name=line.name, mode=mode, line=style, marker=mark)
    for at, label in chart.marks:
        figure.add_vline(x=at, line_dash="dot", line_color="#8b949e")
        # On a log axis lines stand at values, but annotations at their logarithms.
        place = math.log10(at) if chart.log_x else at
        figure.add_annotation(
            x=place, y=1, yref="paper", yanchor="top", xanchor="right", textangle=-90, text=label, showarrow=False
        )
    figure.update_layout(
        template="plotly_white", hovermode="x unified", height=460, margin={"l": 70, "r": 20, "t": 20, "b": 60},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top"}, xaxis_title=chart.x, yaxis_title=chart.y,
        font={"family": "system-ui, sans-serif", "size": 14},
    )  # fmt: skip
    figure.update_xaxes(
        type="log" if chart.log_x else "linear", **_decades(chart.log_x, (x for s in chart.series for x in s.x))
    )
    figure.update_yaxes(
        type="log" if chart.log_y else "linear", **_decades(chart.log_y, (y for s in chart.series for y in s.y))
    )
    drawn = figure.to_html(full_html=False, include_plotlyjs=first, config={"displaylogo": False, "responsive": True})
    title = html.escape(chart.title)
    heading = "" if first else f"<h2>{title}</h2>"
    named = f"{title}: {html.escape(chart.y)} by {html.escape(chart.x)}; its values are in the table below"
    return f"{heading}<div role='group' aria-label='{named}'>{drawn}</div>"


def _decades(log: bool, values: Iterable[float | None]) -> dict[str, Any]:
    """Labels of a log axis: powers of ten alone where there are many, also 2 and 5 where there are few."""
    if not log:
        return {"tickformat": "~g"}
    known = [value for value in values if value is not None and value > 0]
    wide = bool(known) and math.log10(max(known) / min(known)) > 2
    return {"dtick": 1 if wide else "D2", "tickformat": ",~g"}


def _table(chart: Chart) -> str:
    xs = sorted({x for line in chart.series for x in line.x})
    held = [dict(zip(line.x, line.y, strict=True)) for line in chart.series]
    names = "".join(f"<th scope='col'>{html.escape(line.name)}</th>" for line in chart.series)
    rows = []
    for x in xs:
        cells = "".join(f"<td>{'' if (y := each.get(x)) is None else f'{y:.6g}'}</td>" for each in held)
        rows.append(f"<tr><th scope='row'>{x:.6g}</th>{cells}</tr>")
    head = f"<tr><th scope='col'>{html.escape(chart.x)}</th>{names}</tr>"
    return (
        "<details><summary>As a table</summary>"
        f"<div class='table' tabindex='0' role='group' aria-label='{html.escape(chart.title)}'>"
        f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _write_image(charts: Sequence[Chart], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5 * len(charts)), layout="constrained")
    for number, chart in enumerate(charts):
        axes = figure.add_subplot(len(charts), 1, number + 1)
        for line in chart.series:
            values = [math.nan if value is None else value for value in line.y]
            axes.plot(line.x, values, label=line.name, marker=".", linestyle="--" if line.dashed else "-")
        for at, label in chart.marks:
            axes.axvline(at, linestyle=":", color="grey")
            axes.annotate(label, (at, 1.0), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize="small")
        axes.set(title=chart.title, xlabel=chart.x, ylabel=chart.y)
        axes.set_xscale("log" if chart.log_x else "linear")
        axes.set_yscale("log" if chart.log_y else "linear")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)
