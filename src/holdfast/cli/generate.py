"""``holdfast generate``: a random topology to try things on, the same for the same seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast

import typer
import yaml
from rich.console import Console

from holdfast.cli.output import Format, FormatOption, answer
from holdfast.errors import Invalid
from holdfast.topology import Knobs, random_topology, topology_to
from holdfast.topology.random import Costs, Priorities, Workload

SUFFIXES = (".json", ".yaml", ".yml")


def generate(
    seed: Annotated[int, typer.Option(help="the same seed and options give the same topology")] = 0,
    operators: Annotated[str, typer.Option(help="number of operators: 8, or a range 5..10")] = "5..10",
    parallelism: Annotated[str, typer.Option(help="tasks of an operator: 4, or a range 1..10")] = "1..10",
    queries: Annotated[str, typer.Option(help="number of queries: 1, or a range 2..10")] = "1",
    joins: Annotated[float, typer.Option(help="share of joins among operators with inputs, 0 to 1")] = 0.0,
    full: Annotated[float, typer.Option(help="share of full streams: 0 structured, 1 full")] = 0.0,
    workload: Annotated[str, typer.Option(help="rates of an operator's tasks: uniform, or zipf")] = "uniform",
    skew: Annotated[float, typer.Option(help="exponent for --workload zipf")] = 0.1,
    priorities: Annotated[
        str, typer.Option(help="of queries: uniform, or rising or falling with what the query's tasks cost")
    ] = "uniform",
    costs: Annotated[str, typer.Option(help="of tasks: unit, or workload for costs in proportion to rates")] = "unit",
    domains: Annotated[int, typer.Option(help="failure domains to spread the tasks over; 0 for none")] = 0,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", help="write to this .json or .yaml file instead of stdout")
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """A random topology, with the knobs of the paper's evaluation.

    Example: holdfast generate --seed 7 --operators 10..20 --queries 2..10 --joins 0.5 -o random.json
    """
    if output is not None:
        if output.suffix not in SUFFIXES:
            raise Invalid(f"--out {output}: must end in {', '.join(SUFFIXES)}")
        if not output.parent.is_dir():
            raise Invalid(f"--out {output}: no such folder {output.parent}")
    try:
        knobs = Knobs(
            _range("operators", operators),
            _range("parallelism", parallelism),
            _range("queries", queries),
            joins,
            full,
            cast(Workload, workload),
            skew,
            cast(Priorities, priorities),
            cast(Costs, costs),
            domains,
        )
        topology = random_topology(seed, knobs)
    except Invalid as error:
        raise Invalid(f"--{error}") from None
    content = topology_to(topology)
    if output is None:
        answer(content, form, lambda _: typer.echo(json.dumps(content, indent=1)))
        return
    text = json.dumps(content, indent=1) if output.suffix == ".json" else yaml.safe_dump(content, sort_keys=False)
    output.write_text(text + "\n", encoding="utf-8")
    summary = {"file": str(output), "operators": len(topology.operators), "tasks": len(topology.tasks)}

    def read(console: Console) -> None:
        console.print(f"{output}: {len(topology.operators)} operators, {len(topology.tasks)} tasks", highlight=False)

    answer(summary, form, read)


def _range(what: str, written: str) -> tuple[int, int]:
    low, dots, high = written.partition("..")
    try:
        return int(low), int(high if dots else low)
    except ValueError:
        raise Invalid(f"{what} must be a whole number such as 8 or a range such as 5..10, got {written!r}") from None
