"""``holdfast schedule``: what to recover first while capacity comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from holdfast.cli.output import Format, FormatOption, answer, completing, progress, warn
from holdfast.errors import Infeasible, Invalid, instead
from holdfast.recovery import ALGORITHMS, DEFAULT, Schedule, recover
from holdfast.recovery import schedule as make_schedule
from holdfast.report.chart import Chart, Series, check_plot_path, write_charts
from holdfast.topology import Task, Topology, read_topology

POINTS = 20
"""A plot has this many steps from no capacity to enough for everything."""


def schedule(
    topology: Annotated[Path, typer.Argument(help="topology file, JSON or YAML")],
    *,
    failed: Annotated[str, typer.Option(help="failed tasks, such as O2/1,O3/0; all for every task; '' for none")],
    capacity: Annotated[float | None, typer.Option(help="resource units there are now, such as 5")] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="units that arrive one after the other, such as 2,2,2; what is left is kept")
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(
            help="whole query partitions first: best-density, dynamic, exact (operator-centric for comparison); "
            "best average fidelity: incremental (topological for comparison)",
            autocompletion=completing(lambda: ALGORITHMS),
        ),
    ] = DEFAULT,
    plot: Annotated[
        Path | None, typer.Option(help="chart of all algorithms over capacity; ends in .html, .png or .svg")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """What to recover first while capacity comes back after a failure.

    Examples:
    holdfast schedule examples/topologies/three-queries.json --failed all --capacity 5;
    holdfast schedule T.json --failed O1/0,O3/2 --arrivals 2,2,2 --algorithm incremental
    """
    if (capacity is None) == (arrivals is None):
        found = "both" if capacity is not None else "neither"
        raise Invalid(f"either --capacity 5 or --arrivals 2,2,2 is needed, got {found}")
    if algorithm not in ALGORITHMS:
        raise Invalid(f"--algorithm {algorithm!r}: {instead(algorithm, ALGORITHMS, 'there are')}")
    if plot is not None:
        check_plot_path(plot)
    amounts = _amounts(arrivals) if arrivals is not None else None
    model = read_topology(topology)
    for warning in model.warnings:
        warn(f"{topology}: {warning}")
    lost = _failed(model, failed)
    try:
        result = make_schedule(model, lost, capacity, amounts, algorithm)
    except Invalid as error:
        raise Invalid(f"--{error}" if str(error).startswith("capacity") else f"--arrivals: {error}") from None
    if plot is not None:
        write_charts(charts(model, lost), plot)
        progress.print(f"holdfast: wrote {plot}", highlight=False, markup=False, soft_wrap=True)
    answer(result.as_json(), form, lambda console: _read(console, result, model, lost))


def _amounts(written: str) -> list[float]:
    amounts = []
    for part in written.split(","):
        try:
            amounts.append(float(part))
        except ValueError:
            raise Invalid(f"--arrivals: {part.strip()!r} is not a number; write 2,2,2") from None
    return amounts


def _failed(model: Topology, written: str) -> tuple[Task, ...]:
    try:
        return model.tasks if written.strip() == "all" else model.tasks_of(written)
    except Invalid as error:
        raise Invalid(f"--failed: {error}") from None


def _read(console: Console, result: Schedule, model: Topology, lost: tuple[Task, ...]) -> None:
    if not lost:
        console.print("nothing failed, nothing to recover")
        return
    several = len(result.steps) > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("step", "capacity", "spent"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("recovers", overflow="fold")
    table.add_column("completes", overflow="fold")
    table.add_column("fidelity", justify="right", no_wrap=True)
    for number, step in enumerate(result.steps, 1):
        carried = step.capacity - step.arrived
        table.add_row(
            str(number),
            f"{step.arrived:g} + {carried:g}" if several and carried > 1e-9 else f"{step.capacity:g}",
            f"{step.cost:g}",
            " ".join(map(str, step.recover)) or "-",
            " ".join(map(str, step.queries)) or "-",
            f"{step.fidelity:.4f}",
        )
    console.print(table)
    console.print()
    proven = {True: " (optimal at each step)", False: " (out of time: best known, not proven)", None: ""}[
        result.optimal
    ]
    console.print(f"{result.algorithm}: recovered priority {result.priority:g}{proven}", highlight=False)
    if several:
        console.print(f"average fidelity {result.average_fidelity:.4f} over {len(result.steps)} arrivals")
    if result.still_failed:
        cost = float(model.costs[[model.index[task] for task in result.still_failed]].sum())
        console.print(f"still failed: {len(result.still_failed)} of {len(lost)} tasks, {cost:g} units")


def charts(model: Topology, lost: tuple[Task, ...]) -> list[Chart]:
    """Recovered priority for each capacity on its own, and fidelity as capacity arrives in equal parts."""
    total = float(model.costs[[model.index[task] for task in lost]].sum())
    shares = [point / POINTS for point in range(POINTS + 1)]
    most = recover(model, lost, total).priority
    before = make_schedule(model, lost, 0.0).average_fidelity
    recovered, fidelity = [], []
    for name in ALGORITHMS:
        progress.print(f"holdfast: plot: {name}", highlight=False)
        dashed = name in ("operator-centric", "topological")
        try:
            values = [recover(model, lost, total * share, name).priority for share in shares]
            steps = make_schedule(model, lost, arrivals=[total / POINTS] * POINTS, algorithm=name).steps
        except Infeasible as error:
            warn(f"plot: left out: {error}")
            continue
        ratio = [value / most if most > 0 else 0.0 for value in values]
        recovered.append(Series(name, [100 * share for share in shares], ratio, dashed))
        line = [before, *(step.fidelity for step in steps)]
        fidelity.append(Series(name, [100 * share for share in shares], line, dashed))
    axis = "capacity, % of the cost of all failed tasks"
    return [
        Chart("Recovered priority by capacity", axis, "share of the priority lost", recovered),
        Chart(f"Fidelity while capacity arrives in {POINTS} equal parts", axis, "fidelity", fidelity),
    ]
