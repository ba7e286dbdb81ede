"""Outputs: each sink task's epoch once, under its own name, as Parquet that any tool reads."""

from __future__ import annotations

import math
import re
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Invalid
from holdfast.state.entries import checksum
from holdfast.state.files import Files
from holdfast.state.names import folder_task, task_folder

Kind = Literal["final", "tentative"]
KINDS: tuple[Kind, ...] = ("final", "tentative")
_NAME = re.compile(r"(-?\d+)-(.+-\d+)\.parquet")


def folder(kind: Kind) -> str:
    if kind not in KINDS:
        raise Invalid(f"output: kind must be final or tentative, got {kind!r}")
    return f"output/{kind}"


def output_name(kind: Kind, epoch: int, task: str) -> str:
    return f"{folder(kind)}/{epoch:012d}-{task_folder(task)}.parquet"


def write(
    files: Files, kind: Kind, epoch: int, task: str, table: pa.Table, *, fidelity: float | None, sync: bool
) -> bool:
    """Put the rows in place unless they are there already, whole; whether anything was written."""
    if (kind == "tentative") != (fidelity is not None):
        raise Invalid(f"output: tentative rows have a fidelity and final ones have none, got {kind} with {fidelity}")
    if fidelity is not None and not (math.isfinite(fidelity) and 0.0 <= fidelity <= 1.0):
        raise Invalid(f"output: fidelity must be between 0 and 1, got {fidelity}")
    own = ["epoch", "task"] if fidelity is None else ["epoch", "task", "fidelity"]
    if clash := [name for name in own if name in table.schema.names]:
        raise Invalid(f"output of {task}: column {clash[0]!r} is Holdfast's own, give yours another name")
    rows = len(table)
    columns = [pa.array([epoch], pa.int64()), pa.array([str(task)], pa.string())]
    if fidelity is not None:
        columns.append(pa.array([fidelity], pa.float64()))
    full = [*(pa.repeat(column[0], rows) for column in columns), *table.columns]
    name = output_name(kind, epoch, task)
    if is_whole(files, name):
        return False
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(full, names=[*own, *table.schema.names]), sink)
    data = sink.getvalue()
    prove(files, kind, epoch, task, data, sync=sync)
    try:
        files.create(name, data, sync)
    except FileExistsError:
        if is_whole(files, name):
            return False
        files.put(name, data, sync)
    return True


def prove(files: Files, kind: Kind, epoch: int, task: str, data: pa.Buffer, *, sync: bool) -> None:
    """Put down the checksum of an output, under a name of its own, before the output itself gets its name."""
    files.put(f"{sums_folder(kind)}/{epoch:012d}-{task_folder(task)}-{checksum(data)}", b"", sync)


def sums_folder(kind: Kind) -> str:
    """Where empty files have the checksums of outputs in their names."""
    return f"output/sums/{kind}"


def is_whole(files: Files, name: str) -> bool:
    """Whether a Parquet file is there and can be read: a machine's crash can leave a name without its bytes."""
    try:
        if files.size(name) == 0:
            return False
        pq.read_metadata(pa.BufferReader(files.read(name)))
    except (FileNotFoundError, pa.ArrowException, OSError):
        return False
    return True


def written(files: Files, kind: Kind) -> list[tuple[int, str]]:
    """(epoch, task) of every output of a kind."""
    found = (_NAME.fullmatch(name) for name in files.list(folder(kind)))
    return sorted((int(match[1]), folder_task(match[2])) for match in found if match)
