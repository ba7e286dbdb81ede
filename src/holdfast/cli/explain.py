"""``holdfast explain``: what runs where of a plain streaming query."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from holdfast.assessment.scores import loaded
from holdfast.cli.output import Format, FormatOption, answer
from holdfast.errors import Invalid


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
    from pyspark.sql import DataFrame

    from holdfast.queries.explaining import explained, told
    from holdfast.runtime.spark.shipping import first_cause

    found = loaded(query, "query")
    try:
        frame = found() if callable(found) else found
    except Exception as error:
        raise Invalid(f"{query}: it fails: {type(error).__name__}: {first_cause(error)}") from None
    if not isinstance(frame, DataFrame):
        raise Invalid(
            f"{query}: a streaming DataFrame is needed, or a function that makes one, got {type(frame).__name__}"
        )
    content = explained(frame, mode, nodes, parallelism, budget)
    answer(content, form, lambda console: console.print(told(content), markup=False, highlight=False, soft_wrap=True))
