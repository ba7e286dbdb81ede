"""``holdfast plan --survive``: replicas and where they live, so that any loss of so many nodes leaves much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from holdfast.cli.output import Format, answer, warn
from holdfast.cli.picture import picture
from holdfast.errors import Invalid
from holdfast.fidelity import priorities
from holdfast.placement import Node, place
from holdfast.replication.floor import Survive
from holdfast.replication.surviving import SurvivingPlan, plan_surviving
from holdfast.topology import Task, Topology

ALGORITHM = "surviving"
MOST_NODES = 1000


def parsed_survive(written: str | None, nodes: int | None, others: Mapping[str, bool]) -> Survive | None:
    """How many nodes may be lost, or "domain"; None where --survive is not given.

    ``others``: options that say something else is to be planned for, and whether they were given.
    """
    if nodes is not None and not 1 <= nodes <= MOST_NODES:
        raise Invalid(f"--nodes must be a number from 1 to {MOST_NODES}, got {nodes}")
    if written is None:
        if nodes is not None:
            raise Invalid(f"--nodes {nodes}: says where replicas live; add --survive, such as --survive 1")
        return None
    for option, given in others.items():
        if given:
            raise Invalid(f"--survive {written}: cannot be planned with {option}; leave one of the two out")
    if written == "domain":
        return "domain"
    if not written.isascii() or not written.isdecimal() or int(written) < 1:
        raise Invalid(f"--survive must be a number of nodes, 1 or more, or domain, got {written!r}")
    if nodes is None:
        raise Invalid(f"--survive {written}: of how many nodes? add --nodes, such as --nodes {int(written) + 2}")
    if int(written) >= nodes:
        raise Invalid(f"--survive {written}: nothing survives the loss of all of {nodes} nodes; at most {nodes - 1}")
    return int(written)


def surviving(path: Path, model: Topology, budget: float, count: int | None, survive: Survive, form: Format) -> None:
    """Plan, and say what is left at least."""
    if survive == "domain":
        nodes, primaries = _in_domains(path, model, count)
        found = plan_surviving(model, budget, nodes, survive, primaries)
    else:
        nodes = [Node(f"node-{number}", _ample(model)) for number in range(count or 0)]
        found = plan_surviving(model, budget, nodes, survive)
    if found.floor.fidelity == 0:
        warn(_nothing_left(model, found, nodes))
    answer(_content(model, found, nodes), form, lambda console: _read(console, model, found, nodes))


def _in_domains(path: Path, model: Topology, count: int | None) -> tuple[list[Node], dict[Task, str]]:
    """Nodes in the domains of the file in turn, and its tasks on the nodes of their domain by worst fit."""
    if not model.domains:
        raise Invalid(f'--survive domain: {path} has no domains; name groups of tasks under "domains"')
    domains = list(model.domains)
    count = len(domains) if count is None else count
    if count < len(domains):
        raise Invalid(f"--nodes {count}: {path} has {len(domains)} domains; at least one node for each")
    nodes = [Node(f"node-{number}", _ample(model), domain=domains[number % len(domains)]) for number in range(count)]
    primaries: dict[Task, str] = {}
    for name, tasks in model.domains.items():
        primaries |= place(model, tasks, [node for node in nodes if node.domain == name], 1.0).nodes
    return nodes, primaries


def _ample(model: Topology) -> float:
    return 1.0 + 4.0 * float(model.costs.sum())


def _content(model: Topology, found: SurvivingPlan, nodes: Sequence[Node]) -> dict[str, Any]:
    return {
        "algorithm": ALGORITHM,
        "budget": found.budget,
        "cost": found.cost,
        "replicas": [str(task) for task in found.replicas],
        "fidelity": found.floor.bound,
        "objective": round(found.floor.bound * float(priorities(model).sum()), 12),
        "optimal": None,
        "assume": "nodes" if found.survive != "domain" else "domain",
        "nodes": [{"name": node.name, "domain": node.domain or node.name} for node in nodes],
        "survive": found.survive,
        "floor": {
            "fidelity": found.floor.fidelity,
            "worst": _in_order(found, nodes),
            "exact": found.floor.exact,
            "bound": found.floor.bound,
        },
        "placement": {str(task): list(homes) for task, homes in found.placement.items()},
    }


def _in_order(found: SurvivingPlan, nodes: Sequence[Node]) -> list[str]:
    return [node.name for node in nodes if node.name in found.floor.worst]


def _nothing_left(model: Topology, found: SurvivingPlan, nodes: Sequence[Node]) -> str:
    """Why: a task that has no like and loses both copies, or too small a budget."""
    lost = " and ".join(_in_order(found, nodes))
    for task, homes in found.placement.items():
        if model.operator[task.operator].parallelism == 1 and len(homes) > 1 and set(homes) <= found.floor.worst:
            return f"nothing is left without {lost}: they hold both copies of {task}, the only task of {task.operator}"
    return f"nothing is left without {lost}; a larger budget may change that"


def _read(console: Console, model: Topology, found: SurvivingPlan, nodes: Sequence[Node]) -> None:
    console.print(picture(model, list(found.replicas)), end="")
    width = max(len(node.name) for node in nodes)
    for node in nodes:
        held = [str(task) for task, name in found.replicas.items() if name == node.name]
        place = node.name.rjust(width) + (f" ({node.domain})" if node.domain else "")
        console.print(f"{place}  replicas: {', '.join(held) or 'none'}", highlight=False, soft_wrap=True)
    console.print(_sentence(found, nodes), highlight=False, soft_wrap=True)
    console.print(
        f"{len(found.replicas)} of {len(model.tasks)} tasks replicated, cost {found.cost:g} of {found.budget:g}",
        highlight=False,
        soft_wrap=True,
    )


def _sentence(found: SurvivingPlan, nodes: Sequence[Node]) -> str:
    worst = _in_order(found, nodes)
    if found.survive == "domain":
        domains = list(dict.fromkeys(node.domain for node in nodes))
        fallen = next(node.domain for node in nodes if node.name in found.floor.worst)
        what, named = f"any one of {len(domains)} domains dies", fallen
    else:
        what = f"any {found.survive} of {len(nodes)} nodes {'dies' if found.survive == 1 else 'die'}"
        named = " and ".join(filter(None, [", ".join(worst[:-1]), worst[-1]]))
    least = found.floor
    told = "worst" if least.exact else f"the worst that was found leaves {least.fidelity:.4f}"
    return f"if {what}: at least {least.bound:.4f} ({told}: {named})"
