"""``holdfast plan``: which tasks to replicate within a budget; over a range of budgets, what each planner achieves."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from holdfast.cli.measured import by_measurement
from holdfast.cli.output import Format, FormatOption, answer, completing, progress, warn
from holdfast.cli.picture import picture
from holdfast.cli.surviving import parsed_survive, surviving
from holdfast.errors import Infeasible, Invalid, instead
from holdfast.replication import ASSUMPTIONS, DEFAULT, PLANNERS, Assume, Planner, ReplicationPlan
from holdfast.replication.completion import cheapest_tree
from holdfast.replication.exact import TIME_LIMIT, exact
from holdfast.report.chart import Chart, Series, check_plot_path, write_charts
from holdfast.topology import Topology, read_topology

MOST_BUDGETS = 1000
CURVE_TIME_LIMIT = 5.0


def plan(
    topology: Annotated[Path, typer.Argument(help="topology file, JSON or YAML")],
    budget: Annotated[
        str,
        typer.Option(
            help="resource units for replicas: 6, or 2.5; a range 1..20 or 0..50:5, or a list 2,4,8, for curves"
        ),
    ],
    algorithm: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(PLANNERS)}; {DEFAULT} if not given, and all of them for a range of budgets",
            autocompletion=completing(lambda: PLANNERS),
        ),
    ] = None,
    assume: Annotated[
        str,
        typer.Option(
            help="what fails: all (every task without a replica), or any one of the file's domains, "
            "planned for the worst-domain or the average-domain"
        ),
    ] = "all",
    plot: Annotated[
        Path | None, typer.Option(help="write fidelity against budget as .html, .png or .svg; needs a range")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help=f"seconds that exact may take for a budget; {TIME_LIMIT:g}, or {CURVE_TIME_LIMIT:g} in a range"
        ),
    ] = None,
    assessment: Annotated[
        Path | None,
        typer.Option(help="folder of holdfast assess --out: plan by measured impact as well as by fidelity"),
    ] = None,
    weight: Annotated[
        float, typer.Option(help="with --assessment: 0 plans by fidelity alone, 1 by measured impact alone")
    ] = 0.5,
    nodes: Annotated[
        int | None, typer.Option(help="with --survive: how many nodes the tasks and their replicas live on")
    ] = None,
    survive: Annotated[
        str | None,
        typer.Option(help="plan where replicas live too: for the loss of any so many nodes, or of any one domain"),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """Which tasks to replicate within a budget.

    Examples: holdfast plan examples/topologies/incidents.json --budget 6;
    holdfast plan examples/topologies/incidents.json --budget 1..20 --plot curve.html;
    holdfast plan examples/topologies/incidents.json --budget 6 --nodes 4 --survive 2
    """
    budgets = parsed_budgets(budget)
    curve = any(mark in budget for mark in ("..", ","))
    known = _known_assumption(assume)
    if algorithm is not None and algorithm not in PLANNERS:
        raise Invalid(f"--algorithm {algorithm!r}: {instead(algorithm, PLANNERS, 'there are')}")
    if time_limit is not None and not (math.isfinite(time_limit) and time_limit > 0):
        raise Invalid(f"--time-limit must be above 0 seconds, got {time_limit}")
    if plot is not None:
        if not curve:
            raise Invalid(f"--plot {plot}: draws a curve; give a range of budgets, such as --budget 1..20")
        check_plot_path(plot)
    elsewhere = {
        "--algorithm": algorithm is not None,
        "--assume": known != "all",
        "--time-limit": time_limit is not None,
    }
    lost = parsed_survive(survive, nodes, {**elsewhere, "--assessment": assessment is not None})
    if lost is not None and curve:
        raise Invalid(f"--survive {survive}: takes one budget, such as --budget 3, got {budget!r}")
    model = read_topology(topology)
    if known != "all" and not model.domains:
        raise Invalid(f'--assume {known}: {topology} has no domains; name groups of tasks under "domains"')
    for warning in model.warnings:
        warn(f"{topology}: {warning}")
    limit = time_limit or (CURVE_TIME_LIMIT if curve else TIME_LIMIT)
    if lost is not None:
        surviving(topology, model, budgets[0], nodes, lost, form)
    elif assessment is not None:
        if curve:
            raise Invalid(f"--assessment: takes one budget, such as --budget 3, got {budget!r}")
        by_measurement(model, budgets[0], _planner(algorithm or DEFAULT, limit), known, assessment, weight, form)
    elif not curve:
        _one(model, budgets[0], _planner(algorithm or DEFAULT, limit), known, form)
    else:
        chosen = [algorithm] if algorithm else list(PLANNERS)
        _many(topology, model, budgets, {name: _planner(name, limit) for name in chosen}, known, plot, form)


def _planner(name: str, time_limit: float) -> Planner:
    return partial(exact, time_limit=time_limit) if name == "exact" else PLANNERS[name]


def _one(model: Topology, budget: float, planner: Planner, assume: Assume, form: Format) -> None:
    found = planner(model, budget, assume)
    if found.fidelity == 0 and assume == "all":
        tree = cheapest_tree(model)
        price = sum(model.costs[model.index[task]] for task in tree)
        warn(f"nothing reaches a query; a complete tree costs {price:g}: {', '.join(map(str, tree[:12]))}")

    def read(console: Console) -> None:
        proof = {True: ", optimal", False: ", not proven optimal", None: ""}[found.optimal]
        console.print(picture(model, found.replicas), end="")
        console.print(
            f"{found.algorithm}: fidelity {found.fidelity:.4f} (objective {found.objective:.4f}{proof}) "
            f"with {len(found.replicas)} of {len(model.tasks)} tasks replicated, cost {found.cost:g} of {budget:g}",
            highlight=False,
            soft_wrap=True,
        )

    answer(_content(found), form, read)


def _content(found: ReplicationPlan) -> dict[str, Any]:
    return {
        "algorithm": found.algorithm,
        "budget": found.budget,
        "cost": found.cost,
        "replicas": [str(task) for task in found.replicas],
        "fidelity": found.fidelity,
        "objective": found.objective,
        "optimal": found.optimal,
        "assume": found.assume,
    }


def _many(
    path: Path,
    model: Topology,
    budgets: list[float],
    planners: dict[str, Planner],
    assume: Assume,
    plot: Path | None,
    form: Format,
) -> None:
    plans: dict[str, list[ReplicationPlan | None]] = {name: [] for name in planners}
    notes: list[str] = []
    with progress.status("planning") as status:
        for name, planner in planners.items():
            refused = ""
            for budget in budgets:
                status.update(f"planning: {name}, budget {budget:g}")
                try:
                    plans[name].append(None if refused else planner(model, budget, assume))
                except Infeasible as error:
                    refused = str(error)
                    plans[name].append(None)
                    notes.append(f"left out from budget {budget:g} on: {refused}")
    for note in notes:
        warn(note)
    if plot is not None:
        series = [
            Series(name, budgets, [None if one is None else one.fidelity for one in line], name == "greedy")
            for name, line in plans.items()
            if any(line)
        ]
        write_charts([Chart(f"Fidelity against budget: {path.name}", "budget", "output fidelity", series)], plot)
    content: dict[str, Any] = {
        "budgets": budgets,
        "assume": assume,
        "curves": {name: [None if one is None else one.fidelity for one in line] for name, line in plans.items()},
        "plans": {name: [None if one is None else _content(one) for one in line] for name, line in plans.items()},
        "notes": notes,
    }
    answer(content, form, lambda console: _read_curves(console, model, budgets, plans, plot))


def _read_curves(
    console: Console,
    model: Topology,
    budgets: list[float],
    plans: dict[str, list[ReplicationPlan | None]],
    plot: Path | None,
) -> None:
    console.print("output fidelity by budget; ? where exact could not prove its plan in time", highlight=False)
    table = Table()
    table.add_column("budget", justify="right")
    for name in plans:
        table.add_column(name, justify="right")
    for row, budget in enumerate(budgets):
        table.add_row(f"{budget:g}", *(_cell(line[row]) for line in plans.values()))
    console.print(table)
    name, shown = next((name, line[-1]) for name, line in plans.items())
    if shown is not None:
        console.print(f"with a budget of {budgets[-1]:g}, {name} replicates:", highlight=False)
        console.print(picture(model, shown.replicas), end="")
    if plot is not None:
        console.print(f"curve written to {plot}", highlight=False)


def _cell(found: ReplicationPlan | None) -> str:
    if found is None:
        return "-"
    return f"{found.fidelity:.4f}{'?' if found.optimal is False else ''}"


def _known_assumption(written: str) -> Assume:
    for known in ASSUMPTIONS:
        if written == known:
            return known
    raise Invalid(f"--assume must be one of {', '.join(ASSUMPTIONS)}, got {written!r}")


def parsed_budgets(written: str) -> list[float]:
    """``6``, ``2.5``, ``1..20``, ``0..50:5`` or ``2,4,8`` as numbers."""
    if ".." in written:
        low, _, rest = written.partition("..")
        high, _, step = rest.partition(":")
        first, last, by = _number(low, written), _number(high, written), _number(step, written) if step else 1.0
        if last < first or by <= 0:
            raise Invalid(f"--budget {written!r}: a range goes up from the first number to the last, such as 1..20")
        if (last - first) / by >= MOST_BUDGETS:
            raise Invalid(
                f"--budget {written!r}: more than {MOST_BUDGETS} budgets; take larger steps, such as 0..5000:50"
            )
        return [round(first + by * i, 9) for i in range(int((last - first) / by + 1e-9) + 1)]
    return [_number(part, written) for part in written.split(",")]


def _number(part: str, written: str) -> float:
    try:
        value = float(part)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise Invalid(f"--budget {written!r}: must be a finite number, 0 or more, such as 6, or a range such as 1..20")
    return value
