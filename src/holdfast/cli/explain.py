"""``holdfast explain``: what runs where of a plain streaming query."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from holdfast.cli.frame import frame_of
from holdfast.cli.output import Format, FormatOption, answer


def explain(
    query: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="a streaming DataFrame, or a function of none")],
    mode: Annotated[Literal["update", "append", "complete"], typer.Option(help="the output mode")] = "update",
    nodes: Annotated[int, typer.Option(min=1, help="nodes that the tasks are spread over")] = 4,
    parallelism: Annotated[int | None, typer.Option(min=1, help="tasks of the aggregate")] = None,
    budget: Annotated[float, typer.Option(min=0, help="so many replicas may be made")] = 0.0,
    form: FormatOption = Format.text,
) -> None:
    """What runs where of a plain streaming query, and what a loss leaves of its answer.

    Examples: holdfast explain my_job.py:totals; holdfast explain my_job.py:totals --mode append --budget 2
    """
    from holdfast.queries.explaining import explained, told

    content = explained(frame_of(query), mode, nodes, parallelism, budget)
    answer(content, form, lambda console: console.print(told(content), markup=False, highlight=False, soft_wrap=True))
