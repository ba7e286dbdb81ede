"""Outputs as they stand: what a job has said, final or tentative, read back by anybody.

Final output supersedes tentative output of the same task and epoch, also where it has no rows and so leaves no file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.runtime.history.history import read_history
from holdfast.state import output
from holdfast.state.files import Files, open_files
from holdfast.state.output import Kind
from holdfast.state.store import Store
from holdfast.state.sums import Sums

View = Literal["latest", "final", "tentative"]
Key = tuple[int, str]
"""An epoch and a task."""


def read_output(
    directory: str | Path, view: View = "latest", storage_options: Mapping[str, Any] | None = None
) -> pa.Table:
    """The output of a run, in the order of epoch and task.

    ``final``: exact rows alone. ``tentative``: every tentative row, superseded or not. ``latest``: of a task's epoch
    what is final, be it no row at all, else its tentative rows; ``fidelity`` tells (1 for final rows).
    ``storage_options``: as for the job, if its store is behind a URL.
    """
    if view not in ("latest", "final", "tentative"):
        raise Invalid(f"view must be latest, final or tentative, got {view!r}")
    files = open_files(str(directory), storage_options)
    if not files.list("output"):
        raise Invalid(f"{directory}: no output here; give the folder of a run (its --out)")
    final: dict[Key, Kind] = dict.fromkeys(output.written(files, "final"), "final")
    tentative: dict[Key, Kind] = dict.fromkeys(output.written(files, "tentative"), "tentative")
    match view:
        case "final":
            chosen = final
        case "tentative":
            chosen = tentative
        case "latest":
            chosen = {**_standing(files, final, tentative), **final}
    tables, proofs = [], Sums(files)
    for (epoch, task), kind in sorted(chosen.items(), key=lambda item: (item[0][0], _ordered(item[0][1]))):
        table = output.read(files, kind, epoch, task, proofs)
        if view == "latest" and "fidelity" not in table.column_names:
            table = table.append_column("fidelity", pa.repeat(pa.scalar(1.0), len(table)))
        tables.append(table)
    if not tables:
        known = {"epoch": pa.int64(), "task": pa.string()} | ({} if view == "final" else {"fidelity": pa.float64()})
        return pa.schema(known).empty_table()
    return pa.concat_tables(tables, promote_options="permissive")


def _standing(files: Files, final: Mapping[Key, Kind], tentative: Mapping[Key, Kind]) -> dict[Key, Kind]:
    """Tentative outputs that nothing final supersedes: those of epochs that their task has not answered exactly yet.

    It has, up to the newest checkpoint, up to the last epoch of which it has final rows, and up to the last epoch that
    the history says it was exact in.
    """
    open_ = {key: kind for key, kind in tentative.items() if key not in final}
    if not open_:
        return {}
    everybody = max((kept.epoch for kept in Store(files).checkpoints()), default=-1)
    exact: dict[str, int] = {}
    for epoch, task in final:
        exact[task] = max(epoch, exact.get(task, -1))
    tasks = {task for _, task in open_}
    with contextlib.suppress(Invalid):
        for event in read_history(files.url, files):
            if event["kind"] == "epoch":
                for task in tasks:
                    if task not in event.get("inexact", {}):
                        exact[task] = max(event["epoch"], exact.get(task, -1))
    return {(epoch, task): kind for (epoch, task), kind in open_.items() if epoch > max(everybody, exact.get(task, -1))}


def _ordered(task: str) -> tuple[str, int]:
    operator, _, number = task.rpartition("/")
    return operator, int(number)
