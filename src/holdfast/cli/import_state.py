"""``holdfast import-state``: a running query moves over from Structured Streaming, with its state."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.console import Console

from holdfast.cli.frame import frame_of
from holdfast.cli.output import Format, FormatOption, answer, progress


def import_state(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="the old query's checkpointLocation")],
    query: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="a streaming DataFrame, or a function of none")],
    store: Annotated[str, typer.Option(help="the new checkpointLocation: a folder that is not there yet, or empty")],
    mode: Annotated[
        Literal["update", "append", "complete"], typer.Option(help="the output mode that the old query had")
    ] = "update",
    nodes: Annotated[int | None, typer.Option(min=1, help="nodes that the job will count on")] = None,
    parallelism: Annotated[int | None, typer.Option(min=1, help="tasks of the aggregate")] = None,
    form: FormatOption = Format.text,
) -> None:
    """Seed a store with the state of a query that Structured Streaming ran.

    Examples: holdfast import-state old/checkpoint my_job.py:totals --store state;
    holdfast import-state hdfs:///jobs/totals my_job.py:totals --store state --mode complete

    Stop the old query first. Its checkpoint stays as it is; the new job goes on with the next batch.
    """
    from holdfast.queries.importing import import_state as imported

    def told(groups: int) -> None:
        progress.print(f"{groups:,} groups so far", highlight=False)

    frame = frame_of(query)
    done = imported(frame, checkpoint, store, mode=mode, nodes=nodes, parallelism=parallelism, told=told)

    def read(console: Console) -> None:
        groups = "1 group" if done.groups == 1 else f"{done.groups:,} groups"
        console.print(f"{groups} as of batch {done.epoch}, for {done.tasks} tasks: {done.store}", highlight=False)
        again = ", which Spark had planned" if done.planned else ""
        console.print(f"holdfast.writeStream with this checkpointLocation goes on with batch {done.epoch + 1}{again}")

    answer({"checkpoint": checkpoint, **asdict(done), "next": done.epoch + 1}, form, read)
