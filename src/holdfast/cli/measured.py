"""``holdfast plan --assessment``: replicas by measured impact and by fidelity, and where the two disagree."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast.cli.output import Format, answer
from holdfast.cli.picture import picture
from holdfast.replication.measured import Comparison, compared, impact_removed, plan_by_measurement, shares
from holdfast.replication.problem import Assume, Planner
from holdfast.topology import Topology


def by_measurement(
    model: Topology, budget: float, planner: Planner, assume: Assume, folder: Path, weight: float, form: Format
) -> None:
    """Plan with the impacts of an assessment, and say what fidelity alone would have done."""
    from holdfast.assessment.results import read_assessment  # brings scipy: other plans start without it

    impacts = read_assessment(folder).impacts()
    found = plan_by_measurement(model, budget, impacts, planner, weight=weight, assume=assume)
    alone = planner(model, budget, assume)
    rows = compared(model, impacts)
    differing = [each for each in rows if each.fidelity_rank != each.impact_rank]
    content: dict[str, Any] = {
        "algorithm": found.plan.algorithm,
        "budget": found.plan.budget,
        "cost": found.plan.cost,
        "replicas": [str(task) for task in found.plan.replicas],
        "fidelity": found.plan.fidelity,
        "objective": found.plan.objective,
        "optimal": found.plan.optimal,
        "assume": found.plan.assume,
        "weight": weight,
        "impact_removed": found.impact_removed,
        "value": found.value,
        "operators": [asdict(each) for each in rows],
        "disagree": [each.operator for each in differing],
        "by_fidelity_alone": {
            "replicas": [str(task) for task in alone.replicas],
            "fidelity": alone.fidelity,
            "impact_removed": impact_removed(model, model.mask(alone.replicas), shares(model, impacts)),
        },
    }

    def read(console: Console) -> None:
        console.print(picture(model, found.plan.replicas), end="")
        console.print(
            f"{found.plan.algorithm}: takes away {found.impact_removed:.1%} of the measured impact, fidelity "
            f"{found.plan.fidelity:.4f}, with {len(found.plan.replicas)} of {len(model.tasks)} tasks replicated, cost "
            f"{found.plan.cost:g} of {budget:g}",
            highlight=False,
            soft_wrap=True,
        )
        removed = content["by_fidelity_alone"]["impact_removed"]
        console.print(
            f"{alone.algorithm} by fidelity alone: {len(alone.replicas)} replicas take away {removed:.1%} of it, "
            f"fidelity {alone.fidelity:.4f}",
            highlight=False,
            soft_wrap=True,
        )
        console.print(_table(rows))

    answer(content, form, read)


def _table(rows: list[Comparison]) -> Table:
    table = Table(title="operators by measurement and by fidelity", title_justify="left")
    table.add_column("operator", no_wrap=True)
    for name in ("impact", "rank", "fidelity lost alone", "rank"):
        table.add_column(name, justify="right")
    table.add_column("")
    for each in rows:
        gap = "" if each.impact_rank == each.fidelity_rank else "they disagree"
        table.add_row(
            each.operator,
            f"{each.impact:.2f}",
            str(each.impact_rank),
            f"{each.fidelity_lost:.3f}",
            str(each.fidelity_rank),
            gap,
        )
    return table
