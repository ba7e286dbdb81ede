"""``holdfast state``: any task's state at any checkpoint, as a table."""

from __future__ import annotations

import base64
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import Format, answer
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from holdfast.state import Store, TaskState


class Form(StrEnum):
    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


def state(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="the store: a run's folder or any fsspec URL")],
    task: Annotated[
        str | None, typer.Option(help="the task, such as O3/0; without it: all tasks and their sizes")
    ] = None,
    epoch: Annotated[int | None, typer.Option(help="the checkpoint's epoch; the newest whole one if not given")] = None,
    name: Annotated[str | None, typer.Option("--table", help="the state table, if the task has several")] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="rows to show; 20 for table, all for the others")] = None,
    form: Annotated[
        Form, typer.Option("--format", help="table to read, one JSON object, csv, or parquet")
    ] = Form.table,
    out: Annotated[Path | None, typer.Option(help="write csv or parquet to this file instead of stdout")] = None,
) -> None:
    """Show a task's state at a checkpoint.

    Examples: holdfast state runs/wordcount; holdfast state runs/wordcount --task count/0 --epoch 12;
    holdfast state runs/wordcount --task count/0 --format parquet --out counts.parquet
    """
    from holdfast.state import Store

    place = Store(directory)
    place.require()
    _check_typed(place, task, epoch)
    if task is None:
        _overview(place, epoch, form)
        return
    if out is not None and form in (Form.table, Form.json):
        raise Invalid(f"--out goes with --format csv or parquet, got {form.value}")
    restored, at = place.restore(task, epoch)
    rows, table = _chosen(restored, task, name)
    shown = rows if limit is None and form is not Form.table else rows.slice(0, 20 if limit is None else limit)
    if form in (Form.csv, Form.parquet):
        _export(shown, form, out)
        return
    content = {"task": task, "epoch": at, "table": table, "total": len(rows), "rows": _plain(shown.to_pylist())}

    def read(console: Console) -> None:
        grid = Table(*shown.schema.names)
        for row in shown.to_pylist():
            grid.add_row(*(Text("" if value is None else str(value)) for value in row.values()))
        console.print(grid)
        console.print(f"task {task}, table {table}, epoch {at}: {len(shown):,} of {len(rows):,} rows", markup=False)

    answer(content, Format.json if form is Form.json else Format.text, read)


def _check_typed(place: Store, task: str | None, epoch: int | None) -> None:
    """What was typed must name something that there is; whether that is whole is another question."""
    known = place.checkpoints()
    epochs = [one.epoch for one in known]
    if known and epoch is not None and epoch not in epochs:
        raise Invalid(f"--epoch {epoch}: no checkpoint of that epoch, there is {', '.join(map(str, epochs))}")
    tasks = dict.fromkeys(name for one in known for name in one.tasks if epoch is None or one.epoch == epoch)
    if known and task is not None and task not in tasks:
        raise Invalid(f"--task {task}: no such task, there is {', '.join(tasks) or 'none'}")


def _chosen(restored: TaskState, task: str, name: str | None) -> tuple[Any, str]:
    names = list(restored.tables)
    if name is None and len(names) != 1:
        raise Invalid(
            f"task {task} has {len(names)} tables; choose with --table: {', '.join(names) or 'there is none'}"
        )
    table = names[0] if name is None else name
    return restored[table].to_table(), table


def _overview(place: Store, epoch: int | None, form: Form) -> None:
    """Tasks and their sizes, from the manifest alone."""
    if form in (Form.csv, Form.parquet):
        raise Invalid(f"--format {form.value} needs a --task")
    found = place.latest() if epoch is None else place.checkpoint(epoch)
    if found is None:
        raise Invalid(f"{place.url}: no checkpoint has been committed yet")
    tasks: list[dict[str, Any]] = [
        {
            "task": task,
            "tables": sorted({entry.table for entry in chain if entry.table}),
            "files": len(chain),
            "bytes": sum(entry.bytes for entry in chain),
        }
        for task, chain in found.tasks.items()
    ]

    def read(console: Console) -> None:
        grid = Table("task", "tables", "files", "bytes")
        for row in tasks:
            grid.add_row(row["task"], ", ".join(row["tables"]), str(row["files"]), f"{row['bytes']:,}")
        console.print(grid, markup=False)
        console.print(f"checkpoint of epoch {found.epoch}")

    answer({"epoch": found.epoch, "tasks": tasks}, Format.json if form is Form.json else Format.text, read)


def _export(rows: Any, form: Form, out: Path | None) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow import csv

    if form is Form.parquet and out is None and sys.stdout.isatty():
        raise Invalid("--format parquet is not for a screen: give --out FILE or redirect stdout")
    write = pq.write_table if form is Form.parquet else csv.write_csv
    if form is Form.csv and (nested := [f.name for f in rows.schema if pa.types.is_nested(f.type)]):
        raise Invalid(f"--format csv: column {nested[0]!r} is nested; use json or parquet")
    try:
        if out is None:
            sink = pa.BufferOutputStream()
            write(rows, sink)
            sys.stdout.buffer.write(sink.getvalue())
            sys.stdout.flush()
        else:
            write(rows, str(out))
    except OSError as error:
        raise Invalid(f"--out {out}: {error.strerror or error}") from error


def _plain(value: Any) -> Any:
    """As JSON: times and decimals as text, bytes in base64, NaN and infinity as null."""
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
