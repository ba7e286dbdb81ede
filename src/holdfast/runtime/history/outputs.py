"""Outputs of a job: staged by the task that made them, published by the driver, read back by anybody.

A run may be broken off, so what its sinks wrote waits under ``output/staged`` until the epoch is journalled; publishing
moves it under its own name, once. Final output supersedes tentative output of the same task and epoch, also where
it has no rows and so leaves no file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Invalid
from holdfast.runtime.history.history import read_history
from holdfast.state.files import Files, LocalFiles, open_files
from holdfast.state.store import Store
from holdfast.topology import Task

Kind = Literal["final", "tentative"]
View = Literal["latest", "final", "tentative"]
STAGED = "output/staged"
OWN = ("epoch", "task", "fidelity")
_NAME = re.compile(r"(\d+)-(.+)-(\d+)\.parquet")


def name_of(epoch: int, task: Task) -> str:
    return f"{epoch:012d}-{task.operator}-{task.number}.parquet"


def stage(
    files: Files, run: str, kind: Kind, epoch: int, task: Task, table: pa.Table, fidelity: float, sync: bool
) -> str:
    """Write a sink task's rows of an epoch; the name under which they wait."""
    if clash := [column for column in OWN if column in table.column_names]:
        raise Invalid(f"output of {task}: column {clash[0]!r} is Holdfast's own, give yours another name")
    rows = len(table)
    own: dict[str, pa.Array] = {
        "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), rows),
        "task": pa.repeat(pa.scalar(str(task)), rows),
    }
    if kind == "tentative":
        own["fidelity"] = pa.repeat(pa.scalar(fidelity, pa.float64()), rows)
    sink = pa.BufferOutputStream()
    columns = dict(zip(table.column_names, table.columns, strict=True))
    pq.write_table(pa.table({**own, **columns}), sink)
    name = f"{STAGED}/{run}-{kind}-{name_of(epoch, task)}"
    files.put(name, sink.getvalue(), sync)
    return name


def publish(files: Files, staged: str, kind: Kind, epoch: int, task: Task) -> bool:
    """Move staged rows to where everybody reads them; False if they were there already."""
    target = f"output/{kind}/{name_of(epoch, task)}"
    if isinstance(files, LocalFiles):
        path = files.root / target
        there = path.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        if there:
            files.delete(staged)
        else:
            (files.root / staged).replace(path)
        return not there
    try:
        files.create(target, files.read(staged), sync=False)
    except FileExistsError:
        return False
    finally:
        files.delete(staged)
    return True


def written(files: Files, kind: Kind) -> dict[tuple[int, Task], str]:
    """The output files of a kind by epoch and task."""
    found = ((_NAME.fullmatch(name), name) for name in files.list(f"output/{kind}"))
    return {(int(match[1]), Task(match[2], int(match[3]))): f"output/{kind}/{name}" for match, name in found if match}


def newest_final(files: Files) -> dict[Task, int]:
    """Up to which epoch each task's final output is there; epochs in which it said nothing leave no trace."""
    newest: dict[Task, int] = {}
    for epoch, task in written(files, "final"):
        newest[task] = max(epoch, newest.get(task, -1))
    return newest


def read_output(directory: str | Path, view: View = "latest") -> pa.Table:
    """The output of a run, in the order of epoch and task.

    ``final``: exact rows alone. ``tentative``: every tentative row, superseded or not. ``latest``: of a task's epoch
    what is final, be it no row at all, else its tentative rows; ``fidelity`` tells (1 for final rows).
    """
    if view not in ("latest", "final", "tentative"):
        raise Invalid(f"view must be latest, final or tentative, got {view!r}")
    files = open_files(str(directory))
    if not files.list("output"):
        raise Invalid(f"{directory}: no output here; give the folder of a run (its --out)")
    final = written(files, "final")
    tentative = written(files, "tentative")
    match view:
        case "final":
            chosen = final
        case "tentative":
            chosen = tentative
        case "latest":
            chosen = {**_standing(files.url, final, tentative), **final}
    tables = []
    for key in sorted(chosen):
        table = pq.read_table(pa.BufferReader(files.read(chosen[key])))
        if view == "latest" and "fidelity" not in table.column_names:
            table = table.append_column("fidelity", pa.repeat(pa.scalar(1.0), len(table)))
        tables.append(table)
    if not tables:
        known = {"epoch": pa.int64(), "task": pa.string()} | ({} if view == "final" else {"fidelity": pa.float64()})
        return pa.schema(known).empty_table()
    return pa.concat_tables(tables, promote_options="permissive")


def _standing(
    url: str, final: Mapping[tuple[int, Task], str], tentative: Mapping[tuple[int, Task], str]
) -> dict[tuple[int, Task], str]:
    """Tentative outputs that nothing final supersedes: those of epochs that their task has not answered exactly yet.

    It has, up to the newest checkpoint, up to the last epoch of which it has final rows, and up to the last epoch that
    the history (of a store on a local disk) says it was exact in.
    """
    open_ = {key: path for key, path in tentative.items() if key not in final}
    if not open_:
        return {}
    everybody = max((kept.epoch for kept in Store(url).checkpoints()), default=-1)
    exact: dict[Task, int] = {}
    for epoch, task in final:
        exact[task] = max(epoch, exact.get(task, -1))
    tasks = {task for _, task in open_}
    with contextlib.suppress(Invalid):
        for event in read_history(url):
            if event["kind"] == "epoch":
                for task in tasks:
                    if str(task) not in event.get("inexact", {}):
                        exact[task] = max(event["epoch"], exact.get(task, -1))
    return {(epoch, task): path for (epoch, task), path in open_.items() if epoch > max(everybody, exact.get(task, -1))}
