"""``holdfast fidelity``: how much of the answer is left when these tasks fail."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from holdfast.cli.output import Format, FormatOption, answer, warn
from holdfast.errors import Invalid
from holdfast.fidelity import output_fidelity
from holdfast.topology import read_topology


def fidelity(
    topology: Annotated[Path, typer.Argument(help="topology file, JSON or YAML")],
    failed: Annotated[str, typer.Option(help="failed tasks, such as O2/1,O3/0; all for every task")] = "",
    metric: Annotated[str, typer.Option(help="of: output fidelity; ic: internal completeness")] = "of",
    form: FormatOption = Format.text,
) -> None:
    """How much of the answer is left when these tasks fail.

    Example: holdfast fidelity examples/topologies/merge-of-two.json --failed O2/1
    """
    model = read_topology(topology)
    for warning in model.warnings:
        warn(f"{topology}: {warning}")
    if metric not in ("of", "ic"):
        raise Invalid(f"--metric must be of or ic, got {metric!r}")
    try:
        lost = model.tasks if failed.strip() == "all" else model.tasks_of(failed)
    except Invalid as error:
        raise Invalid(f"--failed: {error}") from None
    result = output_fidelity(model, lost, "ic" if metric == "ic" else "of")

    def read(console: Console) -> None:
        lost_of = f"{len(lost)} of {len(model.tasks)} tasks failed"
        console.print(f"fidelity {result.fidelity:.4f}  (objective {result.objective:.4f}, {lost_of})")
        for sink, value in result.queries.items():
            console.print(f"  query {sink}: {value:.4f}")

    answer(asdict(result), form, read)
