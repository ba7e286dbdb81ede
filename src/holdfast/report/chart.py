"""A line chart as a value; written as HTML (plotly), PNG or SVG (matplotlib, the ``plot`` extra) by the file name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import Invalid

SUFFIXES = (".html", ".png", ".svg")


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
    import plotly.graph_objects as go

    parts = []
    for number, chart in enumerate(charts):
        figure = go.Figure()
        for line in chart.series:
            style = {"dash": "dash" if line.dashed else "solid"}
            figure.add_scatter(x=list(line.x), y=list(line.y), name=line.name, mode="lines+markers", line=style)
        for at, label in chart.marks:
            figure.add_vline(x=at, line_dash="dot")
            # On a log axis lines stand at values, but annotations at their logarithms.
            place = math.log10(at) if chart.log_x else at
            figure.add_annotation(x=place, y=1, yref="paper", yanchor="bottom", text=label, showarrow=False)
        figure.update_layout(title=chart.title, xaxis_title=chart.x, yaxis_title=chart.y, template="plotly_white")
        figure.update_xaxes(type="log" if chart.log_x else "linear")
        figure.update_yaxes(type="log" if chart.log_y else "linear")
        parts.append(figure.to_html(full_html=False, include_plotlyjs=number == 0))
    title = charts[0].title if charts else "Holdfast"
    head = f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title></head><body>"
    path.write_text(head + "\n".join(parts) + "</body></html>", encoding="utf-8")


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
