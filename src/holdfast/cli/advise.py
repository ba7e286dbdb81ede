"""``holdfast advise``: which resiliency strategy an uptime SLA calls for, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from holdfast.cli import scenario as given
from holdfast.cli.output import Format, FormatOption, answer, warn
from holdfast.errors import Invalid
from holdfast.report.chart import Chart, Series, check_plot_path, write_charts
from holdfast.resilience import (
    Advice,
    Limits,
    PipelineAdvice,
    Prices,
    Sweep,
    advise_scenario,
    split_budget,
    sweep,
)
from holdfast.resilience.advisor import LOSES_OUTPUT
from holdfast.resilience.pipeline_file import read_pipeline
from holdfast.resilience.quantities import duration, number, say_duration
from holdfast.resilience.sweep import PARAMETERS


def advise(
    window: given.WindowOption = None,
    checkpoint: given.CheckpointOption = None,
    rate: given.RateOption = None,
    sla: given.SlaOption = None,
    mtbf: given.MtbfOption = None,
    storage_copies: given.StorageCopiesOption = 3,
    max_nodes: given.MaxNodesOption = 10,
    max_recovery_factor: given.MaxRecoveryFactorOption = None,
    period: given.PeriodOption = None,
    lossless: given.LosslessOption = False,
    shards: given.ShardsOption = 1,
    price: given.PriceOption = "",
    checkpoint_cpu: given.CheckpointCpuOption = None,
    inactive: given.InactiveOption = 0.0,
    inactive_traffic: given.InactiveTrafficOption = "",
    inactive_local: given.InactiveLocalOption = False,
    durability: given.DurabilityOption = 0.99999,
    horizon: given.HorizonOption = "10y",
    progress: given.ProgressOption = None,
    row_bytes: given.RowBytesOption = None,
    pipeline: Annotated[
        Path | None, typer.Option(help="a file of stages that share one downtime budget, JSON or YAML")
    ] = None,
    vary: Annotated[
        str | None, typer.Option("--sweep", help=f"one of {', '.join(PARAMETERS)}: sla=0.9..0.99999, window=1m..30d")
    ] = None,
    points: Annotated[int, typer.Option(help="points of a sweep")] = 61,
    plot: Annotated[Path | None, typer.Option(help="write the sweep's curves here: .html, .png or .svg")] = None,
    form: FormatOption = Format.text,
) -> None:
    """Which resiliency strategy an uptime SLA calls for, and what it costs.

    Examples:
    holdfast advise --window 10m --checkpoint 2GiB --rate 50MB/s --sla 99.99% --mtbf 30d --max-recovery-factor 4;
    holdfast advise --progress progress.jsonl --row-bytes 180B --sla 0.999 --mtbf 30d;
    holdfast advise --window 1d --checkpoint 1d --mtbf 30d --sweep sla=0.9..0.99999 --plot sla.html;
    holdfast advise --pipeline stages.yaml --sla 0.999 --mtbf 30d
    """
    if plot is not None:
        check_plot_path(plot)
        if vary is None:
            raise Invalid("--plot: draws a sweep; add --sweep, such as --sweep sla=0.9..0.99999")
    prices, limits = given.prices_of(price), given.limits_of(max_nodes, max_recovery_factor, period, lossless)
    if pipeline is not None:
        if vary or progress or checkpoint or window:
            raise Invalid(
                "--pipeline: describes its stages itself; leave out --window, --checkpoint, --progress, --sweep"
            )
        _advise_pipeline(pipeline, sla, mtbf, prices, limits, form=form)
        return
    described = given.describe(
        window=window or _swept(vary, "window"),
        checkpoint=checkpoint or (None if progress else _swept(vary, "checkpoint")),
        rate_=rate,
        sla=sla,
        mtbf=mtbf,
        storage_copies=storage_copies,
        shards=shards,
        checkpoint_cpu=checkpoint_cpu,
        durability=durability,
        horizon=horizon,
        caching=given.caching_of(inactive, inactive_traffic, inactive_local),
        progress=progress,
        row_bytes=row_bytes,
    )
    if vary is None:
        advice = advise_scenario(described.scenario, prices, limits)
        if advice.best is None:
            warn("no strategy is feasible within these limits")
        content = _content(advice) | {"derived": described.derived, "assumed": described.assumed}
        answer(content, form, lambda console: _read(console, advice, described, prices))
        return
    name, ends = _range(vary)
    found = sweep(described.scenario, name, ends, points=points, prices=prices, limits=limits)
    if plot is not None:
        write_charts(charts(found), plot)
    content = _sweep_content(found) | {"derived": described.derived, "assumed": described.assumed}
    answer(content, form, lambda console: _read_sweep(console, found, plot))


def _content(advice: Advice) -> dict[str, Any]:
    return {"strategies": [asdict(option) for option in advice.options], "best": advice.best}


def _read(console: Console, advice: Advice, described: given.Described, prices: Prices) -> None:
    _notes(console, described.derived, described.assumed)
    if advice.best is not None:
        console.print(_table(advice, prices))
    for one in advice.options:
        if not one.feasible:
            console.print(f"{one.strategy} is not feasible: {one.why}", highlight=False, soft_wrap=True)
    if any(one.feasible and one.strategy in LOSES_OUTPUT for one in advice.options):
        console.print("* may lose output while it is down; --lossless rules that out", highlight=False)
    best = f"best: {advice.best}" if advice.best else "best: none; relax what the lines above name"
    console.print(best, highlight=False)


def _table(advice: Advice, prices: Prices) -> Table:
    """The feasible options: recovery in multiples of the input rate, costs over those of a query without resiliency."""
    priced = prices != Prices()
    table = Table(box=None, pad_edge=False)
    costs = ("network", "total") if priced else ("network",)
    for column in ("strategy", "copies", "checkpoint", "recovery", *costs, "to best"):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    least = advice.options[0].total_factor or 1.0
    for one in advice.options:
        if one.feasible and one.total_factor is not None:
            factors = (one.cost_factor, one.total_factor)
            table.add_row(
                one.strategy + ("*" if one.strategy in LOSES_OUTPUT else ""),
                str(one.nodes),
                f"every {say_duration(one.period_s)}" if one.period_s else "-",
                f"{one.recovery_factor:.4g}x",
                *(f"{factor:.4g}x" for factor in factors[: len(costs)]),
                f"{one.total_factor / least:.3g}x",
            )
    return table


def _notes(console: Console, derived: Mapping[str, str], assumed: Mapping[str, str]) -> None:
    for word, notes in (("derived", derived), ("assumed", assumed)):
        for name, text in notes.items():
            console.print(f"{word}  {name}: {text}", highlight=False, markup=False)


def _range(text: str) -> tuple[str, tuple[float, float]]:
    """``sla=0.9..0.99999``: the parameter and both ends, in its own unit."""
    name, equals, ends = text.partition("=")
    low, dots, high = ends.partition("..")
    if not equals or not dots or name not in PARAMETERS:
        raise Invalid(f"--sweep: expected PARAMETER=FROM..TO with one of {', '.join(PARAMETERS)}, got {text!r}")

    def read(end: str) -> float:
        if name in ("window", "checkpoint", "mtbf"):
            return duration(end, f"--sweep {name}")
        return given.share(end, "--sweep sla") if name == "sla" else number(end, f"--sweep {name}")

    return name, (read(low), read(high))


def _swept(text: str | None, name: str) -> str | None:
    """The lower end of a sweep over this parameter stands in for the option that it makes superfluous."""
    if text is None or not text.startswith(f"{name}="):
        return None
    return text.partition("=")[2].partition("..")[0]


def _sweep_content(found: Sweep) -> dict[str, Any]:
    def numbers(values: Any) -> list[float | None]:
        return [float(value) if math.isfinite(value) else None for value in values]

    return {
        "sweep": found.parameter,
        "values": numbers(found.values),
        "strategies": [
            {
                "strategy": name,
                "nodes": numbers(found.copies[name]),
                "recovery_factor": numbers(found.recovery_factors[name]),
                "total_factor": numbers(found.costs[name]),
            }
            for name in found.costs
        ],
        "best": list(found.best),
        "crossovers": [asdict(one) for one in found.crossovers],
    }


def _say(parameter: str, value: float) -> str:
    if parameter in ("window", "checkpoint", "mtbf"):
        return say_duration(value)
    return f"{value:.6g}"


def _read_sweep(console: Console, found: Sweep, plot: Path | None) -> None:
    table = Table(box=None, pad_edge=False, title=f"total cost by {found.parameter}, the best one starred")
    table.add_column(found.parameter, justify="right")
    for name in found.costs:
        table.add_column(name.replace("-", "-\n", 1), justify="right", no_wrap=True)
    for i in np.unique(np.linspace(0, len(found.values) - 1, 13).round().astype(int)):
        cells = [
            f"{costs[i]:.4g}{'*' if found.best[i] == name else ' '}" if math.isfinite(costs[i]) else "- "
            for name, costs in found.costs.items()
        ]
        table.add_row(_say(found.parameter, float(found.values[i])), *cells)
    console.print(table)
    for one in found.crossovers:
        at = _say(found.parameter, one.at)
        console.print(f"{found.parameter} {at}: {one.before or 'none'} -> {one.after or 'none'}", highlight=False)
    if not found.crossovers:
        console.print(f"{found.best[0] or 'none'} throughout", highlight=False)
    if plot is not None:
        console.print(f"curves in {plot}", highlight=False, markup=False)


def charts(found: Sweep) -> list[Chart]:
    """Cost and reservation over the swept parameter, with the crossovers marked. The SLA is drawn in nines."""
    nines = found.parameter == "sla"
    scaled = found.parameter in ("window", "checkpoint", "mtbf")
    label = {"sla": "nines of uptime (3 is 0.999)", "nodes": "running copies"}.get(found.parameter, found.parameter)

    def place(value: float) -> float:
        if nines:
            return -math.log10(1.0 - value)
        return value / 86400.0 if scaled else value

    x = [place(float(value)) for value in found.values]
    marks = [(place(one.at), f"{one.before or 'none'} to {one.after or 'none'}") for one in found.crossovers]

    def chart(title: str, y: str, curves: Mapping[str, Any]) -> Chart:
        series = [
            Series(name, x, [float(value) if math.isfinite(value) else None for value in values])
            for name, values in curves.items()
            if np.isfinite(values).any()
        ]
        return Chart(
            title=f"{title} by {'uptime (SLA)' if nines else found.parameter}",
            x=f"{label}, days" if scaled else label,
            y=y,
            series=series,
            marks=marks,
            log_x=scaled or found.parameter == "max-recovery-factor",
            log_y=True,
        )

    return [
        chart("Total cost", "times the cost without resiliency", found.costs),
        chart("Recovery reservation", "times the input rate", found.recovery_factors),
    ]


def _advise_pipeline(
    path: Path, sla: str | None, mtbf: str | None, prices: Prices, limits: Limits, *, form: Format
) -> None:
    file = read_pipeline(path, duration(mtbf, "--mtbf") if mtbf else None)
    if sla is None and file.sla is None:
        raise Invalid(f"--sla: is needed, as {path} says none")
    found = split_budget(file.stages, given.share(sla, "--sla") if sla else file.sla or 0.0, prices, limits)
    content = {
        "stages": [
            {"name": stage.name, "share": stage.share, "sla": stage.sla, **_content(stage.advice)}
            for stage in found.stages
        ],
        "cost_factor": found.cost_factor,
        "even_cost_factor": found.even_cost_factor,
    }
    answer(content, form, lambda console: _read_pipeline(console, found))


def _read_pipeline(console: Console, found: PipelineAdvice) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("stage", "share", "sla", "strategy", "copies", "period", "recovery", "cost"):
        table.add_column(column, justify="left" if column in ("stage", "strategy") else "right")
    for stage in found.stages:
        best = stage.advice.options[0]
        table.add_row(
            stage.name,
            f"{stage.share * 100:.4g} %",
            f"{stage.sla:.8g}",
            best.strategy,
            str(best.nodes),
            say_duration(best.period_s) if best.period_s else "-",
            f"{best.recovery_factor:.4g}x",
            f"{best.total_factor:.4g}x",
        )
    console.print(table)
    even = (
        f"; {found.even_cost_factor:.6g}x if split evenly"
        if found.even_cost_factor
        else "; not feasible if split evenly"
    )
    console.print(f"cost {found.cost_factor:.6g}x{even}", highlight=False)
